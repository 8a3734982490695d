"""Counter-based randomness: hashes instead of generators. Python and C++ compute the same numbers
(docs/internals/architecture.md, determinism)."""

from __future__ import annotations

import numpy as np
import xxhash

from atta import _native

GOLDEN = 0x9E3779B97F4A7C15
"""From the key of a stream to that of the next one."""
_MASK = (1 << 64) - 1


def hash_string(name: str) -> int:
    """A stable 64-bit hash of a name (xxh3 of its UTF-8 bytes)."""
    return int(xxhash.xxh3_64_intdigest(name.encode("utf-8")))


def stream_key(seed: int, epoch: int, batch: int, hop: int, name: int) -> int:
    """The key of a stream of draws, e.g. of hop ``hop`` of a batch for the edge type whose hash is ``name``."""
    return int(_native.stream_key(seed & _MASK, epoch, batch, hop, name))


def stream_of(at: tuple[int, int, int], hop: int, name: int, dependency: int = 1) -> tuple[int, int]:
    """The key of the stream from which a batch draws, and how many of 2**32 vertices draw from the next one already.
    ``at``: seed, epoch, batch.

    Each vertex goes on to the next stream once in ``dependency`` batches, at a batch of its own. So a batch has the
    draws of the one before it but for 1 / ``dependency`` of the vertices, and no draw of the one ``dependency`` before.
    """
    seed, epoch, batch = at
    if dependency == 1:
        return stream_key(seed, epoch, batch, hop, name), 0
    streams, batches = divmod(batch, dependency)
    return (stream_key(seed, epoch, 0, hop, name) + streams * GOLDEN) & _MASK, (batches << 32) // dependency


def mix64(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser, element by element (uint64)."""
    x = np.asarray(values).astype(np.uint64) + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def permutation(user_ids: np.ndarray, key: int) -> np.ndarray:
    """A pseudo-random order of ``user_ids``: int64 positions sorted by the hash of the ids. It depends on the set of
    ids and the key only, not on the order in which the ids are given: ``mix64`` is one-to-one, so only equal ids have
    equal hashes. These stay in the given order."""
    ids = np.asarray(user_ids, dtype=np.int64)
    return ascending(mix64(mix64(ids.view(np.uint64)) ^ np.uint64(key & _MASK)))


def ascending(keys: np.ndarray) -> np.ndarray:
    """int64 positions that sort ``keys``; equal keys stay in the given order. NumPy's stable sort of large integers
    takes five times as long as the other one, which is as good without equal keys. Every epoch of every trainer sorts
    all seeds."""
    order = np.argsort(keys)
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order
