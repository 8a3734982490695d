"""How answers are cut into messages, and which thread handles them.

Daemons that ask must know it, too, because answers of a single message have a call of their own.
"""

from __future__ import annotations

__all__ = ["CHUNK_BYTES", "PULL_BYTES", "SMALL_BYTES", "moved_at_once", "sampled_rows"]

CHUNK_BYTES = 4 << 20
"""Large enough for gRPC's best throughput, small enough that copying one chunk overlaps with sending another."""

PULL_BYTES = 2 << 20
"""The same for rows of tables. They are copied several times on their way, and smaller messages stay within the
caches."""

SMALL_BYTES = 128 << 10
"""Largest number of bytes that the event loop handles itself, as handing them to a thread takes longer."""


def moved_at_once(threads: int) -> int:
    """Largest number of bytes of rows that the event loop moves itself, in a daemon with ``threads`` workers.

    With one worker, its core and that of the event loop are all that the daemon has. A further thread would only take
    turns with them (bench/results/kv.md says what that costs).
    """
    return PULL_BYTES if threads == 1 else SMALL_BYTES


def sampled_rows(fan_out: int, table_bytes: int) -> int:
    """Rows whose edges fit into a chunk: at most ``fan_out`` per row, with ``table_bytes`` of edge tables each."""
    return max(1, CHUNK_BYTES // max(4, (8 + table_bytes) * fan_out + 4))
