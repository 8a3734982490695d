"""What a daemon needs of a machine, as the manifest of a partitioned dataset tells it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atta.partition.dataset import Dataset, part_folder
from atta.partition.names import node_folder

__all__ = ["Needs", "needs_of"]

BARE_BYTES = 384 << 20
"""Memory of a daemon beside its data: interpreter, libraries, and what its threads and sessions hold."""
TRANSIT = 0.5
"""Rows of other daemons on their way into batches, relative to the bound for batches."""
INDEX_BYTES = 80
"""Memory of a cached vertex beside its rows, at most: its place in a hash table, and what choosing it takes for a while."""


@dataclass(frozen=True)
class Needs:
    """What one daemon needs, in bytes, as the dataset's manifest tells it.

    Attributes:
        partition: files of the partition.
        shared: files that every daemon maps: ids and splits, and the times of other partitions' vertices.
        halo_rows: table rows of vertices of other partitions with edges into this one.
        halo_edges: in-edges of those vertices, about; the cache keeps them beside the rows.
        remote: table rows and in-edges of all vertices of other partitions. No cache keeps more.
        index: bytes that a cache takes to find its rows, for each byte of rows.
    """

    partition: int
    shared: int
    halo_rows: int
    halo_edges: int = 0
    remote: int = 0
    index: float = 0.0

    def cached(self, cache: int) -> int:
        """Bytes of a full cache that is bounded by ``cache``."""
        return int((1 + self.index) * min(cache, self.remote))

    def memory(self, cache: int, buffer: int) -> int:
        """Bytes to ask an engine for. ``cache``, ``buffer``: the daemon's bounds for hot rows and for batches."""
        kept = int((1 + self.index) * min(cache, self.halo_rows + self.halo_edges))
        return BARE_BYTES + self.partition + self.shared + kept + buffer + int(TRANSIT * buffer)


def needs_of(dataset: Dataset, groups: Sequence[range] | None = None) -> list[Needs]:
    """What the daemon of each of ``groups`` of partitions needs, from the manifest alone; None: of each partition."""
    groups = [range(part, part + 1) for part in range(dataset.partitions.num_parts)] if groups is None else groups
    shared = _bytes_in(dataset, "shared/")
    return [_needs_of_group(dataset, parts, shared) for parts in groups]


def _needs_of_group(dataset: Dataset, parts: range, shared: int) -> Needs:
    own = tuple(f"{part_folder(part)}/" for part in parts)
    times = [name for node_type in dataset.schema.node_types for name in dataset.time_files(node_type)]
    sizes = {t: sum(spec.row_bytes for spec in tables.values()) for t, tables in dataset.schema.node_tables.items()}
    halos = {t: sum(_halo(dataset, part, t) for part in parts) for t in sizes}
    rows = sum(halos[t] * size for t, size in sizes.items())
    owned = {t: sum(hi - lo for part in parts for lo, hi in [dataset.partitions.range(t, part)]) for t in sizes}
    others = sum((dataset.schema.node_counts[t] - owned[t]) * size for t, size in sizes.items())
    indexed = sum(halos[t] for t, size in sizes.items() if size)
    return Needs(
        partition=sum(_bytes_in(dataset, folder) for folder in own),
        shared=shared + sum(dataset.files[name].size for name in times if not name.startswith(own)),
        halo_rows=rows,
        halo_edges=_halo_edges(dataset, parts, sum(halos.values())),
        remote=others + _edges_elsewhere(dataset, parts),
        index=INDEX_BYTES * indexed / rows if rows else 0.0,
    )


def _bytes_in(dataset: Dataset, folder: str) -> int:
    return sum(record.size for name, record in dataset.files.items() if name.startswith(folder))


def _edges_elsewhere(dataset: Dataset, parts: range) -> int:
    """Bytes of the sources and ids of edges of other partitions."""
    own = tuple(f"{part_folder(part)}/" for part in parts)
    names = [name for name in dataset.files if "/edges/" in name and not name.startswith(own)]
    return sum(dataset.files[name].size for name in names if name.endswith(("/indices.npy", "/edge_ids.npy")))


def _halo_edges(dataset: Dataset, parts: range, halo: int) -> int:
    """In-edges of HALO vertices, as if these had as many as other vertices of other partitions."""
    total = dataset.partitions.num_parts
    others = sum(dataset.schema.node_counts.values()) * (total - len(parts)) // total
    return int(_edges_elsewhere(dataset, parts) * min(1.0, halo / max(1, others)))


def _halo(dataset: Dataset, part: int, node_type: str) -> int:
    return dataset.files[f"{part_folder(part)}/{node_folder(node_type)}/halo.npy"].shape[0]
