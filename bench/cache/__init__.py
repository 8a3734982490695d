"""``atta bench cache``."""
