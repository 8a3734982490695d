"""What a daemon needs of a machine, as the manifest of a partitioned dataset tells it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atta.partition.dataset import Dataset, part_folder
from atta.partition.names import node_folder

__all__ = ["Needs", "needs_of"]

BARE_BYTES = 384 << 20
"""Memory of a daemon beside its data: interpreter, libraries, and what its threads and sessions hold."""
TRANSIT = 0.5
"""Rows of other daemons on their way into batches, relative to the bound for batches."""


@dataclass(frozen=True)
class Needs:
    """What one daemon needs, in bytes, as the dataset's manifest tells it.

    Attributes:
        partition: files of the partition.
        shared: files that every daemon maps: ids and splits, and the times of other partitions' vertices.
        halo_rows: table rows of vertices of other partitions with edges into this one.
        halo_edges: in-edges of those vertices, about; the cache keeps them beside the rows.
    """

    partition: int
    shared: int
    halo_rows: int
    halo_edges: int = 0

    def memory(self, cache: int, buffer: int) -> int:
        """Bytes to ask an engine for. ``cache``, ``buffer``: the daemon's bounds for hot rows and for batches."""
        kept = self.partition + self.shared + min(cache, self.halo_rows + self.halo_edges)
        return BARE_BYTES + kept + buffer + int(TRANSIT * buffer)


def needs_of(dataset: Dataset) -> list[Needs]:
    """What the daemon of each partition needs, from the manifest alone."""
    shared, found = _bytes_in(dataset, "shared/"), []
    times = [name for node_type in dataset.schema.node_types for name in dataset.time_files(node_type)]
    for part in range(dataset.num_parts):
        own = f"{part_folder(part)}/"
        of_others = sum(dataset.files[name].size for name in times if not name.startswith(own))
        halo = _halo_bytes(dataset, part), _halo_edges(dataset, part)
        found.append(Needs(_bytes_in(dataset, own), shared + of_others, *halo))
    return found


def _bytes_in(dataset: Dataset, folder: str) -> int:
    return sum(record.size for name, record in dataset.files.items() if name.startswith(folder))


def _halo_bytes(dataset: Dataset, part: int) -> int:
    total = 0
    for node_type, tables in dataset.schema.node_tables.items():
        total += _halo(dataset, part, node_type) * sum(spec.row_bytes for spec in tables.values())
    return total


def _halo_edges(dataset: Dataset, part: int) -> int:
    """In-edges of HALO vertices, as if these had as many as other vertices of other partitions."""
    own = f"{part_folder(part)}/"
    names = [name for name in dataset.files if "/edges/" in name and not name.startswith(own)]
    kept = sum(dataset.files[name].size for name in names if name.endswith(("/indices.npy", "/edge_ids.npy")))
    node_types = dataset.schema.node_counts
    halo = sum(_halo(dataset, part, node_type) for node_type in node_types)
    others = sum(node_types.values()) * (dataset.num_parts - 1) // dataset.num_parts
    return int(kept * min(1.0, halo / max(1, others)))


def _halo(dataset: Dataset, part: int, node_type: str) -> int:
    return dataset.files[f"{part_folder(part)}/{node_folder(node_type)}/halo.npy"].shape[0]
