"""What an importer reads from: the user's options, the beginning of a file, a description of a data set, and what a file
states besides tables and edges."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shlex
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError, Errors, blaming
from atta.observe.packages import load
from atta.observe.progress import Progress, Silent
from atta.partition.disk.files import check_regular, open_regular
from atta.partition.graph import GraphWriter
from atta.partition.names import is_table_name

_MESSAGE = 300
Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class _Late:
    """A module that is imported when it is first used, because not everybody has its package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


pa: Any = _Late("pyarrow")
pc: Any = _Late("pyarrow.compute")
arrow_csv: Any = _Late("pyarrow.csv")
arrow_files: Any = _Late("pyarrow.dataset")
parquet: Any = _Late("pyarrow.parquet")


@dataclass(frozen=True)
class ImportOptions:
    """The options of ``import_graph`` that importers look at, and what they say.

    Attributes:
        more: further files that are read after the source.
        dropped: names in ``drop`` that were left out.
        notes: sentences that the user should read.
    """

    undirected: bool = False
    reverse: bool = False
    normalize_features: bool = False
    progress: Progress = field(default_factory=Silent)
    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    more: tuple[Path, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    string_ids: bool = False
    bipartite: bool = False
    dropped: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.undirected and self.reverse:
            raise ConfigError("undirected or reverse: not both, an undirected graph has its reverse edges already")
        if self.normalize_features and "x" in self.rename.values():
            raise ConfigError("normalize_features: divides what the source calls x, not what is renamed to it")

    def is_table_name(self, name: object) -> bool:
        """Whether a node or edge table can be called ``name``, or what it is renamed to."""
        return is_table_name(self.rename.get(str(name), name))

    def refuse(self, where: str | Path, name: object, why: str) -> None:
        """Raise DataError: ``name`` of the source cannot be imported. Return if the user said to leave it out."""
        if str(name) not in self.drop:
            raise DataError(
                where, f"{str(name)!r} is not imported: {why} (--drop {shlex.quote(str(name))} leaves it out)"
            )
        self.dropped.add(str(name))

    def refuse_others(self, folder: Path, pattern: str, known: Collection[str], what: str = "file") -> None:
        """Refuse files in ``folder`` that match ``pattern`` and are not ``known``."""
        for path in sorted(folder.glob(pattern)):
            if path.name not in known:
                self.refuse(folder, path.name, f"the layout has no such {what}")

    def check_dropped(self) -> None:
        """Raise ConfigError for a name to drop that nothing refused has."""
        if unused := sorted(self.drop - self.dropped):
            raise ConfigError(f"--drop {shlex.quote(unused[0])}: the source holds nothing of this name that is refused")


def first_line(error: Exception) -> str:
    """The first line of a library's message, at most 300 printable characters, or the name of the error's class; of text
    that is no UTF-8 also what helps."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    line = re.sub(
        r".*CSV parse error: Row #(\d+)", lambda row: f"row {int(row[1]) - 1}", line
    )  # the first is the header
    cure = "; save the file as UTF-8, as iconv -f latin1 -t utf8 does" if re.search("utf-?8", line, re.I) else ""
    return "".join(letter if letter.isprintable() else "?" for letter in line[:_MESSAGE]) + cure


def unreadable(path: Path, what: str, of: Errors) -> AbstractContextManager[None]:
    """An error ``of`` a library within the block becomes a DataError with its first line."""
    return blaming(DataError, path, what, of=of, say=first_line)


HEAD_BYTES = 64 << 10
"""How much of a file an importer is shown to recognise it."""
_GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def open_content(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, which are decompressed while they are read if it is gzip, whatever its name is. Raises
    DataError: it cannot be opened, or is damaged or cut short where the block reads it."""
    with open_regular(path) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        with unreadable(path, "not readable as gzip", (EOFError, gzip.BadGzipFile, zlib.error)):
            if packed:
                with gzip.open(file) as content:
                    yield cast(BinaryIO, content)
            else:
                yield file


def head_of(path: Path) -> bytes:
    """The first 64 KiB of a file, decompressed; ``b""`` for a folder; raises DataError."""
    if path.is_dir():
        return b""
    with open_content(path) as content:
        return content.read(HEAD_BYTES)


_MOST = 64 << 20
"""Most bytes of a description: those of chunked graphs list each chunk."""
_SHOWN = 200
"""Most letters of a parser's message, which may have several lines."""


def read_description(path: Path, what: str, *needed: str) -> dict[str, Any]:
    """Read the object in a ``.json`` or ``.yaml`` file, which has the keys ``needed``. ``what``: for messages. Raises
    DataError: the file is missing, too long, or holds no such object; ConfigError: it is YAML, and PyYAML is not
    installed."""
    try:
        with open_regular(path) as file:
            content = file.read(_MOST + 1)
    except DataError as error:
        raise DataError(path, f"not {what}: {error.cause}") from None
    if len(content) > _MOST:
        raise DataError(path, f"longer than {_MOST >> 20} MiB: {what} is short")
    language = "YAML" if path.suffix in (".yaml", ".yml") else "JSON"
    try:
        said = json.loads(content) if language == "JSON" else load("reading YAML", "yaml").safe_load(content)
    except ConfigError:
        raise
    except Exception as error:  # parsers raise many types, among them RecursionError
        cause = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise DataError(path, f"not valid {language}: {cause}") from None
    if not isinstance(said, dict) or not set(needed) <= set(said):
        wanted = f"wanted are {', '.join(needed)}" if needed else "it holds no object"
        raise DataError(path, f"not {what}: {wanted}")
    return said


def entries(path: Path, said: Any, key: str, *needed: str) -> list[dict[str, Any]]:
    """The list of objects under a key of ``said``, each with a text under the keys ``needed``; raises DataError."""
    found = said.get(key) if isinstance(said, dict) else None
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise DataError(path, f"{key!r} is no list of objects")
    for entry in found:
        if lost := [name for name in needed if not isinstance(entry.get(name), str)]:
            raise DataError(path, f"an entry of {key!r} has no {lost[0]!r}: {entry}")
    return found


def named_file(folder: Path, name: str) -> Path:
    """The file in ``folder`` that ``name`` means. A path that leads nowhere, because the folder was moved, is looked
    for by its last parts. Raises DataError if there is no such file."""
    parts = Path(name).parts
    for path in (folder / name, *(folder.joinpath(*parts[at:]) for at in range(1, len(parts)))):
        if path.exists():
            check_regular(path)
            return path
    raise DataError(folder / name, "the file is missing")


_LARGEST = 2**63 - 1


def check_numbers(where: str | Path, what: str, values: Array, *, negative: bool = False) -> None:
    """Check that ``values`` [n] are whole numbers that fit into int64; raises DataError naming the first bad value and
    its place. ``negative``: whether numbers below 0 are allowed."""
    if values.ndim != 1:
        raise DataError(where, f"{what}: wanted is a list of numbers, not an array {list(values.shape)}")
    if not values.size:
        return
    if values.dtype.kind not in "iu":
        place = int(np.argmax(~np.isfinite(values))) if values.dtype.kind == "f" else 0
        raise DataError(where, f"{what}: {values[place]} at position {place} ({values.dtype}); wanted are integers")
    if values.dtype.kind == "u" and int(values.max()) > _LARGEST:
        place = int(np.argmax(values > np.uint64(_LARGEST)))
        raise DataError(where, f"{what}: {values[place]} at position {place} is too large: numbers go up to {_LARGEST}")
    if not negative and int(values.min()) < 0:
        place = int(np.argmax(values < 0))
        raise DataError(where, f"{what}: {values[place]} at position {place} is negative")


def check_edge_index(where: str | Path, edge_type: str, index: Array) -> None:
    """Check that an edge index is [2, E] whole numbers from 0 on; raises DataError."""
    if index.ndim != 2 or len(index) != 2:
        raise DataError(where, f"edge_index of {edge_type!r} has the shape {list(index.shape)} instead of [2, E]")
    for rows, side in zip(index, ("source", "destination"), strict=True):
        check_numbers(where, f"edge_index of {edge_type!r}, {side}", rows)


def as_ids(where: str | Path, what: str, values: Array, *, negative: bool = False) -> Ids:
    """Return ``values`` [n] as int64; raises DataError as ``check_numbers`` does."""
    check_numbers(where, what, values, negative=negative)
    return values.astype(np.int64)


def distinct_ids(where: str | Path, what: str, values: Array, count: int) -> Ids:
    """Return ``values`` as the user ids of ``count`` vertices; raises DataError naming what makes them unsuitable."""
    if values.shape != (count,):
        raise DataError(where, f"{what}: {list(values.shape)} numbers for {count} vertices")
    ids = as_ids(where, what, values, negative=True)
    ordered = np.sort(ids)
    if len(twice := np.flatnonzero(ordered[1:] == ordered[:-1])):
        raise DataError(where, f"{what}: the id {ordered[twice[0]]} occurs twice")
    return ids


def offered_ids(where: str | Path, name: str, values: Array | None, count: int, options: ImportOptions) -> Ids | None:
    """Return the tensor ``name`` as user ids, None if there is no such tensor. Refuse it if it cannot be ids."""
    if values is None:
        return None
    try:
        return distinct_ids(where, name, values, count)
    except DataError as error:
        options.refuse(where, name, error.cause)
        return None


def as_mask(where: str | Path, what: str, values: Array) -> Mask:
    """Return ``values`` [n] or [n, k] as booleans; raises DataError if they are neither booleans nor zeros and ones."""
    if values.ndim not in (1, 2):
        raise DataError(where, f"{what}: {list(values.shape)} is neither one value for each vertex nor a row of them")
    if values.dtype.kind not in "biuf" or (values.dtype != bool and not np.isin(values, (0, 1)).all()):
        raise DataError(where, f"{what}: a mask holds truth values, or zeros and ones")
    return values.astype(bool)


def as_masks(where: str | Path, what: str, split: str, values: Array) -> dict[str, Mask]:
    """Return the mask [n] of each split in ``values``: ``split`` of [n]; ``split_0``, ``split_1``, ... of [n, k].
    Raises DataError as ``as_mask`` does."""
    mask = as_mask(where, what, values)
    return {split: mask} if mask.ndim == 1 else {f"{split}_{i}": mask[:, i] for i in range(mask.shape[1])}


def state_classes(out: GraphWriter, where: str | Path, stated: object) -> None:
    """Raise the number of classes to the stated number, if there is one: no vertex may have a label of the highest
    classes. Raises DataError if ``num_classes`` in ``where`` is no number of classes."""
    if stated is None:
        return
    if not isinstance(stated, int | np.integer) or isinstance(stated, bool) or not 0 <= stated <= _LARGEST:
        raise DataError(where, f"'num_classes' is {stated!r}, wanted is a number of classes")
    out.num_classes = max(int(stated), out.num_classes or 0)
