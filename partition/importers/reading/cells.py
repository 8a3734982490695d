"""CSV files with a heading whose cells hold numbers, truth values, lists of numbers, or ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.importers.reading.common import first_line
from atta.partition.importers.reading.head import open_content
from atta.partition.importers.reading.rows import FileRows

__all__ = ["CsvFile"]

Array = npt.NDArray[Any]
_BLOCK = 16 << 20
"""Most bytes of a line, and of what is read at a time."""
_FORMS = {
    "bool": "^(?i:true|false)$",
    "int64": "^[-+]?[0-9]+$",
    "float64": r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$|^[-+]?(?i:nan|inf|infinity)$",
}
"""How the values of a dtype are written."""


@dataclass(frozen=True)
class CsvFile:
    """A file with a heading.

    Attributes:
        path: the file, which may be compressed by gzip.
        separator: of columns.
        names: the columns that have a name.
    """

    path: Path
    separator: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, separator: str = ",") -> CsvFile:
        """Read the heading.

        Raises:
            DataError: the file cannot be read, or two columns have the same name.
            ConfigError: pyarrow is not installed.
        """
        load("importing CSV files", "pyarrow", "pyarrow.compute", "pyarrow.csv")
        whole = cls(path, separator, ())
        with whole._reader(()) as reader:
            names = reader.schema.names
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise DataError(path, f"has two columns {twice!r}")
        return cls(path, separator, tuple(name for name in names if name))

    def cells(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Read columns as Arrow's strings without blanks around them, piece by piece; raises DataError."""
        import pyarrow.compute as pc

        if lost := [name for name in names if name not in self.names]:
            raise DataError(self.path, f"has no column {lost[0]!r}; there are: {', '.join(self.names)}")
        with self._reader(names) as reader:
            for batch in reader:
                yield [pc.utf8_trim_whitespace(batch.column(name)) for name in names]

    def ids(self, name: str) -> Any:
        """A column of ids: int64 if all are integers, otherwise strings; raises DataError for an empty one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = pa.chunked_array([cells for (cells,) in self.cells([name])], pa.string()).combine_chunks()
        if pc.any(pc.equal(whole, "")).as_py():
            raise DataError(self.path, f"the column {name!r} has empty ids")
        plain = pc.all(pc.match_substring_regex(whole, "^(0|-?[1-9][0-9]{0,17})$")).as_py()
        return whole.cast(pa.int64()) if plain or not len(whole) else whole

    def rows(self, name: str) -> FileRows | None:
        """The rows of a column of numbers or of lists of equal length; None: it holds text.

        Raises DataError for empty cells, and for lists of different lengths.
        """
        import pyarrow.compute as pc

        flat, count = dict(_FORMS), 0
        for (cells,) in self.cells([name]):
            if pc.any(pc.equal(cells, "")).as_py():
                raise DataError(self.path, f"the column {name!r} has empty cells")
            flat = {kind: form for kind, form in flat.items() if _all_match(cells, form)}
            count += len(cells)
        if flat:
            dtype = np.dtype(next(iter(flat)))
            return FileRows(self.path, dtype, (), lambda: (_numbers(c, dtype) for (c,) in self.cells([name])), count)
        return self._list_rows(name, count)

    def _list_rows(self, name: str, count: int) -> FileRows | None:
        import pyarrow.compute as pc

        forms, widths = {kind: form for kind, form in _FORMS.items() if kind != "bool"}, set()
        for (cells,) in self.cells([name]):
            items = _items(cells)
            widths.update(pc.unique(pc.list_value_length(items)).to_pylist())
            forms = {kind: form for kind, form in forms.items() if _all_match(_flat(items), form)}
        if not forms:
            return None
        if len(widths) > 1:
            raise DataError(self.path, f"the column {name!r} has lists of {min(widths)} to {max(widths)} numbers")
        dtype, width = np.dtype(next(iter(forms))), max(widths)

        def pieces() -> Iterator[Array]:
            for (cells,) in self.cells([name]):
                yield _numbers(_flat(_items(cells)), dtype).reshape(len(cells), width)

        return FileRows(self.path, dtype, (width,), pieces, count)

    @contextlib.contextmanager
    def _reader(self, names: Sequence[str]) -> Iterator[Any]:
        """Batches of columns, as strings; of all if there are no ``names``."""
        import pyarrow as pa
        import pyarrow.csv as pc

        try:
            with open_content(self.path) as content:
                yield pc.open_csv(
                    content,
                    read_options=pc.ReadOptions(block_size=_BLOCK),
                    parse_options=pc.ParseOptions(delimiter=self.separator),
                    convert_options=pc.ConvertOptions(
                        column_types=dict.fromkeys(names, pa.string()),
                        include_columns=list(names),
                        strings_can_be_null=False,
                    ),
                )
        except (OSError, ValueError, TypeError) as error:  # Arrow's errors are ValueErrors
            raise DataError(self.path, f"not a readable csv file: {first_line(error)}") from None


def _all_match(cells: Any, form: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(cells, form)).as_py() is not False)


def _items(cells: Any) -> Any:
    """Lists of the texts in cells such as ``1, 2`` and ``[1, 2]``."""
    import pyarrow.compute as pc

    return pc.split_pattern(pc.replace_substring_regex(cells, r"^[\[(]|,?\s*[\])]$", ""), ",")


def _flat(items: Any) -> Any:
    import pyarrow.compute as pc

    return pc.utf8_trim_whitespace(pc.list_flatten(items))


def _numbers(cells: Any, dtype: np.dtype[Any]) -> Array:
    """Texts as numbers; raises ValueError for integers that do not fit into 64 bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if dtype.kind == "b":
        cells = pc.equal(pc.utf8_lower(cells), "true")
    else:
        cells = pc.replace_substring_regex(cells, r"^\+", "").cast(pa.from_numpy_dtype(dtype))
    return np.asarray(cells.to_numpy(zero_copy_only=False))
