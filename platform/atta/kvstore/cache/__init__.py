"""Keeps rows of other partitions, and in-edges of their vertices, that this partition's batches ask for most."""

from __future__ import annotations

from atta.kvstore.cache.choice import RANKS
from atta.kvstore.cache.edges import EdgeCache
from atta.kvstore.cache.rows import Lookup, RowCache, RowsAhead

__all__ = ["RANKS", "EdgeCache", "Lookup", "RowCache", "RowsAhead"]
