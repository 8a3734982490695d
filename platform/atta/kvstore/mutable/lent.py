"""How pulled rows lie in memory that the reader lends: first the values, then the versions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atta.kvstore import codecs
from atta.kvstore.spec import MutableSpec

__all__ = ["LentLayout"]

_ALIGNED = 8
"""Versions begin at a multiple of their size, if the memory does."""


@dataclass(frozen=True, slots=True)
class LentLayout:
    """Where values and versions of an answer of ``rows`` rows begin.

    Attributes:
        rows: number of rows.
        row_bytes: bytes of a row's values, as they travel.
        versioned: whether versions follow.
    """

    rows: int
    row_bytes: int
    versioned: bool

    @classmethod
    def of(cls, spec: MutableSpec, rows: int, codec: str, *, versioned: bool) -> LentLayout:
        """Of rows of a table, in a codec that fits it ("": as they are).

        ``versioned``: the answer has versions, if the table has.
        """
        row_bytes = codecs.encoded_bytes(codec, spec.row_bytes // 4) if codec else spec.row_bytes
        return cls(rows, row_bytes, versioned and spec.versioned)

    @property
    def nbytes(self) -> int:
        """Bytes of the answer."""
        return self._versions_at + 8 * self.rows if self.versioned else self.rows * self.row_bytes

    @property
    def _versions_at(self) -> int:
        return -(-self.rows * self.row_bytes // _ALIGNED) * _ALIGNED

    def values(self, memory: np.ndarray, first: int, count: int) -> np.ndarray:
        """Values of rows ``first`` to ``first + count`` within ``memory`` (uint8 [nbytes]): uint8 [count, row bytes].

        Raises:
            ValueError: there are no such rows.
        """
        self._check(first, count)
        start = first * self.row_bytes
        return memory[start : start + count * self.row_bytes].reshape(count, self.row_bytes)

    def versions(self, memory: np.ndarray, first: int, count: int) -> np.ndarray | None:
        """Versions of these rows: int64 [count]; None: the answer has none. See ``values``."""
        self._check(first, count)
        start = self._versions_at + 8 * first
        return memory[start : start + 8 * count].view(np.int64) if self.versioned else None

    def _check(self, first: int, count: int) -> None:
        if not 0 <= first <= first + count <= self.rows:
            raise ValueError(f"rows {first} to {first + count} of an answer of {self.rows}")
