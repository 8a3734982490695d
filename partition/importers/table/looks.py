"""What a column of a file looks like: an id, a category, numbers, times. Texts are times if one format reads them all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, takewhile
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.partition.graph.exact import inexact
from atta.partition.importers.reading.source import pa, pc
from atta.partition.importers.table import columns
from atta.partition.importers.table.schema import UNITS
from atta.partition.names import check_type_name

_SHOWN = 100
"""A category has at most this many different values."""
_LARGE = 10.0
"""Features with larger numbers than this are scaled: models learn badly from them."""
_DAYS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%b %d %Y", "%b %d, %Y", "%d %b %Y", "%d-%b-%Y", "%B %d %Y", "%B %d, %Y", "%d %B %Y"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%b-%y", "%Y-%m", "%Y/%m", "%m/%Y"),
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%H:%M:%S%z", "%H:%M:%S.%f%z", "%H:%M:%S %z")
_FORMATS = (
    *_DAYS,
    *(day + mark + clock for day, clock, mark in product(_DAYS, _CLOCKS, (" ", "T"))),
    *("%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z"),
)
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = (
    r"\b\d{1,2}([-/.])\d{1,2}\1\d{4}\b|\b\d{4}([-/.])\d{1,2}\2\d{1,2}\b|\b\d{1,2}/\d{1,2}/\d{2}\b|"
    rf"\b{_MONTH}[-. ,]+\d{{1,2}}\b|\b\d{{1,2}}[-. ]+{_MONTH}\b"
)
_NUMBER = r"^(?=.*[,$€£%'])[-+$€£]?\d{1,3}([ ,.']\d{3})*([.,]\d+)?[%€$£]?$"
_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.I)
_DOUBTS = {
    "dates": (re.compile(_DATE, re.I), '"time_format": "%d/%m/%Y" or the like reads them'),
    "numbers": (re.compile(_NUMBER), '"decimal": "," reads 1,5; take other signs away before'),
}
"""Texts that are something else, and what to do."""
_MOST = 0.9
_MOSTLY = 0.5
"""A category with a larger share of empty cells may be what is to be predicted."""
_LABELS = re.compile("(.*_)?(labels?|class|target|category)(_.*)?", re.I)
_LOOKED_AT = 100_000


@dataclass(frozen=True)
class ColumnLook:
    """A column: its sort, as ``category`` says, and the Arrow type of its values; number of cells, and of empty ones; the
    different values, as ``known`` gives them, None of lists and others; the first that comes again. ``at``: where the
    first of ``odd`` stands. ``slip``: the first empty cells, or the first that come again among ids, for people."""

    sort: str
    kind: Any
    count: int
    empty: int
    unique: Any = None
    repeated: Any = None
    at: str = ""
    slip: str = ""

    @classmethod
    def of(cls, name: str, cells: Any) -> ColumnLook:
        """What the cells of a column, a chunked array, look like."""
        sort = columns.category(cells.type)
        if sort in (columns.LISTS, columns.OTHERS):
            return cls(sort, cells.type, len(cells), cells.null_count)
        values = known(name, cells.combine_chunks())
        counts = pc.value_counts(values.drop_null())
        again = pc.index(pc.greater(counts.field(1), 1), True).as_py()
        repeated = None if again < 0 else counts.field(0)[again].as_py()
        return cls(sort, cells.type, len(values), values.null_count, counts.field(0), repeated)

    @property
    def distinct(self) -> int:
        """Number of different values; 0 of lists and others."""
        return 0 if self.unique is None else len(self.unique)

    @property
    def is_id(self) -> bool:
        """Whether every cell has a value of its own."""
        return self.keys is not None and not self.empty and self.distinct == self.count > 0

    @property
    def is_nearly_id(self) -> bool:
        """Whether few cells are empty or have a value that comes again."""
        return self.keys is not None and _MOST * self.count <= self.distinct < self.count

    @cached_property
    def formats(self) -> list[str]:
        """What ``time_format`` may be, if these are times in texts: one, or several if the texts leave that open."""
        return formats_of(self.unique.to_pylist()) if self.sort == columns.TEXT and self.distinct else []

    @property
    def is_time(self) -> bool:
        """Whether these are dates or times for sure."""
        return self.sort == columns.TIMES or len(self.formats) == 1

    @property
    def read_as(self) -> str:
        """How times stand there, for people: the format of texts, unless the file tells what they are."""
        form = self.formats[0] if self.formats else "dates" if pa.types.is_date(self.kind) else "times"
        return f"{form} since 1970" if form in columns.EPOCH.values() else form

    @cached_property
    def doubt(self) -> str | None:
        """What to say of texts that look like dates or numbers, and are not read as such."""
        if self.odd and (self._is_varied or self._most_days):
            return f'{self.lapse}; then name it in a table, not in "ignore"'
        for what, (_, cure) in _DOUBTS.items():
            if self._looks_like(what):
                ways = [f'"time_format": "{one}"' for one in self.formats]
                return (
                    f"looks like {what}, as {self._texts[0]!r}: {' or '.join(ways) + ' reads them' if ways else cure}"
                )
        return None

    @cached_property
    def _texts(self) -> list[str]:
        """Texts that may be something else."""
        return self.unique.to_pylist()[:_LOOKED_AT] if self.sort == columns.TEXT and not self.is_time else []

    def _looks_like(self, what: str) -> bool:
        found = sum(_DOUBTS[what][0].search(one) is not None for one in self._texts)
        return bool(self._texts) and found >= _MOST * len(self._texts)

    @cached_property
    def _most_days(self) -> str | None:
        """The format of most texts, if not of all."""
        texts = self._texts[:_SHOWN] if not self.formats and self._looks_like("dates") else []
        read = {form: sum(columns.time_in(one, form) is not None for one in texts) for form in _DAYS}
        best = max(read, key=read.__getitem__)
        return best if texts and read[best] >= _MOST * len(texts) else None

    @cached_property
    def odd(self) -> list[str]:
        """Texts that are no numbers, or no days, where most are."""
        if form := self._most_days:
            return [one for one in self._texts if columns.time_in(one, form) is None]
        found = [one for one in self._texts if not _PLAIN.fullmatch(one)]
        return found if len(found) < len(self._texts) / 2 else []

    @property
    def lapse(self) -> str:
        """What to say of ``odd``."""
        shown, more = json.dumps(self.odd[:3], ensure_ascii=False), " and others" if len(self.odd) > 3 else ""
        most = f"dates such as {self._most_days}" if self._most_days else "numbers"
        return f'has {most} but for {shown[1:-1]}{more} ({self.at}): "empty": {shown} beside "files" makes such cells empty'

    @property
    def _is_varied(self) -> bool:
        return self.distinct > min(_SHOWN, self.count // 2)

    @property
    def is_category(self) -> bool:
        """Whether few values come again and again."""
        if self.unique is None or self.is_time or self.doubt or self._is_varied:
            return False
        kind = self.unique.type
        return self.sort == columns.TEXT or pa.types.is_integer(kind) or pa.types.is_boolean(kind)

    def may_be_labels(self, name: str) -> str:
        """Why the column may be what is to be predicted; empty: it looks like any other."""
        if self.is_category and self.empty > _MOSTLY * self.count:
            return f"{self.empty / self.count:.0%} of its cells are empty"
        named = self.is_category and _LABELS.fullmatch(name)
        return "its name says so, and as a feature it would give the answer away" if named else ""

    @property
    def words(self) -> list[str]:
        """The different texts, if they are few."""
        return self.unique.to_pylist() if self.sort == columns.TEXT and self.distinct <= _SHOWN else []

    @property
    def has_type_names(self) -> bool:
        """Whether the texts may name types of edges or vertices."""
        try:
            return bool(self.words) and all(check_type_name("relation", value) for value in self.words)
        except ConfigError:
            return False

    @cached_property
    def numbers(self) -> Any:
        """The different numbers."""
        return (
            self.unique.to_numpy(zero_copy_only=False)
            if self.sort == columns.NUMBERS and self.distinct
            else np.zeros(0)
        )

    @property
    def is_mask(self) -> bool:
        """Whether all numbers are 0 or 1."""
        return len(self.numbers) > 0 and bool(np.isin(self.numbers, (0, 1)).all())

    @cached_property
    def keys(self) -> Any:
        """Different values as ids: int64 (also of whole floats) or large_string; None if they cannot be ids."""
        if self.unique is None or pa.types.is_large_string(self.unique.type):
            return self.unique
        fits = pa.types.is_integer(self.unique.type) or pa.types.is_floating(self.unique.type)
        if not fits or not self.distinct or inexact(self.numbers, np.dtype(np.int64)).any():
            return None
        return pa.array(self.numbers.astype(np.int64))

    def share_within(self, other: ColumnLook) -> float:
        """The share of this column's ids that the other has, 0 to 1."""
        if self.keys is None or other.keys is None or self.keys.type != other.keys.type or not len(self.keys):
            return 0.0
        return float(pc.mean(pc.is_in(self.keys, value_set=other.keys)).as_py())

    def rule(self, name: str) -> Any:
        """What the schema says of a column that is a table of its own; None: it is to be ignored."""
        if self.sort in (columns.LISTS, columns.OTHERS) or (
            self.sort == columns.TEXT and not (self.is_category or self.is_time)
        ):
            return None if self.sort != columns.LISTS or self.empty else name
        rule: dict[str, Any] = {"column": name}
        if self.is_time:
            rule |= self._time()
        elif self.sort == columns.TEXT:
            rule["classes"] = True
        if self.empty:
            rule["fill"] = "none" if "classes" in rule else 0
        return rule if len(rule) > 1 else name

    def feature(self, name: str) -> Any:
        """What the schema says of a column of features."""
        if self.sort == columns.TEXT:
            return {"column": name, "onehot": True, **({"fill": "none"} if self.empty else {})}
        rule: dict[str, Any] = {"scale": True} if np.abs(self.numbers).max(initial=0) > _LARGE else {}
        rule |= {"fill": "mean", "known": True} if self.empty else {}
        return {"column": name, **rule} if rule else name

    def _time(self) -> dict[str, str]:
        form = {"time_format": self.formats[0]} if self.formats else {}
        found = columns.times_in(self.unique, self.formats[0]) if form else self.unique
        length = columns.unit_of(found.type if form else self.kind)
        times = found.cast(pa.int64()).to_numpy(zero_copy_only=False)
        for unit in ("s", "ms", "us"):
            if length >= UNITS[unit] or not (times % (UNITS[unit] // length)).any():
                return form if unit == "s" else {**form, "time_unit": unit}
        return {**form, "time_unit": "ns"}


def known(name: str, cells: Any) -> Any:
    """Cells as ``plain`` gives them, empty texts as empty cells."""
    values = columns.plain(name, cells)
    blank = pa.types.is_large_string(values.type) and pc.equal(values, "")
    return pc.if_else(blank, pa.scalar(None, values.type), values)


def formats_of(texts: Sequence[str]) -> list[str]:
    """What ``time_format`` may be, so that all texts are times; one of those that say the same. Several: texts such as
    01/02/2024 do not tell day from month."""
    texts, found = texts[:_LOOKED_AT], dict[Any, str]()
    digits = {len(text) if re.fullmatch("1[0-9]+", text) else 0 for text in texts}
    if len(digits) == 1 and digits <= columns.EPOCH.keys():
        return [columns.EPOCH[digits.pop()]]
    for form in _FORMATS:
        times = tuple(takewhile(bool, (columns.time_in(text, form) for text in texts)))
        if len(times) == len(texts):
            found.setdefault(times, form)
    return list(found.values())
