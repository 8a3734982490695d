"""When vertices begin to exist: the table ``time`` of a node type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError

__all__ = ["VertexTimes"]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class VertexTimes:
    """The times of all vertices of a node type.

    Attributes:
        times: int64 [n], by internal id.
        by_rank: int32|int64 [n], the internal id of the i-th smallest user id.
    """

    times: Ids
    by_rank: Array

    @classmethod
    def joined(cls, of_parts: Sequence[Array], by_rank: Array) -> VertexTimes:
        """From the rows of all partitions, in their order. Those of a single one are not copied if they are int64.

        Raises:
            ConfigError: a time does not fit into int64.
        """
        rows = of_parts[0] if len(of_parts) == 1 else np.concatenate(of_parts)
        if rows.dtype.kind == "u" and rows.size and rows.max() > np.iinfo(np.int64).max:
            raise ConfigError(f"times of vertices: {rows.max()} is too large, times are below 2**63")
        return cls(np.ascontiguousarray(rows, dtype=np.int64), by_rank)

    @property
    def nbytes(self) -> int:
        """Bytes of the times."""
        return self.times.nbytes

    @cached_property
    def order(self) -> Array:
        """int32|int64 [n], internal ids: the earliest vertex first, those of one time by user id."""
        return self.by_rank[np.argsort(self.times[self.by_rank], kind="stable")]

    @cached_property
    def _ascending(self) -> Ids:
        return self.times[self.order]

    def existing(self, at: Ids) -> Ids:
        """int64 [m]: how many vertices exist at the times ``at`` (int64 [m]). They are the first of ``order``."""
        return np.searchsorted(self._ascending, at, side="right").astype(np.int64)
