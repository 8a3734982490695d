"""How the vertices of a dataset are numbered: every (partition, node type) is one contiguous range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.partition.cutting.sorting import stable_order
from atta.partition.graph import index_dtype

__all__ = ["Numbering", "number_vertices"]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Numbering:
    """How the vertices of one node type are numbered.

    Attributes:
        offsets: int64 [P+1], starts of the partitions' ranges.
        row_of: [n] row in the graph folder by internal id.
        internal_of: [n] internal id by row.
        rank_of: [n] position of the row's user id among all user ids.
        ids: int64 [n], user id by internal id.
    """

    offsets: Ids
    row_of: Array
    internal_of: Array
    rank_of: Array
    ids: Ids

    @property
    def sorted_internal(self) -> Array:
        """Return the internal id of the i-th smallest user id, [n]."""
        out = np.empty_like(self.internal_of)
        out[self.rank_of] = self.internal_of
        return out


def number_vertices(user_ids: Ids | None, owners: npt.NDArray[np.int32], parts: int) -> Numbering:
    """Number the vertices of a type by (partition, user id).

    Args:
        user_ids: int64 [n] by row; None: each row's number is its id.
        owners: int32 [n], the partition of each row.
        parts: number of partitions, empty ones allowed.
    """
    n = len(owners)
    index = index_dtype(n)
    if n and (owners.min() < 0 or owners.max() >= parts):
        raise ConfigError(f"the assignment names partitions outside 0..{parts - 1}")
    by_id = np.arange(n, dtype=index) if user_ids is None else np.argsort(user_ids, kind="stable").astype(index)
    row_of = by_id[stable_order(owners[by_id], parts)] if n else by_id
    internal_of, rank_of = np.empty(n, index), np.empty(n, index)
    internal_of[row_of] = rank_of[by_id] = np.arange(n, dtype=index)
    offsets = np.zeros(parts + 1, np.int64)
    offsets[1:] = np.cumsum(np.bincount(owners, minlength=parts))
    ids = row_of.astype(np.int64) if user_ids is None else np.asarray(user_ids)[row_of]
    return Numbering(offsets, row_of, internal_of, rank_of, ids)
