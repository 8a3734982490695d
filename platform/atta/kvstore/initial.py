"""The initial contents of a table's rows. Random contents are a function of (seed, id of the row, column), so they do
not depend on the table's shards or on the steps in which it grew; see samplers/native/hash.hpp."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeGuard

import numpy as np

from atta.errors import ConfigError
from atta.kvstore.mutable import kernels

RowIds = Callable[[int, int], np.ndarray]
"""Called with two places, gives the ids of the rows from the first to before the second, any integers."""
_BLOCK = 1 << 20
"""Number of values that are made at once. Their ids, and those of float16, which has no kernel, need memory meanwhile."""


@dataclass(frozen=True, slots=True)
class Zeros:
    """All zero."""

    kind: ClassVar[str] = "zeros"

    def check(self, dtype: np.dtype[Any]) -> None:
        """Any dtype can hold it."""

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        """Write the rows of ``ids(0, n)`` into ``out`` [n, *row shape]."""
        out.fill(0)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number everywhere."""

    kind: ClassVar[str] = "constant"
    value: float

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raise ConfigError if the table cannot hold the number."""
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
        """Write the rows of ``ids(0, n)`` into ``out`` [n, *row shape]."""
        out.fill(self.value if out.dtype.kind == "f" else int(self.value))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between ``low`` and ``high``."""

    kind: ClassVar[str] = "uniform"
    low: float
    high: float
    seed: int = 0

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raise ConfigError unless the bounds are numbers in order and the table holds floats."""
        _check_random(self, dtype)
        _check_finite("uniform", low=self.low, high=self.high)
        _check_range("uniform", dtype, self.low, self.high)
        if self.low > self.high:
            raise ConfigError(f"init: uniform from {self.low!r} to {self.high!r}: the lower bound is the larger one")

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        """Write the rows of ``ids(0, n)`` into ``out`` [n, *row shape]."""
        _fill(out, ids, normal=False, seed=self.seed, a=self.low, b=self.high)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with mean ``mean`` and standard deviation ``std``."""

    kind: ClassVar[str] = "normal"
    mean: float
    std: float
    seed: int = 0

    def check(self, dtype: np.dtype[Any]) -> None:
        """Raise ConfigError unless mean and deviation are numbers and the table holds floats."""
        _check_random(self, dtype)
        _check_finite("normal", mean=self.mean, std=self.std)
        _check_range("normal", dtype, self.mean, self.std)
        if self.std < 0:
            raise ConfigError(f"init: normal: std {self.std!r} is negative")

    def fill(self, out: np.ndarray, ids: RowIds) -> None:
        """Write the rows of ``ids(0, n)`` into ``out`` [n, *row shape]."""
        _fill(out, ids, normal=True, seed=self.seed, a=self.mean, b=self.std)


Initialiser = Zeros | Constant | Uniform | Normal
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
        kernels.fill_rows(block, of_block, normal=normal, seed=seed, a=a, b=b)
        if block is not place:
            place[:] = block


def _check_random(init: Uniform | Normal, dtype: np.dtype[Any]) -> None:
    if dtype.kind != "f":
        raise ConfigError(f"init: {init.kind} numbers need a table of floats, not {dtype.str}")
    if type(init.seed) is not int or not 0 <= init.seed < 2**64:
        raise ConfigError(f"init: seed {init.seed!r} is not an integer of 64 bits")


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


def _check_range(kind: str, dtype: np.dtype[Any], *values: float) -> None:
    # A tenth of the largest number: a normal number is up to nine deviations away, and a range subtracts two bounds.
    limit = float(np.finfo(dtype).max) / 10
    for value in values:
        if abs(value) > limit:
            raise ConfigError(f"init: {kind}: {value!r} is too large for a table of {dtype.str}")
