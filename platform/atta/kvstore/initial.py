"""The initial contents of a table's rows. Random ones are a function of (seed, id of the row, column), so they do not
depend on the table's shards or on the steps in which it grew."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
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


def initialiser_to_dict(init: Initialiser) -> dict[str, Any]:
    """A plain dict for JSON."""
    return {"kind": init.kind, **asdict(init)}


def initialiser_from_dict(value: object) -> Initialiser:
    """Read what ``initialiser_to_dict`` wrote; raises ConfigError."""
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
