"""What the sub-commands share: option types with units, the ``--json`` writer and progress bars for people."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atta.errors import ConfigError

if TYPE_CHECKING:  # rich takes longer to import than everything else `atta --help` needs
    from rich.console import Console
    from rich.progress import Progress

__all__ = [
    "DURATION",
    "INTS",
    "NAMES",
    "RATE",
    "SIZE",
    "json_option",
    "printer",
    "progress_bars",
    "quiet_option",
    "write_json",
    "write_text",
]

_PIPE_COLUMNS = 160
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zA-Zµ]*)")
_SIZES = {"": 1.0, "b": 1.0, **{f"{p}b": 1000.0**i for i, p in enumerate("kmgt", 1)}}
_SIZES |= {f"{p}ib": 1024.0**i for i, p in enumerate("kmgt", 1)}
_DURATIONS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0, "h": 3600.0}
_RATES = {f"{p}bit": 1000.0**i / 8 for i, p in enumerate(("", "k", "m", "g", "t"))}


class _Quantity(click.ParamType[int | float]):
    """A number with a unit, converted to one unit: bytes, seconds or bytes per second."""

    def __init__(self, name: str, units: Mapping[str, float], example: str, whole: bool, minimum: str = "0") -> None:
        self.name = name
        self._units, self._example, self._whole, self._minimum = units, example, whole, minimum

    def at_least(self, minimum: str) -> _Quantity:
        """Return the same type, refusing less than ``minimum`` (with a unit)."""
        return _Quantity(self.name, self._units, self._example, self._whole, minimum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """Parse ``4GiB``-like text; numbers (defaults) pass through unchanged."""
        if isinstance(value, int | float):
            return value
        amount = self._parse(str(value))
        if amount is None:
            self.fail(f"{value!r} is not a {self.name} such as {self._example}", param, ctx)
        if amount < (self._parse(self._minimum) or 0):
            self.fail(f"{value!r} is less than {self._minimum}", param, ctx)
        return round(amount) if self._whole else amount

    def _parse(self, text: str) -> float | None:
        found = _QUANTITY.fullmatch(text.strip())
        scale = self._units.get(found[2].lower()) if found else None
        if found is None or scale is None or not math.isfinite(amount := float(found[1]) * scale):
            return None
        return amount


class _Listed(click.ParamType[tuple[Any, ...]]):
    """Comma-separated values, as a tuple."""

    def __init__(self, name: str, of: Callable[[str], Any], example: str) -> None:
        self.name = name
        self._of, self._example = of, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Parse ``15,10,5``-like text; tuples (defaults) pass through unchanged."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._of(entry.strip()) for entry in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list such as {self._example}", param, ctx)


def _word(text: str) -> str:
    if not text:
        raise ValueError("empty entry")
    return text


SIZE = _Quantity("size", _SIZES, "4GiB", whole=True)  # -> int, bytes
DURATION = _Quantity("duration", _DURATIONS, "2ms", whole=False)  # -> float, seconds
RATE = _Quantity("rate", _RATES, "1gbit", whole=False)  # -> float, bytes per second
INTS = _Listed("integers", int, "15,10,5")  # -> tuple[int, ...]
NAMES = _Listed("names", _word, "dgl,pyg")  # -> tuple[str, ...]

json_option = click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON; - for stdout.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")


def write_json(target: str | None, document: Mapping[str, Any]) -> None:
    """Write ``document`` to the file ``target`` (all of it or nothing), to standard output for ``-``; None: nowhere.

    Raises:
        ConfigError: the file cannot be written.
    """
    if target is not None:
        write_text("--json", target, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(option: str, target: str, text: str) -> None:
    """Write ``text`` to the file ``target`` that ``option`` names (all of it or nothing), to standard output for ``-``.

    Raises:
        ConfigError: the file cannot be written.
    """
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{option} {target}: cannot write: {error.strerror}") from error


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Progress]:
    """Yield rich progress bars on standard error; they stay invisible when ``quiet`` or not on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty()) as bars:
        yield bars


def printer() -> Console:
    """What reports are printed with: in files and pipes tables get the width they need instead of cut figures."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
