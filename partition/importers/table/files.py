"""Reads the files of a type by Arrow: which there are, what types their columns have, and their rows in pieces."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import hint_of
from atta.partition.importers.reading.source import (
    ImportOptions,
    Mask,
    arrow_csv,
    arrow_files,
    open_content,
    pa,
    pc,
    unreadable,
)
from atta.partition.importers.table.schema import Refusals, TypeEntry, kind_of

DELIMITERS = {",": "a comma", "\t": "a tab", ";": "';'", "|": "'|'"}
"""What may separate the columns of a CSV file of which nobody says it, and how a message calls it."""
_ROWS = 1 << 18
_BLOCK = 1 << 20
"""Bytes of a CSV file from which Arrow guesses the types of its columns."""
_LONGEST_HEADING = 1 << 20
_SHOWN = 8
"""At most this many values are looked up for a message."""
_LISTED = 20
"""At most this many columns are named in a message."""


def reading(where: Path) -> AbstractContextManager[None]:
    """Raise DataError naming ``where`` for Arrow's errors, which are ValueErrors."""
    return unreadable(where, "not readable", (OSError, ValueError, NotImplementedError))


def heading(path: Path) -> str:
    """The first line of a CSV file, which may be compressed; raises DataError."""
    with reading(path), open_content(path) as file:
        return file.readline(_LONGEST_HEADING).decode("utf-8-sig", "replace").rstrip("\r\n")


def usual_delimiter(path: Path) -> str:
    """What separates columns in files of this name."""
    return "\t" if kind_of(path) == "tsv" else ","


def delimiter_of(path: Path, score: Callable[[list[str]], int]) -> str:
    """What separates columns: that by which the ``score`` of the heading is the highest."""
    line, usual = heading(path), usual_delimiter(path)
    marks = [usual, *(mark for mark in DELIMITERS if mark != usual)]
    return max(marks, key=lambda mark: score(next(csv.reader([line], delimiter=mark), [])))


@dataclass(frozen=True)
class FilePiece:
    """Rows of a file: the position of the first, from 1, and the wanted columns, an Arrow batch. ``width``: how many
    rows of the batch stand for one row of the file, where lists are laid out."""

    path: Path
    first: int
    rows: Any
    refusals: Refusals
    width: int = 1

    def refuse(self, what: str, bad: Mask, *, accept: str = "", values: Any = None) -> None:
        """Refuse the rows where ``bad`` [n] or [n, k] is set. ``values``: of the same shape, or an Arrow array."""
        if not bad.any():
            return
        places = np.flatnonzero(bad)
        flat = values.reshape(-1) if isinstance(values, np.ndarray) else values
        shown = [] if values is None else [flat[int(place)] for place in places[:_SHOWN]]
        self.refusals.add(
            self.path,
            what,
            rows=(self.first + places // (bad.shape[1] if bad.ndim == 2 else self.width)).tolist(),
            values=[one.as_py() if hasattr(one, "as_py") else one.item() for one in shown],
            accept=accept,
        )


class TypeFiles:
    """The wanted columns of the files of one type. ``guessed``: by path, the Arrow type that each column seems to have.
    ``kinds``: those as which columns are read, once ``settle`` has found them."""

    def __init__(self, entry: TypeEntry, options: ImportOptions, refusals: Refusals) -> None:
        self.entry, self.refusals = entry, refusals
        self.is_csv = kind_of(entry.files[0]) != "parquet"
        self._texts: frozenset[str] = frozenset()
        self._formats: dict[Path, Any] = {}
        self.guessed: dict[Path, dict[str, Any]] = {}
        self.kinds: dict[Path, dict[str, Any]] = {}
        for path in entry.files:
            with refusals.held():
                self._formats[path] = self._format(path, options)
                with reading(path):
                    self._look(path, options)

    def settle(self, texts: Sequence[str]) -> None:
        """Find the types that fit all rows. ``texts``: columns that are read as they are written if the files are CSV.
        Raises DataError for a file that cannot be read."""
        if not self.is_csv:
            self.kinds = self.guessed
            return
        self._texts = frozenset(texts)
        self.kinds = {path: self._fitting(path, found) for path, found in self.guessed.items()}
        for name in self.entry.columns:  # text in all files where it is text in one
            if any(pa.types.is_string(kinds[name]) for kinds in self.kinds.values()):
                for kinds in self.kinds.values():
                    kinds[name] = pa.string()

    def of(self, column: str) -> list[Any]:
        """The Arrow types that a column has in the files, without those of files that have no value in it. Of ids in
        CSV they are what they seem to be."""
        found = [kinds[column] for kinds in (self.guessed if column in self._texts else self.kinds).values()]
        return [kind for kind in found if not pa.types.is_null(kind)] or found[:1]

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[FilePiece]:
        """The rows of all files, of some ``columns`` or all, in at least one piece; raises DataError."""
        names = self.entry.columns if columns is None else columns
        piece = None
        for path in self.entry.files:
            first = 1
            with reading(path):
                for batch in self._batches(path, {name: self.kinds[path][name] for name in names}):
                    piece = FilePiece(path, first, batch, self.refusals)
                    yield piece
                    first += batch.num_rows
        if piece is None:
            path = self.entry.files[0]
            none = pa.RecordBatch.from_pylist([], pa.schema([(name, self.kinds[path][name]) for name in names]))
            yield FilePiece(path, 1, none, self.refusals)

    def _batches(self, path: Path, kinds: Mapping[str, Any]) -> Iterator[Any]:
        schema = pa.schema(list(kinds.items()))
        found = arrow_files.dataset(str(path), schema=schema, format=self._formats[path])
        return (batch for batch in found.to_batches(batch_size=_ROWS) if batch.num_rows)

    def _format(self, path: Path, options: ImportOptions) -> Any:
        if not self.is_csv:
            return "parquet"
        return arrow_files.CsvFileFormat(
            parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter(path, options)),
            convert_options=arrow_csv.ConvertOptions(
                decimal_point=self.entry.decimal,
                null_values=[*arrow_csv.ConvertOptions().null_values, *self.entry.empty],
            ),
        )

    def _delimiter(self, path: Path, options: ImportOptions) -> str:
        if self.entry.delimiter is not None:
            return self.entry.delimiter
        wanted = set(self.entry.columns)
        best = delimiter_of(path, lambda names: len(wanted & set(names)))
        if best != usual_delimiter(path):
            options.notes.append(f"{path.name}: columns are separated by {DELIMITERS[best]}")
        return best

    def _look(self, path: Path, options: ImportOptions) -> None:
        found = arrow_files.dataset(str(path), format=self._formats[path]).schema
        names, wanted = found.names, self.entry.columns
        self.guessed[path] = {name: found.types[names.index(name)] for name in wanted if name in names}
        for name in wanted:
            if name not in names:
                self.refusals.add(path, f"has no column {name!r}{hint_of(name, names)}")
            elif names.count(name) > 1:
                self.refusals.add(path, f"has {names.count(name)} columns {name!r}")
        others = [name for name in names if name not in wanted and name not in self.entry.ignore]
        kept = [name for name in others if name not in options.drop]
        for name in others if len(kept) < 2 else set(others) - set(kept):
            with self.refusals.held():
                options.refuse(path, name, 'schema.json does not name the column, and "ignore" there leaves it out')
        if len(kept) > 1:
            listed = ", ".join(map(repr, kept[:_LISTED])) + (", ..." if len(kept) > _LISTED else "")
            what = f"{len(kept)} columns are not imported: {listed}: schema.json does not name them"
            self.refusals.add(path, what, accept='"ignore" there leaves them out')

    def _fitting(self, path: Path, guessed: Mapping[str, Any]) -> dict[str, Any]:
        kinds = {name: pa.string() if name in self._texts else kind for name, kind in guessed.items()}
        numbers = {name: kind for name, kind in kinds.items() if not pa.types.is_string(kind)}
        whole_file = path.stat().st_size < _BLOCK and not path.name.lower().endswith(".gz")
        if whole_file or not numbers or self._fits(path, numbers):
            return kinds
        wider = {n: self._wider(path, n, kind) for n, kind in numbers.items() if not self._fits(path, {n: kind})}
        return kinds | wider

    def _wider(self, path: Path, name: str, kind: Any) -> Any:
        if pa.types.is_int64(kind) and not self.has_fractions(path, name):
            # Text tells whether the column holds words, or a number that double would round.
            return pa.string() if self._any_matches(path, name, r"[^-+0-9\s]") else kind
        return next((one for one in _wider_kinds(kind) if self._fits(path, {name: one})), pa.string())

    def _fits(self, path: Path, kinds: Mapping[str, Any]) -> bool:
        with reading(path):
            try:
                for _ in self._batches(path, kinds):
                    pass
            except pa.ArrowInvalid:  # of other faults, whoever reads the values will say what they are
                return False
        return True

    def has_fractions(self, path: Path, name: str) -> bool:
        """Whether a column of a CSV file has numbers that are written as fractions, with an exponent, or as NaN or
        infinite. Otherwise its numbers are whole, some of them beyond int64, which double would round."""
        return self._any_matches(path, name, r"^\s*[-+]?([0-9]*\.|[0-9]+[eE]|(?i:nan|inf))")

    def _any_matches(self, path: Path, name: str, pattern: str) -> bool:
        with reading(path):
            return any(
                pc.any(pc.match_substring_regex(batch.column(0), pattern)).as_py()
                for batch in self._batches(path, {name: pa.string()})
            )


def _wider_kinds(kind: Any) -> list[Any]:
    """The Arrow types that may fit a column whose beginning fits ``kind``, the narrowest first."""
    utc = pa.timestamp("ns", "UTC")
    times = [pa.date32(), pa.timestamp("s"), pa.timestamp("ns")]
    if pa.types.is_null(kind):
        return [pa.int64(), pa.float64(), pa.bool_(), *times, utc]
    if pa.types.is_int64(kind):
        return [pa.float64()]
    if pa.types.is_timestamp(kind):
        return [times[2] if kind.tz is None else utc]
    return times[1:] if pa.types.is_date32(kind) else []
