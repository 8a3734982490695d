"""The costs of mini-batches on one machine: the input of a simulation, a JSON file that people can read and edit.
docs/internals/simulator.md lists the fields. ``load_profile`` names a wrong field and guesses nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from atta.errors import ConfigError, DataError, blaming, known_name
from atta.partition.disk.staging import StagedFile
from atta.samplers.dag.plan import Reduce

FORMAT, VERSION = "atta-profile", 3
LOCAL_KINDS = ("seed", "neighborhood", "join", "feature", "end")
REMOTE_KINDS = ("neighborhood", "feature")


def leaves_home(aggregate: str) -> bool:
    """Whether the last hop's vertices that a batch's own machine holds stay out of the batch: their rows are read where
    they lie."""
    return aggregate not in {"", "gcn"}


@dataclass(frozen=True)
class Linear:
    """CPU time: microseconds per task or request, plus microseconds per unit of ``Task.cost``."""

    fixed_us: float = 0.0
    us_per_unit: float = 0.0

    def at(self, units: float) -> float:
        """Microseconds of a task of this cost."""
        return self.fixed_us + self.us_per_unit * units

    def times(self, ratio: float) -> Linear:
        """Tasks that do so many times as much per unit."""
        return Linear(self.fixed_us, self.us_per_unit * ratio)


@dataclass(frozen=True)
class Remote:
    """A request to one owner. A remote task sends one to every owner that it concerns, so its cost grows with them.
    Units are those of ``Task.cost`` that no cache has answered."""

    request_bytes: float = 0.0  # per unit
    answer_bytes: float = 0.0  # per unit
    serve: Linear = Linear()  # at the owner, per request
    receive: Linear = Linear()  # at the daemon that asks, per answer


@dataclass(frozen=True)
class LoopCosts:
    """CPU microseconds on a daemon's event loop. It does one thing at a time."""

    batch_us: float = 0.0  # per batch: launch and hand-over
    task_us: float = 0.0  # per task of the daemon's own batches, however many owners it asks
    request_us: float = 0.0  # per request that it serves; 0: threads serve them without the interpreter
    answer_us: float = 0.0  # per answer that it receives; 0: as above
    us_per_byte: float = 0.0  # of the answers to a task, when they are all there
    session_us: float = 0.0  # per session: one is opened per epoch


@dataclass(frozen=True)
class HopSize:
    """New vertices of a hop: mean number per batch, and the share that the batch's own machine holds."""

    new: float
    home: float = 1.0


@dataclass(frozen=True)
class Side:
    """The edges that expanded vertices sample, either vertices of the batch's own machine or vertices of others."""

    edges: tuple[float, ...]
    """Entry i: mean edges per vertex for the fan-out i + 1; the last entry: as measured."""
    home: float = 0.0
    """Share of these edges that lead to the batch's own machine."""


@dataclass(frozen=True)
class Draw:
    """A hop from the vertices that the batch's own machine holds, and from those of others."""

    own: Side
    other: Side


@dataclass(frozen=True)
class Profile:
    """Batches of one loader, and the costs of their tasks. Raises ConfigError if a figure makes no sense."""

    batch_size: int
    fan_outs: tuple[int, ...]
    hops: tuple[HopSize, ...]
    """New vertices of the seeds (hop 0), then of every hop."""
    local: Mapping[str, Linear]
    """CPU time by task kind (``LOCAL_KINDS``). Kinds left out take no time."""
    remote: Mapping[str, Remote] = field(default_factory=dict)
    """Requests by task kind (``REMOTE_KINDS``)."""
    loop: LoopCosts = LoopCosts()
    """CPU time on the event loop. It comes on top of ``local``, ``remote`` and ``batch_us``, which other threads
    spend."""
    parts: int = 1
    """Number of partitions for which the shares of ``hops`` hold; 1: for any number. With 1, a share of 1 beyond the
    seeds says nothing about a cut: on several machines such vertices lie at random."""
    placement: tuple[tuple[float, ...], ...] = ()
    """[parts][parts]: remote vertices of a batch of one machine that another machine holds, divided by the mean number
    of remote vertices of a batch. Empty: all are equal. Used only for as many machines as were measured."""
    spread: float = 0.0
    """Standard deviation of the logarithm of a batch's size."""
    degree: float = 1.0
    """Mean in-degree of a vertex that is expanded at home, for the costs of local tasks."""
    mean_degree: float = 1.0
    """Mean in-degree of the graph. A daemon assumes it for the vertices of others."""
    row_bytes: float = 0.0
    """Bytes of table rows fetched per vertex."""
    batch_bytes: float = 0.0
    """Size of a finished batch in bytes."""
    batch_us: float = 0.0
    """CPU microseconds per batch outside tasks and event loop: the consumer's thread, transport, hand-over."""
    session_us: float = 0.0
    """CPU microseconds per session outside the event loop."""
    wake_us: float = 0.0
    """How long a thread that sleeps takes to run when it gets work while cores are idle, in microseconds. It needs no CPU
    time meanwhile."""
    timer_us: float = 0.0
    """How much too late an event loop's timers end, in microseconds."""
    crowding: float = 1.0
    """How many times as much CPU time everything took because all parts shared the cores of the machine measured. On
    machines of their own it is divided out."""
    cache_hit: float = 0.0
    """Share of the remote rows that the cache has answered. Where a cache follows batches, or batches resemble each other,
    also those that other batches brought: there is no ``repeats`` then."""
    repeats: tuple[float, ...] = ()
    """Entry i: number of remote vertices that i + 1 of ``len(repeats)`` batches of one machine had. Empty: unknown;
    then batches share nothing."""
    draws: tuple[Draw, ...] = ()
    """Sampled edges hop by hop. With them other batch sizes and fan-outs are computed from how often vertices are
    reached twice. Empty: unknown."""
    vertices: tuple[float, ...] = ()
    """Number of vertices of a machine, and of all others. It goes with ``draws``."""
    aggregate: str = ""
    """What became of the last hop's rows, as loaders name it; empty: they came."""
    summed: float = 1.0
    """Number of rows and sums that were asked for in place of each remote row of the last hop that no cache had."""
    window: int = 0
    """Batches that daemons sampled ahead of fetching. What a cache has depends on it."""
    disk_reads: float = 0.0
    """Reads from the disk for each byte of table rows fetched at home; those for in-edges count, too."""
    disk_rate: float = 0.0
    """Such reads a second while a thread waited for them. It goes with ``disk_reads``."""
    epoch_seeds: int = 0
    """Number of seeds of an epoch, all machines together; 0 = unknown."""
    cores: int = 1
    """Number of cores of the machine measured."""
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_numbers(self, "")
        for name in ("batch_size", "parts", "cores"):
            _demand(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for fan_out in self.fan_outs:
            _demand(fan_out == -1 or fan_out > 0, "fan_outs", fan_out, "must be positive, or -1 for all neighbours")
        wanted = len(self.fan_outs) + 1
        _demand(
            len(self.hops) == wanted, "hops", f"{len(self.hops)} long", f"must have {wanted} entries: seeds, then hops"
        )
        square = all(len(row) == len(self.placement) for row in self.placement)
        _demand(
            square and len(self.placement) in {0, self.parts},
            "placement",
            "uneven",
            "must have a row and a column per part",
        )
        _demand(not self.disk_reads or self.disk_rate > 0, "disk_rate", self.disk_rate, "must be positive")
        _demand(self.crowding >= 1, "crowding", self.crowding, "must be at least 1")
        _demand(0 <= self.cache_hit <= 1, "cache_hit", self.cache_hit, "must lie in [0, 1]")
        sums = [reduce.name.lower() for reduce in Reduce if reduce]
        _demand(self.aggregate in {"", *sums}, "aggregate", self.aggregate, f"must be one of {', '.join(sums)}")
        for i, hop in enumerate(self.hops):
            _demand(0 <= hop.home <= 1, f"hops[{i}].home", hop.home, "must lie in [0, 1]")
        self._check_draws()
        for what, given, known in (("local", self.local, LOCAL_KINDS), ("remote", self.remote, REMOTE_KINDS)):
            for kind in given:
                known_name(f"task kind in {what!r}", kind, known)

    def _check_draws(self) -> None:
        for name, wanted in (("draws", len(self.fan_outs)), ("vertices", 2)):
            found = len(getattr(self, name))
            _demand(found == (wanted if self.draws else 0), name, f"{found} long", "must have an entry per hop or side")
        for i, draw in enumerate(self.draws):
            for name, side in (("own", draw.own), ("other", draw.other)):
                _demand(len(side.edges) > 0, f"draws[{i}].{name}.edges", "empty", "must have an entry per fan-out")
                _demand(side.home <= 1, f"draws[{i}].{name}.home", side.home, "must lie in [0, 1]")


def load_profile(path: str | Path) -> Profile:
    """Read a profile. DataError names a field that is missing or unknown or makes no sense."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot read the profile: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise DataError(path, f'is not a profile: "format" must be "{FORMAT}"')
    if (version := document.pop("version", None)) != VERSION:
        raise DataError(path, f"is a profile of version {version!r}, this release reads version {VERSION}")
    with blaming(DataError, path, of=ConfigError):
        made = _value(Profile, document, "")
    assert isinstance(made, Profile)
    return made


def save_profile(path: str | Path, profile: Profile) -> None:
    """Write a profile. Raises ConfigError: the file cannot be written; DiskFullError: there is no space left."""
    document = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(profile)}
    with StagedFile(path, overwrite=True) as partial:
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _demand(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, {rule}")


def _check_numbers(value: Any, name: str) -> None:
    """Check that no figure of a profile is negative or infinite, except fan-outs."""
    if isinstance(value, int | float):
        _demand(math.isfinite(value) and value >= 0, name, value, "must be finite and not negative")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            if f.name not in {"fan_outs", "measured"}:
                _check_numbers(getattr(value, f.name), f"{name}.{f.name}" if name else f.name)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _check_numbers(entry, f"{name}.{key}")
    elif isinstance(value, tuple):
        for i, entry in enumerate(value):
            _check_numbers(entry, f"{name}[{i}]")


_types = cache(typing.get_type_hints)


def _value(kind: Any, given: Any, name: str) -> Any:
    """The JSON value ``given`` as a value of type ``kind``. ``name``: its place in the file."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _record(kind, given, name)
    if origin is tuple:
        entry = typing.get_args(kind)[0]
        _demand(isinstance(given, list), name, _short(given), "must be a list")
        return tuple(_value(entry, v, f"{name}[{i}]") for i, v in enumerate(given))
    if origin is not None:  # a mapping
        _demand(isinstance(given, dict), name, _short(given), "must be an object")
        entry = typing.get_args(kind)[1]
        return given if entry is Any else {k: _value(entry, v, f"{name}.{k}") for k, v in given.items()}
    if kind is str:
        _demand(isinstance(given, str), name, _short(given), "must be a text")
        return given
    whole = isinstance(given, int) and not isinstance(given, bool)
    if kind is int:
        _demand(whole, name, _short(given), "must be a whole number")
        return given
    _demand(whole or isinstance(given, float), name, _short(given), "must be a number")
    return float(given)


def _record(kind: Any, given: Any, name: str) -> Any:
    _demand(isinstance(given, dict), name or "the profile", _short(given), "must be an object")
    fields, types = dataclasses.fields(kind), _types(kind)
    inside = f" of {name}" if name else ""
    for key in given:
        known_name(f"field{inside}", key, types)
    for f in fields:
        if f.name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"field {f.name!r}{inside} is missing")
    return kind(**{k: _value(types[k], v, f"{name}.{k}" if name else k) for k, v in given.items()})


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
