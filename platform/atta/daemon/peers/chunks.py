"""How answers are cut into messages, which those who ask must know to tell which answers are a single one; who works on them."""

from __future__ import annotations

__all__ = ["CHUNK_BYTES", "PULL_BYTES", "SMALL_BYTES", "moved_at_once", "sampled_rows"]

CHUNK_BYTES = 4 << 20
"""Large enough for gRPC's best throughput, small enough that copying one chunk overlaps with sending another."""

PULL_BYTES = 2 << 20
"""The same for rows of tables: they are copied several times on their way, by half as large messages within the caches."""

SMALL_BYTES = 128 << 10
"""Work on so few bytes is done at once: handing it to a thread takes longer."""


def moved_at_once(threads: int) -> int:
    """Up to how many bytes of rows the event loop of a daemon with so many workers moves itself.

    Where there is one, its core and that of the event loop are all that the daemon has: a further thread would only take turns
    with them (bench/results/kv.md says what that costs).
    """
    return PULL_BYTES if threads == 1 else SMALL_BYTES


def sampled_rows(fan_out: int, table_bytes: int) -> int:
    """Rows whose edges fit into a chunk: at most ``fan_out`` per row, with ``table_bytes`` of edge tables each."""
    return max(1, CHUNK_BYTES // max(4, (8 + table_bytes) * fan_out + 4))
