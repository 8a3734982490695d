"""How answers are cut into messages; those who ask must know it to tell which answers are a single one."""

from __future__ import annotations

__all__ = ["CHUNK_BYTES", "sampled_rows"]

CHUNK_BYTES = 4 << 20
"""Large enough for gRPC's best throughput, small enough that copying one chunk overlaps with sending another."""


def sampled_rows(fan_out: int, table_bytes: int) -> int:
    """Rows whose edges fit into a chunk: at most ``fan_out`` per row, with ``table_bytes`` of edge tables each."""
    return max(1, CHUNK_BYTES // max(4, (8 + table_bytes) * fan_out + 4))
