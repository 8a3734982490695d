"""Numbers as text that is short where neighbours are alike (SAT; Google's encoded polyline algorithm format).

A number is rounded to P decimal places, so it becomes an integer. Each row then holds the differences between neighbours.
Differences of *rounded* numbers do not add up errors. Zig-zag maps signed integers to unsigned ones, so that small ones
of either sign are short. They are cut into groups of five bits, the lowest first. A sixth bit says that more groups
follow, and 63 is added to make a printable character.
"""

from __future__ import annotations

import numpy as np

from atta.errors import ConfigError

__all__ = ["MOST_DIGITS", "decode_polyline", "encode_polyline", "polyline_bytes"]

MOST_DIGITS = 9
_BITS, _MORE, _FIRST = 5, 0x20, 63
_LARGEST = 2.0**50
"""Of a rounded number times 10^P: float64 then still tells neighbours apart, and a difference fits 11 groups."""
_MOST_GROUPS = 11


def polyline_bytes(values: np.ndarray, digits: int) -> int:
    """Bytes of ``values`` float [n, d]: for each number one group, and one more for every 5 bits beyond the first 5."""
    return int(_groups(_zigzag(values, digits)).sum())


def encode_polyline(values: np.ndarray, digits: int) -> np.ndarray:
    """uint8 [m] of ``values`` float [n, d], rounded to ``digits`` decimal places.

    Raises:
        ConfigError: a number is not finite, or too large for so many digits.
    """
    left = _zigzag(values, digits)
    groups = _groups(left)
    ends = np.cumsum(groups)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    at = ends - groups
    while len(left):
        more = left >= 1 << _BITS
        out[at] = (left & 31) + np.where(more, _MORE + _FIRST, _FIRST).astype(np.uint64)
        left, at = left[more] >> np.uint64(_BITS), at[more] + 1
    return out


def decode_polyline(encoded: np.ndarray, rows: int, columns: int, digits: int) -> np.ndarray:
    """float64 [rows, columns]. Each number differs from the encoded one by at most half of 10^-digits.

    Rounding it to float32 may add half a unit in its last place. Encoding the result again gives the same bytes.

    Raises:
        ConfigError: the bytes are not those of ``rows * columns`` numbers.
    """
    codes = np.asarray(encoded, dtype=np.uint8)
    if len(codes) and not _FIRST <= int(codes.min()) <= int(codes.max()) < _FIRST + 2 * _MORE:
        raise ConfigError("polyline: a byte is outside the alphabet")
    codes = codes - np.uint8(_FIRST)
    ends = np.flatnonzero(codes < _MORE) + 1
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(ends)]
    lengths = ends - starts
    if len(ends) != rows * columns or (len(codes) and (not len(ends) or ends[-1] != len(codes))):
        raise ConfigError(f"polyline: {len(ends)} whole numbers instead of {rows} rows of {columns}")
    if not len(ends):
        return np.empty((rows, columns))
    if int(lengths.max()) > _MOST_GROUPS:
        raise ConfigError(
            f"polyline: a number has {int(lengths.max())} characters; at most {_MOST_GROUPS} are possible"
        )
    place = np.arange(len(codes)) - np.repeat(starts, lengths)
    groups = (codes & np.uint8(31)).astype(np.uint64) << (place * _BITS).astype(np.uint64)
    coded = np.add.reduceat(groups, starts)
    signed = (coded >> np.uint64(1)).astype(np.int64) ^ -(coded & np.uint64(1)).astype(np.int64)
    rounded: np.ndarray = np.cumsum(signed.reshape(rows, columns), axis=1) / 10.0**digits
    return rounded


def _zigzag(values: np.ndarray, digits: int) -> np.ndarray:
    """uint64 [n * d]: 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ..."""
    scaled = np.rint(np.asarray(values, dtype=np.float64) * 10.0**digits)
    if scaled.size and not np.abs(scaled).max() < _LARGEST:
        raise ConfigError(f"polyline: a number is not finite, or too large for {digits} digits")
    delta: np.ndarray = np.diff(scaled.astype(np.int64), axis=1, prepend=0).reshape(-1)
    coded: np.ndarray = (delta << 1) ^ (delta >> 63)
    return coded.view(np.uint64)


def _groups(coded: np.ndarray) -> np.ndarray:
    """int64 [m]: how many groups of five bits each number has; 0 has one."""
    return np.searchsorted(_LIMITS, coded, side="right") + 1


_LIMITS = np.array([1 << _BITS * k for k in range(1, _MOST_GROUPS)], dtype=np.uint64)
