"""Finds rows of bytes: which rows of a table hold given strings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["StringIndex"]

_CHUNK_ROWS = 1 << 18
_WORD = 8
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

Rows = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class StringIndex:
    """Positions of rows by their content. It takes 16 bytes per row.

    Rows are sorted by a hash of 64 bits. A search compares the bytes, too, so equal hashes do no harm.
    """

    def __init__(self, rows: Rows) -> None:
        """``rows``: uint8 [n, w], kept and not copied."""
        self._rows = rows
        hashes = _hashes(rows)
        self._order = np.argsort(hashes, kind="stable").astype(np.int64)
        self._hashes = hashes[self._order]

    def twice(self) -> int | None:
        """The position of a row whose content another row has as well; None if there is none."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        first, second = self._order[same], self._order[same + 1]
        equal = first[(self._rows[first] == self._rows[second]).all(axis=1)]
        return int(equal[0]) if len(equal) else None

    def find(self, wanted: Rows) -> Places:
        """int64 [m]: the position of the first row with the content of each row of ``wanted`` [m, v]; -1: none has it.

        Rows of different widths are compared as if zeros filled the shorter one.
        """
        width = self._rows.shape[1]
        fits = ~wanted[:, width:].any(axis=1)
        asked = np.zeros((len(wanted), width), np.uint8)
        asked[:, : wanted.shape[1]] = wanted[:, :width]
        hashes, found = _hashes(asked), np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._hashes, hashes)
        left = np.flatnonzero(fits)
        while len(left := self._equal_hashes(left, at, hashes)):
            row = self._order[at[left]]
            same = (self._rows[row] == asked[left]).all(axis=1)
            found[left[same]] = row[same]
            left = left[~same]
            at[left] += 1
        return found

    def _equal_hashes(self, left: Places, at: Places, hashes: npt.NDArray[np.uint64]) -> Places:
        """Those of ``left`` for which the place ``at`` has the hash that is searched."""
        left = left[at[left] < len(self._hashes)]
        equal: Places = left[self._hashes[at[left]] == hashes[left]]
        return equal


def _hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """uint64 [n]: a hash of each row, word by word (multiply and shift, as in Fibonacci hashing)."""
    n, width = rows.shape
    out = np.full(n, _ODD, np.uint64)
    words = np.zeros((min(n, _CHUNK_ROWS), -(-width // _WORD) * _WORD), np.uint8)
    for first in range(0, n, _CHUNK_ROWS):
        part = out[first : first + _CHUNK_ROWS]
        words[: len(part), :width] = rows[first : first + len(part)]
        for word in words[: len(part)].view("<u8").T:
            part ^= word
            part *= _ODD
            part ^= part >> _SHIFT
    return out
