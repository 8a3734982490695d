"""How rows look in a message between two trainers: as they are, in fewer bytes, or as differences."""

from __future__ import annotations

from typing import Any

import torch

from atta.errors import ConfigError
from atta.train.stale.codecs.delta import DeltaReader, DeltaSender, delta_bytes
from atta.train.stale.codecs.rows import FixedCodec
from atta.train.stale.table import Direction

__all__ = ["DeltaPacking", "FixedPacking", "Packing", "PlainPacking", "packing"]

Key = tuple[int, Direction, int]
"""Layer, direction, and the rank at the other end."""


class Packing:
    """Packs the rows of a message. Both ends know the number of rows, and ``like`` has their width and dtype."""

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a message of ``rows`` rows."""
        raise NotImplementedError

    def pack(self, key: Key, rows: torch.Tensor, version: int) -> torch.Tensor:
        """The message for ``rows`` [n, d]."""
        raise NotImplementedError

    def unpack(self, key: Key, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        """The rows [n, d] of a message."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""


class PlainPacking(Packing):
    """Rows travel as they are."""

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty((rows, *like.shape[1:]))

    def pack(self, key: Key, rows: torch.Tensor, version: int) -> torch.Tensor:
        return rows.contiguous()

    def unpack(self, key: Key, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        return message


class FixedPacking(Packing):
    """Each message alone is encoded: bf16, fp16, or int8 with a scale per row."""

    def __init__(self, name: str) -> None:
        """``name``: of the codec."""
        self._codec = FixedCodec(name)

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(self._codec.nbytes(rows, like.shape[1]), dtype=torch.uint8, device=like.device)

    def pack(self, key: Key, rows: torch.Tensor, version: int) -> torch.Tensor:
        return torch.from_numpy(self._codec.encode(rows.cpu().numpy())).to(rows.device)

    def unpack(self, key: Key, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        count = len(message) // max(1, self._codec.nbytes(1, like.shape[1]))
        return torch.from_numpy(self._codec.decode(message.cpu().numpy(), count, like.shape[1])).to(like)


class DeltaPacking(Packing):
    """Differences to what the reader holds. Both ends keep these rows, one copy per layer, direction and pair."""

    def __init__(self) -> None:
        self._senders: dict[Key, DeltaSender] = {}
        self._readers: dict[Key, DeltaReader] = {}

    def room(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(delta_bytes(rows, like.shape[1]), dtype=torch.uint8, device=like.device)

    def pack(self, key: Key, rows: torch.Tensor, version: int) -> torch.Tensor:
        if key not in self._senders:
            self._senders[key] = DeltaSender(*rows.shape)
        return torch.from_numpy(self._senders[key].encode(rows.cpu().numpy(), version)).to(rows.device)

    def unpack(self, key: Key, message: torch.Tensor, like: torch.Tensor, version: int) -> torch.Tensor:
        columns = like.shape[1]
        if key not in self._readers:
            header = delta_bytes(0, columns)
            self._readers[key] = DeltaReader((len(message) - header) // (delta_bytes(1, columns) - header), columns)
        return torch.from_numpy(self._readers[key].decode(message.cpu().numpy(), version)).to(like)

    def state(self) -> dict[str, Any]:
        return {
            name: [(list(key), torch.from_numpy(end.held), end.version) for key, end in ends.items()]
            for name, ends in (("senders", self._senders), ("readers", self._readers))
        }

    def load_state(self, state: dict[str, Any]) -> None:
        for key, held, version in state["senders"]:
            self._senders[tuple(key)] = sender = DeltaSender(*held.shape)
            sender.load_state({"held": held.numpy(), "version": version})
        for key, held, version in state["readers"]:
            self._readers[tuple(key)] = reader = DeltaReader(*held.shape)
            reader.load_state({"held": held.numpy(), "version": version})


def packing(codec: str, dtype: torch.dtype = torch.float32) -> Packing:
    """The packing of that name: none, bf16, fp16, int8 or delta-int8.

    Raises:
        ConfigError: the codec does not go with the dtype of the rows.
    """
    if codec == "none":
        return PlainPacking()
    if dtype is not torch.float32:
        raise ConfigError(f"codec={codec}: packs float32, not {dtype}")
    return DeltaPacking() if codec == "delta-int8" else FixedPacking(codec)
