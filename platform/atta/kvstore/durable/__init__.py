"""Keeps mutable tables across a kill of their daemon: a checksummed log of changes, and checkpoints of the tables."""
