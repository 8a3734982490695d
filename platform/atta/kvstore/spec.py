"""Describes a mutable table: its rows, their initial contents and how gradients change them. Sent as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, ClassVar, TypeGuard

import numpy as np

from atta import _native
from atta.errors import ConfigError

RowIds = Callable[[int, int], np.ndarray]
"""Called with two places, gives the ids of the rows from the first to before the second, any integers."""
_BLOCK = 1 << 20
"""Number of values that are made at once. Their ids, and those of float16, which has no kernel, need memory meanwhile."""


@dataclass(frozen=True, slots=True)
class Initialiser:
    """What rows hold before they are written."""

    kind: ClassVar[str]

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raise ConfigError unless a table of this dtype can have such contents."""

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        """Write the rows of ``ids(0, n)`` into ``out`` [n, *row shape]."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Zeros(Initialiser):
    """All zero."""

    kind: ClassVar[str] = "zeros"

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        out.fill(0)


@dataclass(frozen=True, slots=True)
class Constant(Initialiser):
    """The same number everywhere."""

    kind: ClassVar[str] = "constant"
    value: float

    def check(self, dtype: np.dtype[Any]) -> None:
        _check_finite("constant", value=self.value)
        if dtype.kind == "f":
            fits = abs(self.value) <= float(np.finfo(dtype).max)
        elif dtype.kind == "b":
            fits = self.value in (0, 1)
        else:
            limits = np.iinfo(dtype)
            fits = self.value == int(self.value) and int(limits.min) <= self.value <= int(limits.max)
        if not fits:
            raise ConfigError(f"init: a table of {dtype.str} cannot hold {self.value!r}")

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        out.fill(self.value if out.dtype.kind == "f" else int(self.value))


@dataclass(frozen=True, slots=True)
class Uniform(Initialiser):
    """Uniform between ``low`` and ``high``."""

    kind: ClassVar[str] = "uniform"
    low: float
    high: float
    seed: int = 0

    def check(self, dtype: np.dtype[Any]) -> None:
        _check_random(self.kind, dtype, self.seed, low=self.low, high=self.high)
        if self.low > self.high:
            raise ConfigError(f"init: uniform from {self.low!r} to {self.high!r}: the lower bound is the larger one")

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        _fill(out, ids, normal=False, seed=self.seed, a=self.low, b=self.high)


@dataclass(frozen=True, slots=True)
class Normal(Initialiser):
    """Normal with mean ``mean`` and standard deviation ``std``."""

    kind: ClassVar[str] = "normal"
    mean: float
    std: float
    seed: int = 0

    def check(self, dtype: np.dtype[Any]) -> None:
        _check_random(self.kind, dtype, self.seed, mean=self.mean, std=self.std)
        if self.std < 0:
            raise ConfigError(f"init: normal: std {self.std!r} is negative")

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        _fill(out, ids, normal=True, seed=self.seed, a=self.mean, b=self.std)


_KINDS: dict[str, type[Initialiser]] = {kind.kind: kind for kind in (Zeros, Constant, Uniform, Normal)}


def initialiser_from_dict(value: object) -> Initialiser:
    """Read what ``MutableSpec.to_dict`` wrote; raises ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(f"init: {value!r} is not a description of an initialiser")
    fields = {str(key): v for key, v in value.items()}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"init: kind {kind!r} is not one of {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](**fields)
    except TypeError:
        raise ConfigError(f"init: {kind} does not take exactly {', '.join(fields) or 'nothing'}") from None


def numbered_from(first: int) -> RowIds:
    """The ids of rows that are numbered, from ``first`` on."""
    return lambda low, high: np.arange(first + low, first + high)


def _fill(out: np.ndarray, ids: RowIds, *, normal: bool, seed: int, a: float, b: float) -> None:
    step = max(1, _BLOCK // max(1, math.prod(out.shape[1:])))
    for low in range(0, len(out), step):
        place = out[low : low + step]
        block = np.empty(place.shape, dtype=np.float32) if out.dtype == np.float16 else place
        of_block = np.ascontiguousarray(ids(low, low + len(place)), dtype=np.int64)
        _native.fill_rows(block, of_block, normal, seed, a, b)
        if block is not place:
            place[:] = block


def _check_random(kind: str, dtype: np.dtype[Any], seed: object, **numbers: float) -> None:
    if dtype.kind != "f":
        raise ConfigError(f"init: {kind} numbers need a table of floats, not {dtype.str}")
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise ConfigError(f"init: seed {seed!r} is not an integer of 64 bits")
    _check_finite(kind, **numbers)
    # A tenth of the largest number: a normal number is up to nine deviations away, and a range subtracts two bounds.
    for value in numbers.values():
        if abs(value) > float(np.finfo(dtype).max) / 10:
            raise ConfigError(f"init: {kind}: {value!r} is too large for a table of {dtype.str}")


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _check_finite(kind: str, **values: object) -> None:
    for name, value in values.items():
        if not is_finite(value):
            raise ConfigError(f"init: {kind}: {name} {value!r} is not a finite number")


MAX_ROW_BYTES = 1 << 20
MAX_ROWS = 1 << 48
MAX_LEASE_S = 3600.0
MAX_TEXT = 16_384
"""Longest description of a table or of weights, in characters of JSON."""
_MAX_DIMENSIONS = 8
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_)){0,99}")
_DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
STATE_NAMES = {
    "sgd": (),
    "adagrad": ("sum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "row_adam": ("exp_avg", "exp_avg_sq", "steps"),
}
"""Arrays of an optimiser's state, by its kind."""


@dataclass(frozen=True, slots=True)
class OptimiserSpec:
    """How gradients change a table's rows.

    Attributes:
        kind: ``"sgd"``, ``"adagrad"`` or ``"adam"``: torch.optim's SGD (no momentum), Adagrad and SparseAdam.
            ``"row_adam"``: Adam that corrects the bias by the steps of each row, as DGL's SparseAdam does.
        eps: added to denominators (Adagrad, both Adams).
        betas: decay of the means of gradients and of their squares (both Adams).
        lr_decay: the rate of step t is lr / (1 + (t - 1) lr_decay) (Adagrad).
        initial_accumulator_value: initial value of sums of squares (Adagrad).
    """

    kind: str
    lr: float
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in STATE_NAMES:
            raise ConfigError(f"optimiser: kind {self.kind!r} is not one of {', '.join(STATE_NAMES)}")
        for name in ("lr", "eps", "lr_decay", "initial_accumulator_value"):
            check_number(f"optimiser: {name}", getattr(self, name))
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ConfigError(f"optimiser: betas {self.betas!r} are not two numbers")
        for beta in self.betas:
            check_number("optimiser: betas", beta)
            if beta >= 1:
                raise ConfigError(f"optimiser: betas: {beta!r} is not below 1")

    @classmethod
    def sgd(cls, lr: float = 1e-3) -> OptimiserSpec:
        """torch.optim.SGD without momentum and weight decay."""
        return cls("sgd", lr)

    @classmethod
    def adagrad(
        cls, lr: float = 1e-2, *, lr_decay: float = 0.0, eps: float = 1e-10, initial_accumulator_value: float = 0.0
    ) -> OptimiserSpec:
        """torch.optim.Adagrad with its defaults."""
        return cls("adagrad", lr, eps, lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value)

    @classmethod
    def adam(cls, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> OptimiserSpec:
        """torch.optim.SparseAdam with its defaults."""
        return cls("adam", lr, eps, betas)

    @classmethod
    def row_adam(
        cls, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> OptimiserSpec:
        """Adam as if each row were alone: torch.optim.Adam that steps a row only when it has a gradient. A row that is
        used for the first time late makes steps as large as early ones."""
        return cls("row_adam", lr, eps, betas)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names, as in torch, of the arrays that the optimiser keeps. Each has the table's shape."""
        return STATE_NAMES[self.kind]

    @classmethod
    def from_dict(cls, value: object) -> OptimiserSpec:
        """Read what ``dataclasses.asdict`` made, perhaps after a trip through JSON; raises ConfigError."""
        fields = described_fields("optimiser", cls, value, required=("kind", "lr"))
        if isinstance(fields.get("betas"), list):
            fields["betas"] = tuple(fields["betas"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class MutableSpec:
    """A table that is read and written while training goes on.

    Attributes:
        name: letters, digits, dots, dashes and single underscores; at most 100 characters.
        rows: number of rows of the whole table when it is created.
        dtype: numpy dtype string, little endian: bool, int, uint or float, such as ``"<f4"``.
        row_shape: shape of one row, ``()`` for scalars; a row has at most 1 MiB.
        optimiser: how "step" changes rows; float32 tables only. None: no steps.
        init: contents of rows before they are written.
        versioned: whether every row has a version (int64, -1: never written) that "write" sets.
        max_rows: number of rows to which the table may grow; None: it may not grow.
        policy: which owner has which rows. ``"range"``: equal ranges. ``"nodes:TYPE"`` and ``"edges:TYPE"``: one row
            per vertex or edge of a type, at the owner of the vertex or edge.
        lease_s: a table of a job: it is dropped when no client has asked for it for this many seconds. It is in no
            snapshot, and loading one leaves it as it is. None: it stays until it is deleted.
    """

    name: str
    rows: int
    dtype: str = "<f4"
    row_shape: tuple[int, ...] = ()
    optimiser: OptimiserSpec | None = None
    init: Initialiser = field(default_factory=Zeros)
    versioned: bool = False
    max_rows: int | None = None
    policy: str = "range"
    lease_s: float | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        for name in ("rows", "max_rows"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        if isinstance(self.row_shape, tuple):
            object.__setattr__(self, "row_shape", tuple(map(_plain, self.row_shape)))
        self._check_sizes()
        if self.lease_s is not None and (type(self.lease_s) not in (int, float) or not 0 < self.lease_s <= MAX_LEASE_S):
            raise ConfigError(f"table {self.name}: lease_s {self.lease_s!r} must be seconds, at most {MAX_LEASE_S:g}")
        kind, colon, name = self.policy.partition(":") if isinstance(self.policy, str) else ("", "", "")
        if self.policy != "range" and not (kind in ("nodes", "edges") and colon and name):
            raise ConfigError(f"table {self.name}: policy {self.policy!r} is not one of range, nodes:TYPE, edges:TYPE")
        if kind != "range" and self.max_rows is not None and self.max_rows != self.rows:
            raise ConfigError(f"table {self.name}: with policy {self.policy} it has one row each and cannot grow")
        if not isinstance(self.versioned, bool):
            raise ConfigError(f"table {self.name}: versioned {self.versioned!r} is neither true nor false")
        if self.optimiser is not None and self.dtype != "<f4":
            raise ConfigError(f"table {self.name}: optimisers work on float32 ('<f4'), not on {self.dtype!r}")
        if not isinstance(self.init, Initialiser):
            raise ConfigError(f"table {self.name}: init {self.init!r} is none of atta.kvstore.spec")
        self.init.check(np.dtype(self.dtype))

    def _check_sizes(self) -> None:
        if self.dtype not in _DTYPES:
            raise ConfigError(f"table {self.name}: dtype {self.dtype!r} is not one of {', '.join(_DTYPES)}")
        if type(self.rows) is not int or not 0 <= self.rows <= MAX_ROWS:
            raise ConfigError(f"table {self.name}: rows {self.rows!r} is not a number from 0 to {MAX_ROWS}")
        if self.max_rows is not None and (type(self.max_rows) is not int or not self.rows <= self.max_rows <= MAX_ROWS):
            raise ConfigError(
                f"table {self.name}: max_rows {self.max_rows!r} is not a number from {self.rows} to {MAX_ROWS}"
            )
        shape = self.row_shape
        if (
            not isinstance(shape, tuple)
            or len(shape) > _MAX_DIMENSIONS
            or any(type(n) is not int or n < 1 for n in shape)
        ):
            raise ConfigError(f"table {self.name}: row shape {shape!r} is not a tuple of up to {_MAX_DIMENSIONS} sizes")
        if self.row_bytes > MAX_ROW_BYTES:
            raise ConfigError(f"table {self.name}: rows of {self.row_bytes} bytes; at most {MAX_ROW_BYTES}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's values."""
        return np.dtype(self.dtype).itemsize * prod(self.row_shape)

    @property
    def limit(self) -> int:
        """Number of rows that the whole table may have at most."""
        return self.rows if self.max_rows is None else self.max_rows

    def nbytes(self, rows: int) -> int:
        """Bytes of ``rows`` rows: values, versions and the optimiser's state."""
        states = 0 if self.optimiser is None else len(self.optimiser.state_names)
        return rows * (self.row_bytes * (1 + states) + 8 * self.versioned)

    def to_dict(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "row_shape": list(self.row_shape),
            "optimiser": None
            if self.optimiser is None
            else asdict(self.optimiser) | {"betas": list(self.optimiser.betas)},
            "init": {"kind": self.init.kind, **asdict(self.init)},
        }

    @classmethod
    def from_json(cls, text: str) -> MutableSpec:
        """Read ``to_dict`` as JSON; raises ConfigError."""
        return cls.from_dict(read_description("table", text))

    @classmethod
    def from_dict(cls, value: object) -> MutableSpec:
        """Read what ``to_dict`` made, perhaps after a trip through JSON; raises ConfigError."""
        fields = described_fields("table", cls, value, required=("name", "rows"))
        if isinstance(fields.get("row_shape"), list):
            fields["row_shape"] = tuple(fields["row_shape"])
        if fields.get("optimiser") is not None:
            fields["optimiser"] = OptimiserSpec.from_dict(fields["optimiser"])
        if "init" in fields:
            fields["init"] = initialiser_from_dict(fields["init"])
        return cls(**fields)


def check_name(name: object, what: str = "table") -> None:
    """Raise ConfigError unless a table, or a snapshot of tables, may have this name. Names become folders."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} name {name!r}: letters, digits, dots, dashes and single underscores, at most 100 characters"
        )


def read_description(what: str, text: str) -> Any:
    """The value that is described as JSON; raises ConfigError."""
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{what}: the description has {len(text)} characters, at most {MAX_TEXT} are possible")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{what}: the description is not JSON") from None


def described_fields(what: str, cls: type, value: object, *, required: tuple[str, ...]) -> dict[str, Any]:
    """The entries of a dict that describes a ``cls``, a dataclass with slots; raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: {value!r} is not a description")
    names = cls.__slots__  # type: ignore[attr-defined]  # of dataclasses with slots
    unknown = [str(key) for key in value if key not in names]
    missing = [name for name in required if name not in value]
    if unknown or missing:
        raise ConfigError(f"{what}: unknown {', '.join(unknown) or '-'}, missing {', '.join(missing) or '-'}")
    return dict(value)


def _plain(value: object) -> object:
    """An integer of numpy as one of Python, anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def check_number(what: str, value: object) -> None:
    """Raise ConfigError unless a value is a finite number from 0 on."""
    if not is_finite(value) or value < 0:
        raise ConfigError(f"{what} {value!r} is not a finite number from 0 on")
