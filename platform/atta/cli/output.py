"""What the sub-commands share: option types with units, files to write, progress bars, tables."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement, measure_renderables
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from atta.errors import ConfigError, blaming
from atta.observe.lastwords import printable
from atta.observe.packages import need
from atta.observe.settings import SIZES, amount_of
from atta.wire.parts import AUTO, NODE_VARIABLES, PART_VARIABLES, as_parts, own_number, parse_parts

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from atta.observe.progress import Progress


class PlainConsole(Console):
    """Shows names, errors and data as they are, such as ``[fd09::1]``, or escaped where a terminal would obey them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> None:
        """Leave it to ``atta.cli.main``; rich would exit here, with code 1."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """As ``rich.console.Console.render_str``: columns become as wide as what is shown."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As ``rich.console.Console.render``, which is also given texts that are none of the console's."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class ReportConsole(PlainConsole):
    """Turns a table that is too wide for the terminal, or prints one record per row, as ``psql`` does by ``\\x auto``."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print what fits as it is, and wide tables turned or as records."""
        super().print(*map(self._fitting, objects), **options)

    def _fitting(self, shown: Any) -> Any:
        """``shown`` with something narrower in place of the tables that do not fit, also those of a group."""
        if isinstance(shown, Group):
            return Group(*map(self._fitting, shown.renderables))
        if not isinstance(shown, Table) or self._needed(shown)[1] <= self.width:
            return shown
        if (spare := self.width - self._needed(shown)[0]) >= 0:
            self._share_out(spare, shown.columns)
            return shown
        tries = (turned(shown, most) for most in range(self.width // 4, int(shown.row_count > 1), -1))
        tables: list[Table] = next((t for t in tries if all(self._needed(one)[1] <= self.width for one in t)), [])
        return Group(*tables) if tables else records(shown)

    def _needed(self, *shown: RenderableType) -> Measurement:
        # The width without a word cut, and without a line broken.
        return measure_renderables(self, self.options.update(width=10_000), shown)

    def _share_out(self, spare: int, columns: Sequence[Column]) -> None:
        # Rich would take all that lacks from the widest columns, and cut their words.
        needed = [(self._needed(column.header, *column.cells).clamp(column.min_width), column) for column in columns]
        needed.sort(key=lambda of: of[0].span)
        for left, ((least, most), column) in zip(range(len(needed), 0, -1), needed, strict=True):
            column.width = min(most, least + spare // left)
            spare -= column.width - least


def turned(table: Table, most: int) -> list[Table]:
    """Tables that have the rows of ``table`` as columns, at most so many each."""
    rows, found = list(zip(*(column.cells for column in table.columns), strict=True)), []
    for first in range(0, len(rows), most):
        heads, *lines = zip((column.header for column in table.columns), *rows[first : first + most], strict=True)
        found.append(Table(*heads, title=None if first else table.title))
        for line in lines:
            found[-1].add_row(*line)
    return found


def records(table: Table) -> Group:
    """``table`` with one line per cell that is not empty: the column's header and the cell."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for row, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        if row:
            shown.add_row("", "")
        for column, cell in zip(table.columns, cells, strict=True):
            if cell != "":
                shown.add_row(column.header, cell)
    return Group(*([table.title] if table.title else []), shown)


_PIPE_COLUMNS = 160
_DURATIONS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATIONS |= {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
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
        """Parse text such as ``4GiB``. Numbers, which are defaults, pass through unchanged."""
        if isinstance(value, int | float):
            return value
        amount = amount_of(str(value), self._units)
        if amount is None:
            self.fail(f"{value!r} is not a {self.name} such as {self._example}", param, ctx)
        if amount < (amount_of(self._minimum, self._units) or 0):
            self.fail(f"{value!r} is less than {self._minimum}", param, ctx)
        return round(amount) if self._whole else amount


class _Listed(click.ParamType[tuple[Any, ...]]):
    def __init__(self, name: str, of: Callable[[str], Any], example: str) -> None:
        self.name = name
        self._of, self._example = of, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Parse text such as ``15,10,5``. Tuples, which are defaults, pass through unchanged."""
        if isinstance(value, tuple):
            return value
        try:
            # A comma before KEY= belongs to an entry with settings: ldg:passes=2,order=bfs.
            return tuple(self._of(entry.strip()) for entry in re.split(r",(?!\s*\w+=)", str(value)))
        except ValueError:
            self.fail(f"{value!r} is not a list such as {self._example}", param, ctx)


def _word(text: str) -> str:
    if not text:
        raise ValueError("empty entry")
    return text


SIZE = _Quantity("size", SIZES, "4GiB", whole=True)  # -> int, bytes
DURATION = _Quantity("duration", _DURATIONS, "2ms", whole=False)  # -> float, seconds
MILLISECONDS = _Quantity("duration", {unit: 1e3 * s for unit, s in _DURATIONS.items()}, "2ms", whole=False)  # -> float
RATE = _Quantity("rate", _RATES, "1gbit", whole=False)  # -> float, bytes per second
INTS = _Listed("integers", int, "15,10,5")  # -> tuple[int, ...]
NUMBERS = _Listed("numbers", float, "1,2.5,10")  # -> tuple[float, ...]
NAMES = _Listed("names", _word, "dgl,pyg")  # -> tuple[str, ...]


class Parsed(click.ParamType[Any]):
    """What ``read`` makes of a text, or of a default; it raises ConfigError."""

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what was read."""
        try:
            return self._read(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def _named_columns(value: str | dict[str, str]) -> dict[str, str]:
    """Pairs of a name and the column that has it, from text such as ``src=a,dst=b``. Dictionaries, which are defaults, pass
    through unchanged."""
    if isinstance(value, dict):
        return value
    pairs = [entry.partition("=") for entry in value.split(",")]
    found = {name.strip(): column.strip() for name, _, column in pairs}
    if len(found) < len(pairs) or not all(name and column for name, column in found.items()):
        raise ConfigError(f"{value!r} is not a list such as src=a,dst=b")
    return found


def _partitions(value: str | range) -> range:
    """Consecutive partitions from text such as ``0``, ``0-2`` or ``0,1,2``, or ``auto`` for the one that the environment
    tells. Ranges pass through unchanged."""
    if isinstance(value, range):
        return value
    if value == AUTO:
        return as_parts([own_number(os.environ, socket.gethostname(), PART_VARIABLES)])
    return parse_parts(value)


def _node_rank(value: Any) -> int:
    """The number of a machine, or ``auto`` for the one that the environment tells."""
    if value == AUTO:
        return own_number(os.environ, socket.gethostname(), NODE_VARIABLES)
    return int(click.INT.convert(value, None, None))


COLUMNS = Parsed("columns", _named_columns)  # -> dict[str, str]
PARTS = Parsed("partitions", _partitions)  # -> range
NODE_RANK = Parsed("integer", _node_rank)  # -> int


class _ToWrite(click.ParamType[str]):
    """A file that the command will write at its end. It is refused before any work if it cannot be written."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path as it is; ``-`` is standard output."""
        target = str(value)
        if target != "-":
            option = param.opts[0] if param is not None else target
            _check_file(option, Path(target))
        return target


class _Picture(_ToWrite):
    name = "picture"
    _SUFFIXES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps", ".ps")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path; also refuse an unknown kind of picture, and a missing matplotlib."""
        need("--plot", "matplotlib")
        if Path(value).suffix.lower() not in self._SUFFIXES:
            self.fail(f"{value!r} is not a picture such as figure.png ({', '.join(self._SUFFIXES)})", param, ctx)
        return super().convert(value, param, ctx)


def _check_file(option: str, path: Path) -> None:
    with blaming(ConfigError, f"{option} {path}"):  # as of a folder that may not be entered
        if path.is_dir():
            raise ConfigError(f"{option} {path}: it is a folder; wanted is the name of a file")
        if path.exists() and not os.access(path, os.W_OK):
            raise ConfigError(f"{option} {path}: the file is not writable")
        if not path.exists() or path.is_file():
            _check_writable(option, path, path.parent)


def check_folder(option: str, path: str | Path) -> None:
    """Check that the folder ``path``, which need not exist, can be written to. Raises ConfigError, which names ``option``."""
    if "://" in str(path):
        return  # object storage, which is tried when it is used
    folder = Path(path)
    with blaming(ConfigError, f"{option} {folder}"):
        _check_writable(option, folder, next((p for p in (folder, *folder.absolute().parents) if p.exists()), folder))


def _check_writable(option: str, path: Path, folder: Path) -> None:
    """Check that files can be made in ``folder``, by making one: permissions do not tell everything."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "there is no such folder"
        raise ConfigError(f"{option} {path}: {folder}: {problem}")
    with blaming(ConfigError, f"{option} {path}: {folder}: cannot be written to"), tempfile.TemporaryFile(dir=folder):
        pass


TO_WRITE = _ToWrite()

json_option = click.option(
    "--json",
    "json_file",
    type=TO_WRITE,
    is_flag=False,
    flag_value="-",
    metavar="FILE",
    help="Write the figures as JSON; no FILE: to stdout.",
)
cluster_option = click.option("--cluster", "target", required=True, help="Cluster file, or host:port,host:port.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")


def refuse_given(options: Collection[str], why: str) -> None:
    """Refuse ``options`` (names of arguments) that somebody gave, whatever their values. ``why`` follows them."""
    context = click.get_current_context()
    given = [
        "/".join(option.opts + option.secondary_opts)
        for option in context.command.params
        if option.name in options and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)}: {why}")


def plot_option(what: str) -> Callable[[Any], Any]:
    """The option ``--plot``; ``what`` begins with "Draw"."""
    return click.option("--plot", type=_Picture(), metavar="FILE.png", help=what)


def write_json(target: str | None, document: Mapping[str, Any], *, line: bool = False) -> None:
    """Write ``document`` to the file ``target``, completely or not at all, or as its last ``line``; ``-``: to standard
    output; None: nowhere. Raises ConfigError: the file cannot be written."""
    text = json.dumps(document, indent=None if line else 1, allow_nan=False) + "\n"
    if target is not None and target != "-" and line:
        _write("--json", target, Path(target), text, append=True)
    elif target is not None:
        write_text("--json", target, text)


def write_text(option: str, target: str, text: str) -> None:
    """Write ``text`` to the file ``target`` that ``option`` names, completely or not at all; ``-``: to standard output.
    Raises ConfigError: the file cannot be written; DiskFullError: there is no space for it; nothing is left behind."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    if path.exists() and not path.is_file():  # a pipe or a device stays what it is
        _write(option, target, path, text)
        return
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(option, target, partial, text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # it has its final name, unless writing failed


def _write(option: str, target: str, path: Path, text: str, *, append: bool = False) -> None:
    try:
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        from atta.partition.disk.staging import disk_full

        raise disk_full(target, error) or ConfigError(f"{option} {target}: cannot write: {error.strerror}") from error


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Bars]:
    """Yield rich progress bars on standard error. They are invisible if ``quiet`` or not on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    stage = TextColumn("{task.description:<28}", markup=False)
    columns = stage, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=PlainConsole(stderr=True), disable=quiet or not sys.stderr.isatty()) as bars:
        yield bars


def printer() -> Console:
    """A console for reports. In files and pipes there is room for wide tables, unless COLUMNS is set."""

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return ReportConsole(width=width)


def teller(quiet: bool) -> Callable[[str], None]:
    """Prints what a command does on standard error, or nothing if ``quiet``."""

    return PlainConsole(stderr=True, quiet=quiet).print


def echo(text: str, *, err: bool = False) -> None:
    """Print a line as ``PlainConsole`` would, without loading rich. ``err``: on standard error."""
    click.echo(printable(text), err=err)


def need_torch(what: str, *, quiet: bool = False) -> None:
    """Check that ``what`` has its packages, and say on a terminal that they are loaded. ConfigError: install them."""
    need(what, "torch", "torch_geometric")
    if not quiet:
        tell("loading PyTorch")


def tell(text: str) -> None:
    """Say on a terminal what takes a while now, before which nothing else can be said."""
    if sys.stderr.isatty():
        echo(text, err=True)


overwrite_option = click.option("--overwrite", is_flag=True, help="Replace DST if it is a folder that Atta wrote.")


class _RichProgress:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: Any = None

    def stage(self, name: str, total: int | None) -> None:
        self.finish()
        self._task = self._bars.add_task(name, total=total)

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[-1].total
            self._bars.update(self._task, total=total or 1, completed=total or 1)


@contextmanager
def work_progress(quiet: bool) -> Iterator[Progress]:
    """Yield a progress receiver. It shows bars on a terminal, and nothing elsewhere."""
    with progress_bars(quiet) as bars:
        receiver = _RichProgress(bars)
        yield receiver
        receiver.finish()


def say(quiet: bool, text: str) -> None:
    """Print, unless ``quiet``."""
    if not quiet:
        echo(text)


def size(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
