"""The partition book: which partition owns which internal id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, UnknownNameError

__all__ = ["PartitionBook"]


@dataclass(frozen=True)
class PartitionBook:
    """Contiguous ranges of internal ids per (node type, partition).

    Attributes:
        offsets: node type -> int64 [P+1], ascending, first 0, last the number of vertices.
    """

    offsets: dict[str, npt.NDArray[np.int64]]

    def __post_init__(self) -> None:
        sizes = {len(o) for o in self.offsets.values()}
        if len(sizes) != 1 or min(sizes) < 2:
            raise ConfigError("partition ranges: every node type needs the same number of ranges, at least one")
        for node_type, offsets in self.offsets.items():
            if offsets.dtype != np.int64 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
                raise ConfigError(f"partition ranges of node type {node_type!r} are not ascending from 0")

    @property
    def num_parts(self) -> int:
        """Number of partitions."""
        return len(next(iter(self.offsets.values()))) - 1

    def owner(self, node_type: str, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return the owning partition of each internal id (int32, shape of ``ids``). Ids are not range-checked."""
        return np.searchsorted(self._of(node_type)[1:], ids, side="right").astype(np.int32)

    def range(self, node_type: str, part: int) -> tuple[int, int]:
        """Return the internal ids ``[lo, hi)`` of a partition's core vertices."""
        offsets = self._of(node_type)
        if not 0 <= part < self.num_parts:
            raise ConfigError(f"partition {part} does not exist: there are {self.num_parts}")
        return int(offsets[part]), int(offsets[part + 1])

    def _of(self, node_type: str) -> npt.NDArray[np.int64]:
        try:
            return self.offsets[node_type]
        except KeyError:
            raise UnknownNameError.of("node type", node_type, self.offsets) from None

    def to_json(self) -> dict[str, list[int]]:
        """Return plain lists, the inverse of ``from_json``."""
        return {t: o.tolist() for t, o in self.offsets.items()}

    @classmethod
    def from_json(cls, value: Any) -> PartitionBook:
        """Read what ``to_json`` wrote; raises ConfigError."""
        try:
            return cls({str(t): np.array([int(x) for x in o], dtype=np.int64) for t, o in value.items()})
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"partition ranges are malformed: {error}") from None
