"""Edges on disk while they are read: ends by number, because rows are known only when all ids are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.disk.files import NpyAppender, chunks
from atta.partition.schema import TableSpec

__all__ = ["StagedEdges"]

Array = npt.NDArray[Any]
_CHUNK = 4 << 20


class StagedEdges:
    """Columns of edges in files of a folder, all of the same length. Use it as a context manager.

    Args:
        folder: to write to.
        columns: name -> dtype.
    """

    def __init__(self, folder: Path, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._files = {name: NpyAppender(folder / f"{name}.npy", dtype) for name, dtype in columns.items()}

    def __len__(self) -> int:
        return next(iter(self._files.values())).rows

    def append(self, columns: Mapping[str, Array]) -> None:
        """Append edges; every column has a value [n] for each."""
        for name, out in self._files.items():
            out.append(columns[name])

    def column(self, name: str) -> Array:
        """Memory-map a column."""
        return self._files[name].written()

    def specs(self, names: Mapping[str, object]) -> dict[str, TableSpec]:
        """The columns ``names`` as edge tables."""
        return {name: TableSpec(self._files[name].dtype.str) for name in names}

    def pieces(self, positions: Array | None = None) -> Iterator[dict[str, Array]]:
        """The edges at ``positions`` (None: all), piece by piece. No piece keeps a file mapped."""
        for lo, hi in chunks(len(self) if positions is None else len(positions), _CHUNK):
            chosen = slice(lo, hi) if positions is None else positions[lo:hi]
            yield {name: np.array(out.written()[chosen]) for name, out in self._files.items()}

    def __enter__(self) -> StagedEdges:
        return self

    def __exit__(self, *_: object) -> None:
        for out in self._files.values():
            with contextlib.suppress(OSError):
                out.discard()
