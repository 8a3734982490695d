"""``atta roll``: restarts the daemons of a cluster one after another."""
