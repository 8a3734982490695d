"""Collects what an import refuses, so that one run names all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from atta.errors import ConfigError, DataError, DiskFullError

__all__ = ["Refusals", "escaped", "quoted"]

_MOST = 20
"""At most this many refusals are named; the others are counted."""
_ROWS = 5
"""At most this many rows of a column are named."""


@dataclass
class _Refusal:
    """Rows of a file that are refused for one reason.

    Attributes:
        accept: what accepts them, or "".
        count: number of rows.
        rows: the first of them, the first row of a file is 1; values: what is there.
    """

    what: str
    accept: str
    count: int = 0
    rows: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = self.what.format(self.values[0] if self.values else "")
        if self.count:
            noun = "row" if self.count == 1 else "rows"
            shown = [f"{row}: {value}" for row, value in zip(self.rows, self.values, strict=False)] or self.rows
            dots = ", ..." if self.count > len(self.rows) else ""
            only = self.count == 1
            text += f" ({noun} {self.rows[0]})" if only else f" ({self.count} {noun}: {_joined(shown)}{dots})"
        return f"{text}; {self.accept}" if self.accept else text


class Refusals:
    """What is refused, and where. ``check`` raises it all as one DataError."""

    def __init__(self, schema: Path) -> None:
        """``schema``: path of the file that says what is wanted."""
        self._schema = schema
        self._found: dict[tuple[str, str, str], _Refusal] = {}
        self._total = 0

    def __bool__(self) -> bool:
        return self._total > 0

    def add(
        self,
        where: Path | str,
        what: str,
        *,
        rows: Sequence[int] | npt.NDArray[Any] = (),
        values: Sequence[Any] = (),
        accept: str = "",
    ) -> None:
        """Add rows of the file ``where``. Rows with the same reason become one refusal.

        Args:
            where: path.
            what: the reason; ``{}`` in it is the first of ``values``.
            rows: positions in the file, from 1.
            values: what the first of ``rows`` hold.
            accept: a sentence about the key of the schema that accepts them.
        """
        key = (str(where), what, accept)
        found = self._found.get(key)
        if found is None:
            self._total += 1
            found = _Refusal(what, accept)
            if len(self._found) < _MOST:
                self._found[key] = found
        found.count += len(rows)
        free = _ROWS - len(found.rows)
        found.rows += [int(row) for row in rows[:free]]
        found.values += [repr(value) for value in values[:free]]

    @contextlib.contextmanager
    def held(self, where: Path | None = None) -> Iterator[None]:
        """Keep an error about the input that is raised in the block, and go on behind it.

        ``where``: the file that it is about if it does not name one.
        """
        try:
            yield
        except DiskFullError:
            raise
        except DataError as error:
            self.add(error.path or where or self._schema, escaped(error.cause))
        except ConfigError as error:
            self.add(where or self._schema, escaped(str(error)))

    def check(self) -> None:
        """Raise DataError if anything was refused."""
        if not self._total:
            return
        found = [(where, str(refusal)) for (where, _, _), refusal in self._found.items()]
        if self._total == 1:
            raise DataError(*found[0])
        listed = "; ".join(f"({n}) {Path(where).name}: {text}" for n, (where, text) in enumerate(found, 1))
        more = f"; and {self._total - len(found)} more" if self._total > len(found) else ""
        raise DataError(self._schema, f"refused are {self._total} things: {listed}{more}")


def escaped(text: str) -> str:
    """``text`` without braces that ``Refusals.add`` would fill in."""
    return text.replace("{", "{{").replace("}", "}}")


def quoted(name: object) -> str:
    """A name of the input in quotes, for ``Refusals.add``."""
    return escaped(repr(name))


def _joined(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items))
