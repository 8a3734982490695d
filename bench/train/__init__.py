"""``atta bench train``."""
