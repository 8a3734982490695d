"""Tables of several columns, and the labels and splits of vertices, by the rules of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.importers.reading.stated import as_masks
from atta.partition.importers.table.columns import ColumnReader
from atta.partition.importers.table.files import FilePiece, TypeFiles
from atta.partition.importers.table.refusals import Refusals
from atta.partition.importers.table.rules import ColumnRule, TableRule

__all__ = ["SplitReader", "TableReader", "labels_of"]

Array = npt.NDArray[Any]
_BEYOND = 2.0**63
"""The least whole number that int64 does not hold."""


class TableReader:
    """Reads a table piece by piece.

    Attributes:
        columns: a reader for each column.
        dtype: of the table.
        is_stated: whether the schema says the dtype.
        is_wide: whether it may have several columns.
    """

    def __init__(
        self, name: str, rule: TableRule, files: TypeFiles, refusals: Refusals, *, unit: str, nodes: bool = False
    ) -> None:
        """``unit``: of times. ``nodes``: whether the table is one of vertices, in which ``x`` and ``y`` have their
        usual meanings. Columns that no rule makes numbers are refused."""
        labels = nodes and name == "y" and not rule.wide
        self.is_wide = rule.wide
        self._name = name
        self._shape: tuple[int, ...] | None = None
        self.is_stated = rule.dtype is not None
        self.columns: list[ColumnReader] = []
        for one in rule.columns:
            with refusals.held(files.entry.files[0]):
                column = ColumnReader(one, files, refusals, unit=unit, labels=labels)
                if column.must_learn:
                    column.learn(files.pieces([one.name]))
                self.columns.append(column)
        self._refusals, self._files = refusals, files
        features = nodes and name == "x"
        self._accept = ""
        self.dtype = rule.dtype or np.result_type(np.bool_, *(column.dtype for column in self.columns))
        if features and rule.dtype is None:
            self.dtype, self._accept = np.dtype(np.float32), '"dtype": "float64" in schema.json keeps them'

    @property
    def classes(self) -> dict[str, list[str]]:
        """The names of classes by column, of columns that have some."""
        return {column.rule.name: column.names for column in self.columns if column.names is not None}

    def rows(self, piece: FilePiece) -> Array:
        """The rows of a piece, [n] or [n, k]; numbers and lists side by side become one row.

        What they are does not matter once something was refused.
        """
        found: list[Array] = []
        for column in self.columns:
            with self._refusals.held(piece.path):
                found += self._parts(column, piece)
        if self._refusals:
            return np.zeros(piece.rows.num_rows, self.dtype)
        if not self.is_wide:
            rows = found[0]
        elif len({part.shape for part in found}) == 1:
            rows = np.stack(found, axis=1)
        else:
            rows = np.concatenate([part.reshape(len(part), -1) for part in found], axis=1)
        if self._shape not in (None, rows.shape[1:]):
            raise DataError(piece.path, f"rows of the table {self._name!r} have lists of different lengths")
        self._shape = rows.shape[1:]
        return rows

    def _parts(self, column: ColumnReader, piece: FilePiece) -> list[Array]:
        """A column, and beside it whether each value is known if the rule asks for that."""
        values, empty = column.values(piece)
        self._check_rounding(piece, column.rule.name, values)
        parts = [column.cast(piece, values, self.dtype, self._accept)]
        if column.rule.known:
            parts.append((~empty).astype(self.dtype))
        return parts

    def _check_rounding(self, piece: FilePiece, name: str, values: Array) -> None:
        """Check that Arrow has not made doubles of whole numbers in CSV that int64 does not hold; raises DataError."""
        large = self._files.is_csv and values.dtype == np.float64 and bool((np.abs(values) >= _BEYOND).any())
        if large and not self._files.has_fractions(piece.path, name):
            raise DataError(piece.path, f"the column {name!r} has whole numbers beyond int64, which float64 rounds")


def labels_of(reader: TableReader, rows: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Labels [n], and a mask [n] of the vertices without one.

    A cell that is empty is -1; it is NaN in numbers with fractions, or if the schema asks for floats. Whole numbers are
    floats if pandas has written them beside an empty cell.
    """
    column = reader.columns[0]
    empty = np.concatenate([np.zeros(0, np.bool_), *column.empty])
    if column.rule.fill is not None or not empty.any():
        return rows, np.zeros(len(rows), np.bool_)
    known = rows[~empty]
    if rows.dtype.kind == "f" and not reader.is_stated and (known == np.floor(known)).all():
        return np.where(empty, -1, rows).astype(np.int64), empty
    return rows, empty


class SplitReader:
    """Reads the splits of a node type from columns piece by piece."""

    def __init__(self, splits: Mapping[str, str] | str, files: TypeFiles, refusals: Refusals) -> None:
        """``splits``: the column of each split, or the one column that names the split of each vertex."""
        self._splits = splits
        if isinstance(splits, str):
            named = ColumnRule(splits, classes=True)
            self._readers = {splits: ColumnReader(named, files, refusals, labels=True)}
            self._readers[splits].learn(files.pieces([splits]))
        else:
            self._readers = {
                column: ColumnReader(ColumnRule(column, fill=0), files, refusals) for column in splits.values()
            }
        self._rows: dict[str, list[Array]] = {column: [] for column in self._readers}

    def read(self, piece: FilePiece) -> None:
        """Note the rows of a piece."""
        for column, reader in self._readers.items():
            self._rows[column].append(reader.values(piece)[0])

    def masks(self, where: Path) -> dict[str, npt.NDArray[np.bool_]]:
        """The mask [n] of each split, without vertices whose cell is empty; raises DataError if a column holds none."""
        rows = {column: np.concatenate(found or [np.zeros(0, np.int64)]) for column, found in self._rows.items()}
        if isinstance(self._splits, str):
            names = self._readers[self._splits].names or []
            return {name: rows[self._splits] == code for code, name in enumerate(names)}
        return {
            split: mask
            for name, column in self._splits.items()
            for split, mask in as_masks(where, f"the column {column!r}", name, rows[column]).items()
        }
