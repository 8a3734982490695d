"""``atta bench kv``."""
