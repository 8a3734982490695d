"""Files that carry rows from tasks to tasks: each task sorts what it read by the bucket that shall get it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.cutting.sorting import stable_order
from atta.partition.disk.files import NpyAppender, map_array

__all__ = ["BucketReader", "BucketWriter"]

_BOUNDS = "bounds.npy"

Array = npt.NDArray[Any]


class BucketWriter:
    """Writes columns of equal length into ``folder``, a run at a time; within a run rows are sorted by bucket.

    Files: ``NAME.npy`` for each column, and ``bounds.npy``, int64 [runs, buckets + 1]: where a run's buckets begin.
    """

    def __init__(self, folder: Path, buckets: int, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._buckets = buckets
        self._files = {name: NpyAppender(folder / f"{name}.npy", np.dtype(kind)) for name, kind in columns.items()}
        self._bounds = NpyAppender(folder / _BOUNDS, np.dtype(np.int64), (buckets + 1,))
        self._rows = 0

    def add(self, keys: npt.NDArray[Any], **columns: Array) -> None:
        """Append a run. ``keys``: the bucket of each row. Rows of a bucket keep their order."""
        order = stable_order(keys, self._buckets)
        for name, file in self._files.items():
            file.append(columns[name][order])
        counts = np.bincount(keys, minlength=self._buckets)
        self._bounds.append(self._rows + np.concatenate([[0], np.cumsum(counts)])[None])
        self._rows += len(keys)

    def __enter__(self) -> BucketWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in (*self._files.values(), self._bounds):
            file.__exit__(kind, error, tb)


class BucketReader:
    """Reads what several tasks wrote for a bucket: folder by folder, run by run."""

    def __init__(self, folders: Sequence[Path], columns: Sequence[str]) -> None:
        self._folders, self._columns = folders, columns

    def bucket(self, number: int) -> Iterator[tuple[Array, ...]]:
        """Yield the columns of each run that has rows of the bucket, memory-mapped."""
        for folder in self._folders:
            bounds = map_array(folder / _BOUNDS)[:, number : number + 2]
            if (filled := bounds[bounds[:, 0] < bounds[:, 1]]).size:
                columns = [map_array(folder / f"{name}.npy") for name in self._columns]
                for lo, hi in filled.tolist():
                    yield tuple(column[lo:hi] for column in columns)
