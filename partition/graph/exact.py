"""Numbers in another dtype: which of them it cannot hold, and features as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError

Array = npt.NDArray[Any]


def as_float32(what: str, values: Array) -> npt.NDArray[np.float32]:
    """``values`` as float32; raises ConfigError if they are no numbers, or a finite one would become an infinity, or a
    whole one another."""
    if values.dtype.kind not in "biuf":
        raise ConfigError(f"{what}: holds {values.dtype}, wanted are numbers")
    if (bad := inexact(values, np.dtype(np.float32))).any():
        lost = values[bad][0]
        raise ConfigError(f"{what}: holds the whole number {lost:.0f}, which float32 rounds to {np.float32(lost):.0f}")
    try:
        with np.errstate(over="raise"):
            return np.asarray(values, dtype=np.float32)
    except FloatingPointError:
        raise ConfigError(f"{what}: holds numbers beyond float32, whose largest is 3.4e38") from None


def inexact(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Mark the numbers that ``dtype`` cannot hold: whole ones that it rounds, and for an integer ``dtype`` fractions.
    Fractions may be rounded to another float. Doubles from 2**53 on count as fractions: they have no more digits."""
    if dtype.kind in "iu" and not np.can_cast(values.dtype, dtype):
        return _outside(values, np.iinfo(dtype))
    if dtype.kind == "f" and values.dtype.kind in "iu":
        return _rounded_integers(values, dtype)
    if dtype.kind == "f" and values.dtype.kind == "f" and not np.can_cast(values.dtype, dtype):
        return _rounded_floats(values, dtype)
    return np.zeros(values.shape, np.bool_)


def _outside(values: Array, limits: np.iinfo[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind == "f":
        # The largest number of int64 is no double, but one more is. To a half it is infinite.
        with np.errstate(invalid="ignore", over="ignore"):
            inside = (values >= float(limits.min)) & (values < float(limits.max) + 1) & (values % 1 == 0)
        return np.asarray(~inside)
    return np.asarray((values < limits.min) | (values > limits.max))


def _rounded_floats(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Mark the whole numbers that a narrower float dtype rounds."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(values)
        large = np.asarray((size > _largest_exact(dtype)) & (size < 2.0**53))
        if not large.any():
            return large
        return np.asarray(large & (values % 1 == 0) & (values.astype(dtype) != values))


def _rounded_integers(values: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    exact, limits = _largest_exact(dtype), np.iinfo(values.dtype)
    if not values.size or (-exact <= int(values.min()) and int(values.max()) <= exact):
        return np.zeros(values.shape, np.bool_)
    with np.errstate(over="ignore"):
        found = values.astype(dtype).astype(np.float64)
    inside = (found >= float(limits.min)) & (found < float(limits.max) + 1)
    return np.asarray(~inside | (np.where(inside, found, 0).astype(values.dtype) != values))


def _largest_exact(dtype: np.dtype[Any]) -> int:
    return 1 << int(np.finfo(dtype).nmant) + 1
