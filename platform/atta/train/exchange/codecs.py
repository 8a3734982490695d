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

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atta.errors import ConfigError, StaleRowError
from atta.kvstore import codecs
from atta.train.cooperative.source import Direction
from atta.train.exchange.policy import NEVER

Peer = tuple[int, Direction, int]
"""Layer, direction, and the rank at the other end."""
ROW_CODECS = ("none", *codecs.CODECS)
"""Names of codecs whose rows all have the same number of bytes."""


@dataclass(frozen=True)
class FixedCodec:
    """A codec whose rows all have the same number of bytes. ``name``: one of ``ROW_CODECS``."""

    name: str

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of ``rows`` rows of ``columns`` numbers."""
        return rows * (4 * columns if self.name == "none" else codecs.encoded_bytes(self.name, columns))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """uint8 [m] of ``values`` float32 [n, d]."""
        values = np.ascontiguousarray(values, dtype=np.float32)
        raw = values.view(np.uint8) if self.name == "none" else codecs.encode(self.name, values)
        return raw.reshape(-1)

    def decode(self, encoded: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """float32 [rows, columns] of ``encoded`` uint8 [m]; raises ConfigError for bytes of another number of them."""
        if len(encoded) != self.nbytes(rows, columns):
            raise ConfigError(f"codec {self.name}: {len(encoded)} bytes are not {rows} rows of {columns} numbers")
        if self.name == "none":
            return encoded.view(np.float32).reshape(rows, columns).copy()
        out = np.empty((rows, columns), dtype=np.float32)
        codecs.decode(self.name, encoded.reshape(rows, self.nbytes(1, columns)), out)
        return out


class Packing:
    """Packs the rows of a message: as they are. Both ends know the number of rows, and ``like`` has their width and
    dtype.
    """

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a message of ``rows`` rows."""
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
        """``name``: of the codec."""
        self._codec = FixedCodec(name)

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(self._codec.nbytes(rows, like.shape[1]), dtype=torch.uint8, device=like.device)

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        return torch.from_numpy(self._codec.encode(rows.cpu().numpy())).to(rows.device)

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        count = len(message) // max(1, self._codec.nbytes(1, like.shape[1]))
        return torch.from_numpy(self._codec.decode(message.cpu().numpy(), count, like.shape[1])).to(like)


class DeltaPacking(Packing):
    """Differences to the rows that the reader holds, one byte per number.

    Rows of neighbouring epochs are alike, so their difference is small and so is what a byte loses of it. Both ends keep
    the rows as the reader has them after rounding, one copy per layer, direction and pair. So what one message lost is
    part of the next difference (error feedback; Seide et al., Interspeech 2014), and rows that stop to change become
    exact.
    """

    _HEADER = 8
    _CODEC = "int8"

    def __init__(self) -> None:
        self._sent: dict[Peer, tuple[torch.Tensor, int]] = {}  # float32 [n, d], version
        self._read: dict[Peer, tuple[torch.Tensor, int]] = {}

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """The version that the reader must hold, then a scale and bytes per row."""
        size = self._HEADER + rows * codecs.encoded_bytes(self._CODEC, like.shape[1])
        return torch.empty(size, dtype=torch.uint8, device=like.device)

    def pack(self, peer: Peer, rows: torch.Tensor, version: int) -> torch.Tensor:
        """Raises ConfigError if other rows than before travel to the same reader."""
        values = rows.cpu()
        held, base = self._sent.get(peer, (torch.zeros(values.shape), NEVER))
        if values.shape != held.shape:
            raise ConfigError(f"delta-int8: rows are {tuple(values.shape)}, not {tuple(held.shape)}")
        encoded = codecs.encode(self._CODEC, (values - held).numpy())
        self._sent[peer] = held + self._decode(encoded, values.shape), version
        header = np.array([base], dtype="<i8").view(np.uint8)
        return torch.from_numpy(np.concatenate([header, encoded.reshape(-1)])).to(rows.device)

    def unpack(self, peer: Peer, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        """Raises StaleRowError if a message is missing: the difference is to other rows than these. Raises ConfigError
        if the message is of another size."""
        columns, data = like.shape[1], message.cpu().numpy()
        row_bytes = codecs.encoded_bytes(self._CODEC, columns)
        held, at = self._read.get(peer, (torch.zeros((len(data) - self._HEADER) // row_bytes, columns), NEVER))
        if len(data) != self._HEADER + len(held) * row_bytes:
            raise ConfigError(f"delta-int8: {len(data)} bytes are not {len(held)} rows of {columns} numbers")
        base = int(data[: self._HEADER].copy().view("<i8")[0])
        if base != at:
            raise StaleRowError(f"delta-int8: a difference to version {base}; the reader holds version {at}")
        held = held + self._decode(data[self._HEADER :].reshape(len(held), -1), held.shape)
        self._read[peer] = held, version
        return held.to(like)

    def state(self) -> dict[str, Any]:
        return {"sent": self._sent, "read": self._read}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sent, self._read = state["sent"], state["read"]

    def _decode(self, encoded: np.ndarray, shape: torch.Size) -> torch.Tensor:
        difference = np.empty(shape, dtype=np.float32)
        codecs.decode(self._CODEC, np.ascontiguousarray(encoded), difference)
        return torch.from_numpy(difference)


def packing(codec: str, dtype: torch.dtype = torch.float32) -> Packing:
    """The packing of that name: none, bf16, fp16, int8 or delta-int8.

    Raises:
        ConfigError: the codec does not go with the dtype of the rows.
    """
    if codec == "none":
        return Packing()
    if dtype is not torch.float32:
        raise ConfigError(f"codec={codec}: packs float32, not {dtype}")
    return DeltaPacking() if codec == "delta-int8" else FixedPacking(codec)
