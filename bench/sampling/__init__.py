"""``atta bench sampling``."""
