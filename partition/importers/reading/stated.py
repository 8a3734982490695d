"""What a file may state besides tables and edges: the users' ids, splits and the number of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.importers.reading.options import ImportOptions

__all__ = ["as_ids", "as_mask", "as_masks", "check_numbers", "distinct_ids", "offered_ids", "state_classes"]

Array = npt.NDArray[Any]
_LARGEST = 2**63 - 1


def check_numbers(where: str | Path, what: str, values: Array, *, negative: bool = False) -> None:
    """Check that ``values`` [n] are whole numbers that fit into int64; raises DataError naming the first bad value and
    its place.

    ``negative``: whether numbers below 0 are allowed.
    """
    if values.ndim != 1:
        raise DataError(where, f"{what}: wanted is a list of numbers, not an array {list(values.shape)}")
    if not values.size:
        return
    if values.dtype.kind not in "iu":
        place = int(np.argmax(~np.isfinite(values))) if values.dtype.kind == "f" else 0
        raise DataError(where, f"{what}: {values[place]} at position {place} ({values.dtype}); wanted are integers")
    if values.dtype.kind == "u" and int(values.max()) > _LARGEST:
        place = int(np.argmax(values > np.uint64(_LARGEST)))
        raise DataError(where, f"{what}: {values[place]} at position {place} is too large: numbers go up to {_LARGEST}")
    if not negative and int(values.min()) < 0:
        place = int(np.argmax(values < 0))
        raise DataError(where, f"{what}: {values[place]} at position {place} is negative")


def as_ids(where: str | Path, what: str, values: Array, *, negative: bool = False) -> npt.NDArray[np.int64]:
    """Return ``values`` [n] as int64; raises DataError as ``check_numbers`` does."""
    check_numbers(where, what, values, negative=negative)
    return values.astype(np.int64)


def distinct_ids(where: str | Path, what: str, values: Array, count: int) -> npt.NDArray[np.int64]:
    """Return ``values`` as the user ids of ``count`` vertices; raises DataError naming what makes them unsuitable."""
    if values.shape != (count,):
        raise DataError(where, f"{what}: {list(values.shape)} numbers for {count} vertices")
    ids = as_ids(where, what, values, negative=True)
    ordered = np.sort(ids)
    if len(twice := np.flatnonzero(ordered[1:] == ordered[:-1])):
        raise DataError(where, f"{what}: the id {ordered[twice[0]]} occurs twice")
    return ids


def offered_ids(
    where: str | Path, name: str, values: Array | None, count: int, options: ImportOptions
) -> npt.NDArray[np.int64] | None:
    """Return the tensor ``name`` as user ids, None if there is no such tensor. Refuse it if it cannot be ids."""
    if values is None:
        return None
    try:
        return distinct_ids(where, name, values, count)
    except DataError as error:
        options.refuse(where, name, error.cause)
        return None


def as_mask(where: str | Path, what: str, values: Array) -> npt.NDArray[np.bool_]:
    """Return ``values`` [n] or [n, k] as booleans; raises DataError if they are neither booleans nor zeros and ones."""
    if values.ndim not in (1, 2):
        raise DataError(where, f"{what}: {list(values.shape)} is neither one value for each vertex nor a row of them")
    if values.dtype.kind not in "biuf" or (values.dtype != bool and not np.isin(values, (0, 1)).all()):
        raise DataError(where, f"{what}: a mask holds truth values, or zeros and ones")
    return values.astype(bool)


def as_masks(where: str | Path, what: str, split: str, values: Array) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the mask [n] of each split in ``values``: ``split`` of [n]; ``split_0``, ``split_1``, ... of [n, k].

    Raises DataError as ``as_mask`` does.
    """
    mask = as_mask(where, what, values)
    return {split: mask} if mask.ndim == 1 else {f"{split}_{i}": mask[:, i] for i in range(mask.shape[1])}


def state_classes(out: GraphWriter, where: str | Path, stated: object) -> None:
    """Raise the number of classes to the stated number, if there is one: no vertex may have a label of the highest
    classes.

    Raises DataError if ``num_classes`` in ``where`` is no number of classes.
    """
    if stated is None:
        return
    if not isinstance(stated, int | np.integer) or isinstance(stated, bool) or not 0 <= stated <= _LARGEST:
        raise DataError(where, f"'num_classes' is {stated!r}, wanted is a number of classes")
    out.num_classes = max(int(stated), out.num_classes or 0)
