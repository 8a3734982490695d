"""What a daemon needs of a machine, as the manifest of a partitioned dataset tells it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from atta.partition.dataset import Dataset, part_folder

__all__ = ["Needs", "needs_of"]

BARE_BYTES = 256 << 20
"""Memory of a daemon that has loaded nothing."""


@dataclass(frozen=True)
class Needs:
    """What one daemon needs, in bytes, as the dataset's manifest tells it.

    Attributes:
        partition: files of the partition.
        shared: files that every daemon maps: ids and splits.
        halo_rows: table rows of vertices of other partitions with edges into this one.
    """

    partition: int
    shared: int
    halo_rows: int

    def memory(self, cache: int, buffer: int) -> int:
        """Bytes to ask an engine for. ``cache``, ``buffer``: the daemon's bounds for hot rows and for batches."""
        return BARE_BYTES + self.partition + self.shared + min(cache, self.halo_rows) + buffer


def needs_of(dataset: Dataset) -> list[Needs]:
    """What the daemon of each partition needs, from the manifest alone."""
    shared = _bytes_in(dataset, "shared/")
    return [
        Needs(_bytes_in(dataset, f"{part_folder(part)}/"), shared, _halo_bytes(dataset, part))
        for part in range(dataset.num_parts)
    ]


def _bytes_in(dataset: Dataset, folder: str) -> int:
    return sum(record.size for name, record in dataset.files.items() if name.startswith(folder))


def _halo_bytes(dataset: Dataset, part: int) -> int:
    total = 0
    for node_type, tables in dataset.schema.node_tables.items():
        halo = dataset.files[f"{part_folder(part)}/nodes/{node_type}/halo.npy"].shape[0]
        total += halo * sum(spec.row_bytes for spec in tables.values())
    return total
