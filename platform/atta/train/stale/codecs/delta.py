"""Differences to the rows that the reader holds, one byte per number.

Rows of neighbouring epochs are alike, so their difference is small and so is what a byte loses of it. The owner keeps
the rows as the reader has them after rounding, not as they were. So what one message lost is part of the next
difference (error feedback; Seide et al., Interspeech 2014), and rows that stop to change become exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.errors import ConfigError, StaleRowError
from atta.kvstore import codecs
from atta.train.stale.rules import NEVER

__all__ = ["DeltaReader", "DeltaSender", "delta_bytes"]

_HEADER = 8
_CODEC = "int8"


def delta_bytes(rows: int, columns: int) -> int:
    """Bytes of a message: the version that the reader must hold, then a scale and bytes per row."""
    return _HEADER + rows * codecs.encoded_bytes(_CODEC, columns)


class _Ends:
    """What both ends hold: the rows as the reader has them, and their version."""

    def __init__(self, rows: int, columns: int) -> None:
        self.held = np.zeros((rows, columns), dtype=np.float32)
        self.version = NEVER

    @property
    def nbytes(self) -> int:
        """Bytes of the held rows."""
        return self.held.nbytes

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves. The rows are not copied."""
        return {"held": self.held, "version": self.version}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved; raises ConfigError if it is of other rows."""
        if state["held"].shape != self.held.shape:
            raise ConfigError(f"the saved rows are {state['held'].shape}, not {self.held.shape}")
        self.held, self.version = state["held"].astype(np.float32), int(state["version"])

    def _advance(self, encoded: np.ndarray, version: int) -> None:
        difference = np.empty_like(self.held)
        codecs.decode(_CODEC, encoded, difference)
        self.held += difference
        self.version = version


class DeltaSender(_Ends):
    """The owner's end, for rows that always travel together."""

    def encode(self, values: np.ndarray, version: int) -> np.ndarray:
        """uint8 [m]: the message that brings a reader to ``values`` float32 [n, d] of ``version``."""
        if values.shape != self.held.shape:
            raise ConfigError(f"delta-int8: rows are {values.shape}, not {self.held.shape}")
        encoded = codecs.encode(_CODEC, np.asarray(values, dtype=np.float32) - self.held)
        message = np.concatenate([np.array([self.version], dtype="<i8").view(np.uint8), encoded.reshape(-1)])
        self._advance(encoded, version)
        return message


class DeltaReader(_Ends):
    """The reader's end."""

    def decode(self, message: np.ndarray, version: int) -> np.ndarray:
        """float32 [n, d]: the rows of ``version``; a copy.

        Raises:
            StaleRowError: a message is missing: the difference is to other rows than these.
            ConfigError: the message is of another size.
        """
        rows, columns = self.held.shape
        if len(message) != delta_bytes(rows, columns):
            raise ConfigError(f"delta-int8: {len(message)} bytes are not {rows} rows of {columns} numbers")
        base = int(message[:_HEADER].copy().view("<i8")[0])
        if base != self.version:
            raise StaleRowError(f"delta-int8: a difference to version {base}; the reader holds version {self.version}")
        self._advance(np.ascontiguousarray(message[_HEADER:]).reshape(rows, -1), version)
        return self.held.copy()
