"""What a file may state besides tables and edges: the users' ids and the number of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.graph import GraphWriter

__all__ = ["distinct_ids", "state_classes"]


def distinct_ids(values: npt.NDArray[Any] | None, count: int) -> npt.NDArray[np.int64] | None:
    """Return ``values`` if they can be the user ids of ``count`` vertices, which a tensor of their usual name need not be."""
    if values is None or values.shape != (count,) or values.dtype.kind not in "iu":
        return None
    ids = values.astype(np.int64)
    return ids if len(np.unique(ids)) == count else None


def state_classes(out: GraphWriter, stated: object) -> None:
    """Raise the number of classes to what the file states: the highest ones may have no label."""
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > (out.num_classes or 0):
        out.num_classes = stated
