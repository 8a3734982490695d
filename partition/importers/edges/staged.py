"""Edges on disk while they are read: ends by number, because rows are known only when all ids are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.observe.machine.threads import in_order
from atta.partition.disk.files import NpyAppender, chunks
from atta.partition.schema import TableSpec

__all__ = ["StagedEdges"]

Array = npt.NDArray[Any]
_CHUNK, _THREADS = 2 << 20, 2


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

    def pieces(self, rows: Mapping[str, Array | None], positions: Array | None = None) -> Iterator[dict[str, Array]]:
        """The edges at ``positions`` (None: all), piece by piece, in their order.

        ``rows``: what stands in place of each number of a column; None: the numbers themselves.
        """

        def piece(lo: int, hi: int) -> dict[str, Array]:
            chosen = slice(lo, hi) if positions is None else positions[lo:hi]
            # Nothing keeps a file mapped, which would count as memory of the process.
            columns = {name: out.written()[chosen] for name, out in self._files.items()}
            return {
                name: np.array(values) if (row := rows.get(name)) is None else row.take(values)
                for name, values in columns.items()
            }

        total = len(self) if positions is None else len(positions)
        return in_order((partial(piece, *span) for span in chunks(total, _CHUNK)), _THREADS)

    def __enter__(self) -> StagedEdges:
        return self

    def __exit__(self, *_: object) -> None:
        for out in self._files.values():
            with contextlib.suppress(OSError):
                out.discard()
