"""Which rows of a mutable table a partition owns; the same on every daemon. With the policy ``range``, equal ranges
(rows that a table grows by belong to the last daemon). With ``nodes:TYPE``, the rows of its core vertices, by internal
number. With ``edges:TYPE``, the edges that lead to them, in the order of its edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atta.errors import ConfigError
from atta.kvstore.spec import MutableSpec, RowIds
from atta.partition.dataset import Dataset, part_folder
from atta.partition.names import edge_folder


@dataclass(frozen=True)
class TableOwner:
    """A part of a dataset, which owns rows of every table."""

    dataset: Dataset
    part: int

    def ids(self, spec: MutableSpec) -> RowIds | None:
        """The users' ids of the rows that ``span_of`` names, read from the dataset's files; None: their ids are their numbers."""
        kind, _, name = spec.policy.partition(":")
        if kind == "range":
            return None
        if kind == "edges":
            return lambda low, high: self.dataset.part(self.part).csc(name).edge_ids[low:high]
        first = span_of(spec, self.dataset, self.part).start
        return lambda low, high: self.dataset.ids(name)[first + low : first + high]


def span_of(spec: MutableSpec, dataset: Dataset, part: int) -> range:
    """The rows of a table that ``part`` owns when the table is created. Raises UnknownNameError: the policy names an
    unknown type; ConfigError: the table does not have one row per vertex or edge of that type."""
    kind, _, name = spec.policy.partition(":")
    if kind == "range":
        partitions, group = dataset.partitions.num_parts, dataset.groups[part]
        return range(spec.rows * group.start // partitions, spec.rows * group.stop // partitions)
    offsets = node_offsets(dataset, name) if kind == "nodes" else edge_offsets(dataset, name)
    if spec.rows != offsets[-1]:
        first = " in version 0 of the dataset" if kind == "edges" else ""
        raise ConfigError(
            f"table {spec.name}: {spec.rows} rows; there are {offsets[-1]} {kind} of type {name!r}{first}"
        )
    return range(int(offsets[part]), int(offsets[part + 1]))


def node_offsets(dataset: Dataset, node_type: str) -> np.ndarray:
    """int64 [parts + 1]: where the core vertices of each part begin."""
    return np.asarray(dataset.book.offsets[dataset.schema.check_node_type(node_type)], dtype=np.int64)


def edge_offsets(dataset: Dataset, edge_type: str) -> np.ndarray:
    """int64 [parts + 1]: where the edges of each part begin; from the lengths of their files."""
    dataset.schema.check_edge_type(edge_type)
    names = [f"{part_folder(p)}/{edge_folder(edge_type)}/indices.npy" for p in range(dataset.partitions.num_parts)]
    counts = [dataset.files[name].shape[0] for name in names]
    firsts = [group.start for group in dataset.groups] + [len(counts)]
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)[firsts]


class EdgeIndex:
    """Finds the edges of a part by users' edge ids. It is made when first used, and takes 12 or 16 bytes per edge."""

    def __init__(self, dataset: Dataset, part: int, edge_type: str) -> None:
        edge_ids = np.asarray(dataset.part(part).csc(edge_type).edge_ids)
        self._order = np.argsort(edge_ids, kind="stable").astype(np.int64)
        self._sorted = edge_ids[self._order]
        self._first = int(edge_offsets(dataset, edge_type)[part])

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n]: the row of each edge; -1 if the edge belongs to another part."""
        if not len(self._sorted):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[at] == ids, self._order[at] + self._first, -1)
