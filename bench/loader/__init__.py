"""``atta bench loader``."""
