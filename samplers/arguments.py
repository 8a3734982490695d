"""Checks of users' arguments. Every check raises a ConfigError that names the argument and its value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from atta.errors import ConfigError, blaming

_INT64 = np.iinfo(np.int64)


def whole(what: str, value: object, least: int, most: int | None = None) -> int:
    """``value`` as an int. It must be a whole number (not a bool) from ``least`` to ``most`` (None: no upper bound)."""
    if not _is_a(value, Integral) or not least <= int(value) or (most is not None and int(value) > most):  # type: ignore[call-overload]
        bounds = f"at least {least}" if most is None else f"{least} to {_written(most)}"
        raise ConfigError(f"{what} {_plain(value)!r}: must be a whole number, {bounds}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def number(what: str, value: object, words: str = "a number", *, above: float = -math.inf) -> float:
    """``value`` as a float. It must be a finite number (not a bool) above ``above``. ``words`` tell the user what it
    must be."""
    if not _is_a(value, Real) or not math.isfinite(value) or not value > above:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{what} {_plain(value)!r}: must be {words}")
    return float(value)  # type: ignore[arg-type]


def flag(what: str, value: object) -> bool:
    """``value`` as a bool: True, False, 1 or 0."""
    if not isinstance(value, bool | np.bool_ | int) or value not in (0, 1):
        raise ConfigError(f"{what} {_plain(value)!r}: must be True or False")
    return bool(value)


def names(what: str, given: object) -> list[str]:
    """``given`` as a list of names. A string is a single name."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigError(f"{what} {given!r}: must be a name or a list of names")
    found = list(given)
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"{what}: {name!r} is not a name")
    return found


def integers(what: str, given: Any) -> np.ndarray:
    """``given`` as contiguous int64 of the same shape. An array without elements may be of any type. Raises
    ConfigError: a number is not whole, or int64 cannot hold it: the conversion would change it."""
    with blaming(ConfigError, f"{what}: must be integers", of=(TypeError, ValueError, OverflowError)):
        array = np.asarray(given)
    if array.size and array.dtype.kind not in "iu":
        for value in np.asarray(given, dtype=object).flat:  # numpy turns integers that are too large into floats
            if _is_a(value, Integral):
                _check_fits(what, int(value))
        odd = next((value for value in array.flat if not _is_whole(value)), array.flat[0])
        raise ConfigError(f"{what}: must be integers, not {array.dtype} such as {_plain(odd)!r}")
    if array.size and array.dtype.kind == "u":
        _check_fits(what, int(array.max()))
    return np.ascontiguousarray(array, dtype=np.int64).reshape(array.shape)


def check_fan_out(where: str, edge_type: str, count: object, bound: int) -> int:
    """Return ``count`` if it is an integer in -1..bound. Otherwise raise a ConfigError that begins with ``where``."""
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise ConfigError(f"{where}: fan-out {count!r} of edge type {edge_type!r} is not an integer")
    if not -1 <= int(count) <= bound:
        raise ConfigError(
            f"{where}: fan-out {count} of edge type {edge_type!r} must lie in -1..{bound} (-1 = all, 0 = skip)"
        )
    return int(count)


def fan_outs_of(given: object) -> list[object]:
    """The fan-outs of one edge type, hop by hop, unchecked. Raises ConfigError if ``given`` is not a list of them."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(plain, str | bytes) or not isinstance(plain, Iterable):
        raise ConfigError(f"num_neighbors {plain!r}: must list a fan-out for every hop")
    return list(plain)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown ``name``: the nearest known name."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _check_fits(what: str, value: int) -> None:
    if not _INT64.min <= value <= _INT64.max:
        raise ConfigError(f"{what}: {value} is too large for an int64, the widest ids that there are")


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool | np.bool_)


def _is_whole(value: object) -> bool:
    return _is_a(value, Real) and value == value // 1  # type: ignore[operator]


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _written(most: int) -> str:
    return f"2**{(most + 1).bit_length() - 1} - 1" if most > 1 << 24 and (most + 1).bit_count() == 1 else str(most)
