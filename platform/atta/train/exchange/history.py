"""The rows of the last synchronisations, kept in few bytes.

Polyline is text that is short where neighbours are alike (SAT; Google's encoded polyline algorithm format). A number is
rounded to P decimal places, so it becomes an integer. Each row then holds the differences between neighbours. Differences
of *rounded* numbers do not add up errors. Zig-zag maps signed integers to unsigned ones, so that small ones of either
sign are short. They are cut into groups of five bits, the lowest first. A sixth bit says that more groups follow, and 63
is added to make a printable character.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from atta.errors import ConfigError, UnknownNameError
from atta.train.exchange.codecs import ROW_CODECS, FixedCodec


class History:
    """The last ``count`` versions of some rows [n, d] of float32, each encoded when it comes."""

    def __init__(self, rows: int, columns: int, count: int, codec: RowCodec) -> None:
        self._size, self._codec = (rows, columns), codec
        self._kept: deque[tuple[int, np.ndarray]] = deque(maxlen=count)

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded rows."""
        return sum(encoded.nbytes for _, encoded in self._kept)

    def append(self, values: torch.Tensor, version: int) -> None:
        """Add ``values`` [n, d]; the oldest version leaves if there are more than are kept.

        Raises:
            ConfigError: they are of another size, or not newer than the last ones.
        """
        if tuple(values.shape) != self._size:
            raise ConfigError(f"history: rows are {list(values.shape)}, not {list(self._size)}")
        if self._kept and version <= self._kept[-1][0]:
            raise ConfigError(f"history: version {version} comes after version {self._kept[-1][0]}")
        self._kept.append((version, self._codec.encode(values.detach().cpu().numpy())))

    def state(self) -> list[tuple[int, torch.Tensor]]:
        """What a checkpoint saves: versions, and encoded rows uint8 [m]."""
        return [(version, torch.from_numpy(encoded)) for version, encoded in self._kept]

    def load_state(self, state: list[tuple[int, torch.Tensor]]) -> None:
        """Become what ``state`` saved. Raises ConfigError if it is the state of other rows."""
        for _, encoded in state:
            self._codec.decode(encoded.numpy(), *self._size)
        self._kept.clear()
        self._kept.extend((version, encoded.numpy()) for version, encoded in state)

    def window(self) -> torch.Tensor:
        """All that is kept, the oldest first: [count, n, d]. While fewer versions have come, the oldest one is repeated.

        Raises ConfigError before the first one.
        """
        if not self._kept:
            raise ConfigError("history: no rows have come yet")
        values = [torch.from_numpy(self._codec.decode(encoded, *self._size)) for _, encoded in self._kept]
        return torch.stack(values[:1] * ((self._kept.maxlen or 0) - len(values)) + values)


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


@dataclass(frozen=True)
class PolylineCodec:
    """Numbers rounded to ``digits`` decimal places, see ``encode_polyline``."""

    digits: int

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Raises ConfigError for numbers that are not finite or too large."""
        return encode_polyline(values, self.digits)

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Raises ConfigError for bytes of another number of them."""
        return decode_polyline(encoded, rows, columns, self.digits).astype(np.float32)


RowCodec = FixedCodec | PolylineCodec


def row_codec(name: str) -> RowCodec:
    """The codec of that name: ``none``, ``fp16``, ``bf16``, ``int8`` or ``polyline:P`` with P digits.

    Raises:
        UnknownNameError: there is no such codec.
        ConfigError: P is not a number of digits.
    """
    if name in ROW_CODECS:
        return FixedCodec(name)
    kind, colon, digits = name.partition(":")
    if kind != "polyline" or not colon:
        raise UnknownNameError.of("codec", name, (*ROW_CODECS, "polyline:P"))
    if not (digits.isascii() and digits.isdigit()) or int(digits) > MOST_DIGITS:
        raise ConfigError(f"codec {name!r}: P must be a number of digits from 0 to {MOST_DIGITS}")
    return PolylineCodec(int(digits))
