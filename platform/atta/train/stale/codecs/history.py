"""The rows of the last synchronisations, kept in few bytes."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from atta.errors import ConfigError
from atta.train.stale.codecs.rows import RowCodec
from atta.train.stale.table import Fetched

__all__ = ["History"]


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

    def window(self) -> Fetched:
        """All that is kept, the oldest first: values [count, n, d], versions int64 [count, n].

        While fewer versions have come, the oldest one is repeated. Raises ConfigError before the first one.
        """
        if not self._kept:
            raise ConfigError("history: no rows have come yet")
        missing = (self._kept.maxlen or 0) - len(self._kept)
        values = [torch.from_numpy(self._codec.decode(encoded, *self._size)) for _, encoded in self._kept]
        versions = [version for version, _ in self._kept]
        values, versions = values[:1] * missing + values, versions[:1] * missing + versions
        return Fetched(torch.stack(values), torch.tensor(versions).unsqueeze(1).expand(-1, self._size[0]))
