"""Forms in which hidden rows travel and wait.

| codec | bytes of n rows of d numbers | what is lost |
|---|---|---|
| ``none`` | 4 n d | nothing |
| ``fp16``, ``bf16`` | 2 n d | see ``atta.kvstore.codecs`` |
| ``int8`` | n (4 + d) | half of 1/127 of a row's largest magnitude |
| ``delta-int8`` | 8 + n (4 + d) | as int8, of the difference to the rows that the reader holds |
| ``polyline:P`` | n d to 11 n d | half of 10^-P |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atta.errors import ConfigError, StaleRowError, UnknownNameError
from atta.kvstore import codecs
from atta.train.cooperative.source import Direction
from atta.train.exchange.policies import NEVER

Peer = tuple[int, Direction, int]
"""Layer, direction, and the rank at the other end."""
ROW_CODECS = ("none", *codecs.CODECS)
"""Names of codecs whose rows all have the same number of bytes."""


@dataclass(frozen=True)
class FixedCodec:
    """A codec whose rows all have the same number of bytes. ``name``: one of ``ROW_CODECS``; ``dtype``: of decoded
    numbers; anything but float32 goes with ``none`` only."""

    name: str
    dtype: str = "float32"

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of ``rows`` rows of ``columns`` numbers."""
        number = np.dtype(self.dtype).itemsize
        return rows * (number * columns if self.name == "none" else codecs.encoded_bytes(self.name, columns))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """uint8 [m] of ``values`` float [n, d]."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        raw = values.view(np.uint8) if self.name == "none" else codecs.encode(self.name, values)
        return raw.reshape(-1)

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """[rows, columns] of ``encoded`` uint8 [m]; raises ConfigError for bytes of another number of them."""
        if len(encoded) != self.nbytes(rows, columns):
            raise ConfigError(f"codec {self.name}: {len(encoded)} bytes are not {rows} rows of {columns} numbers")
        if self.name == "none":
            return encoded.view(self.dtype).reshape(rows, columns).copy()
        out = np.empty((rows, columns), dtype=np.float32)
        codecs.decode(self.name, encoded.reshape(rows, self.nbytes(1, columns)), out)
        return out


class Packing:
    """Packs the rows of a message: as they are. Both ends know the number of rows; ``like`` has their width and dtype."""

    def room(self, peer: Peer, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a message of ``rows`` rows of a peer."""
        return like.new_empty((rows, *like.shape[1:]))

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        """The message for ``rows`` [n, d]."""
        return rows.contiguous()

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        """The rows [n, d] of a message."""
        return message

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""


class FixedPacking(Packing):
    """Each message alone is encoded: bf16, fp16, or int8 with a scale per row."""

    def __init__(self, name: str) -> None:
        self._codec = FixedCodec(name)

    def room(self, peer: Peer, rows: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(self._codec.nbytes(rows, like.shape[1]), dtype=torch.uint8, device=like.device)

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        return torch.from_numpy(self._codec.encode(rows.cpu().numpy())).to(rows.device)

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        count = len(message) // max(1, self._codec.nbytes(1, like.shape[1]))
        return torch.from_numpy(self._codec.decode(message.cpu().numpy(), count, like.shape[1])).to(like)


class DeltaPacking(FixedPacking):
    """Differences to the rows that the reader holds, one byte per number: rows of neighbouring epochs are alike. Both
    ends keep the rows as the reader has them after rounding. So what one message lost is part of the next difference
    (error feedback; Seide et al., Interspeech 2014), and rows that stop to change become exact."""

    _HEADER = 8
    """Bytes of the version that the reader must hold, before a scale and bytes per row."""

    def __init__(self) -> None:
        super().__init__("int8")
        self._sent: dict[Peer, tuple[torch.Tensor, int]] = {}  # float32 [n, d], version
        self._read: dict[Peer, tuple[torch.Tensor, int]] = {}

    def codec_from(self, peer: Peer) -> FixedCodec:
        """How differences come from a peer."""
        return self._codec

    def codec_to(self, peer: Peer) -> FixedCodec:
        """How differences go to a peer."""
        return self._codec

    def room(self, peer: Peer, rows: int, like: torch.Tensor) -> torch.Tensor:
        size = self._HEADER + self.codec_from(peer).nbytes(rows, like.shape[1])
        return torch.empty(size, dtype=torch.uint8, device=like.device)

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        """Raises ConfigError if other rows than before travel to the same reader."""
        values, codec = rows.cpu(), self.codec_to(peer)
        held, base = self._sent.get(peer, (torch.zeros(values.shape), NEVER))
        if values.shape != held.shape:
            raise ConfigError(f"delta-int8: rows are {tuple(values.shape)}, not {tuple(held.shape)}")
        encoded = codec.encode((values - held).numpy())
        self._sent[peer] = held + torch.from_numpy(codec.decode(encoded, *values.shape)), version
        header = np.array([base], dtype="<i8").view(np.uint8)
        return torch.from_numpy(np.concatenate([header, encoded])).to(rows.device)

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        """Raises StaleRowError if a message is missing: the difference is to other rows than these. Raises ConfigError
        if the message is of another size."""
        base, data = np.split(message.cpu().numpy(), [self._HEADER])
        codec = self.codec_from(peer)
        count = len(data) // codec.nbytes(1, like.shape[1])
        held, at = self._read.get(peer, (torch.zeros(count, like.shape[1]), NEVER))
        difference = codec.decode(data, *held.shape)
        if (to := int(base.copy().view("<i8")[0])) != at:
            raise StaleRowError(f"delta-int8: a difference to version {to}; the reader holds version {at}")
        held = held + torch.from_numpy(difference)
        self._read[peer] = held, version
        return held.to(like)

    def state(self) -> dict[str, Any]:
        return {"sent": self._sent, "read": self._read}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sent, self._read = state["sent"], state["read"]


def packing(codec: str, dtype: torch.dtype = torch.float32) -> Packing:
    """The packing of that name: none, bf16, fp16, int8 or delta-int8. Raises ConfigError: the codec does not go with
    the dtype of the rows."""
    if codec == "none":
        return Packing()
    if dtype is not torch.float32:
        raise ConfigError(f"codec={codec}: packs float32, not {dtype}")
    return DeltaPacking() if codec == "delta-int8" else FixedPacking(codec)


class History:
    """The last ``count`` versions of some rows [n, d], each encoded when it comes."""

    def __init__(self, rows: int, columns: int, count: int, codec: RowCodec) -> None:
        self._size, self._codec = (rows, columns), codec
        self._kept: deque[tuple[int, np.ndarray]] = deque(maxlen=count)

    @property
    def version(self) -> int:
        """The newest version that is kept."""
        return self._kept[-1][0]

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded rows."""
        return sum(encoded.nbytes for _, encoded in self._kept)

    def append(self, values: torch.Tensor, version: int) -> None:
        """Add ``values`` [n, d]; the oldest version leaves if there are more than are kept. Raises ConfigError: they
        are of another size, or not newer than the last ones."""
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
        """All that is kept, the oldest first: [count, n, d]. While fewer versions have come, the oldest one is
        repeated. Raises ConfigError before the first one."""
        if not self._kept:
            raise ConfigError("history: no rows have come yet")
        values = [torch.from_numpy(self._codec.decode(encoded, *self._size)) for _, encoded in self._kept]
        return torch.stack(values[:1] * ((self._kept.maxlen or 0) - len(values)) + values)


MOST_DIGITS = 9
_BITS, _MORE, _FIRST = 5, 0x20, 63
_LARGEST = 2.0**50
"""Of a rounded number times 10^P: float64 then still tells neighbours apart, and a difference fits 11 groups."""
_MOST_GROUPS = 11
_LIMITS = np.array([1 << _BITS * k for k in range(1, _MOST_GROUPS)], dtype=np.uint64)


@dataclass(frozen=True)
class PolylineCodec:
    """Numbers rounded to ``digits`` decimal places. Encoding what was decoded gives the same bytes."""

    digits: int

    def nbytes(self, values: np.ndarray) -> int:
        """Bytes of ``values`` float [n, d]: for each number one group, and one more for every 5 bits beyond the first 5."""
        return int(_groups(self._zigzag(values)).sum())

    def encode(self, values: np.ndarray) -> np.ndarray:
        """uint8 [m] of ``values`` float [n, d]; raises ConfigError for numbers that are not finite or too large."""
        left = self._zigzag(values)
        groups = _groups(left)
        ends = np.cumsum(groups)
        out = np.empty(int(groups.sum()), dtype=np.uint8)
        at = ends - groups
        while len(left):
            more = left >= 1 << _BITS
            out[at] = (left & 31) + np.where(more, _MORE + _FIRST, _FIRST).astype(np.uint64)
            left, at = left[more] >> np.uint64(_BITS), at[more] + 1
        return out

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """float32 [rows, columns]. Raises ConfigError for bytes that are not those of so many numbers."""
        return self.decode_exactly(encoded, rows, columns).astype(np.float32)

    def decode_exactly(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """As ``decode``, in float64: each number differs from the encoded one by at most half of 10^-digits."""
        codes = np.asarray(encoded, dtype=np.uint8) - np.uint8(_FIRST)  # what is below the alphabet becomes large
        if len(codes) and int(codes.max()) >= 2 * _MORE:
            raise ConfigError("polyline: a byte is outside the alphabet")
        ends = np.flatnonzero(codes < _MORE) + 1
        if len(ends) != rows * columns or (len(codes) and (not len(ends) or ends[-1] != len(codes))):
            raise ConfigError(f"polyline: {len(ends)} whole numbers instead of {rows} rows of {columns}")
        if not len(ends):
            return np.empty((rows, columns))
        lengths = np.diff(ends, prepend=0)
        starts = ends - lengths
        if (longest := int(lengths.max())) > _MOST_GROUPS:
            raise ConfigError(f"polyline: a number has {longest} characters; at most {_MOST_GROUPS} are possible")
        place = np.arange(len(codes)) - np.repeat(starts, lengths)
        groups = (codes & np.uint8(31)).astype(np.uint64) << (place * _BITS).astype(np.uint64)
        coded = np.add.reduceat(groups, starts)
        signed = (coded >> np.uint64(1)).astype(np.int64) ^ -(coded & np.uint64(1)).astype(np.int64)
        return np.cumsum(signed.reshape(rows, columns), axis=1) / 10.0**self.digits

    def _zigzag(self, values: np.ndarray) -> np.ndarray:
        """uint64 [n * d]: 0, -1, 1, -2, 2 ... become 0, 1, 2, 3, 4 ..."""
        scaled = np.rint(np.asarray(values, dtype=np.float64) * 10.0**self.digits)
        if scaled.size and not np.abs(scaled).max() < _LARGEST:
            raise ConfigError(f"polyline: a number is not finite, or too large for {self.digits} digits")
        delta: np.ndarray = np.diff(scaled.astype(np.int64), axis=1, prepend=0).reshape(-1)
        coded: np.ndarray = (delta << 1) ^ (delta >> 63)
        return coded.view(np.uint64)


def _groups(coded: np.ndarray) -> np.ndarray:
    """int64 [m]: how many groups of five bits each number has; 0 has one."""
    return np.searchsorted(_LIMITS, coded, side="right") + 1


RowCodec = FixedCodec | PolylineCodec


def row_codec(name: str, dtype: str = "float32") -> RowCodec:
    """The codec of that name: ``none`` for rows of ``dtype``, ``fp16``, ``bf16``, ``int8`` or ``polyline:P`` with P
    digits. Raises UnknownNameError: there is no such codec; ConfigError: P is not a number of digits."""
    if name in ROW_CODECS:
        return FixedCodec(name, dtype if name == "none" else "float32")
    kind, colon, digits = name.partition(":")
    if kind != "polyline" or not colon:
        raise UnknownNameError.of("codec", name, (*ROW_CODECS, "polyline:P"))
    if not (digits.isascii() and digits.isdigit()) or int(digits) > MOST_DIGITS:
        raise ConfigError(f"codec {name!r}: P must be a number of digits from 0 to {MOST_DIGITS}")
    return PolylineCodec(int(digits))
