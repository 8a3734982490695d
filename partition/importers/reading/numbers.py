"""Text files of numbers, read block by block: the numbers, how many each line holds, and the lines' places."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from atta.errors import DataError

__all__ = ["NumberLines", "check_count", "number_lines", "quoted"]

Array = npt.NDArray[Any]
_BLOCK_BYTES = 16 << 20
_BLANK = np.isin(np.arange(256), list(b" \t\n\r\v\f"))  # what separates numbers, by byte
_NEWLINE = 10
_SHOWN = 40
_MOST_VERTICES, _MOST_PER_BYTE = 1 << 22, 64
_LARGEST = 2**63 - 1
_NAMES: dict[type, str] = {np.int64: "whole number below 2**63", np.float64: "number"}


@dataclass(frozen=True)
class NumberLines:
    """Some lines of a file.

    Attributes:
        values: int64 or float64 [numbers], of all lines.
        counts: int64 [lines], how many of them each line holds.
        places: int64 [lines], the number of each line in the file, from 1.
    """

    values: Array
    counts: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def number_lines(file: BinaryIO, where: Path, kind: type, *, line: int) -> Iterator[NumberLines]:
    """The lines from the current place of ``file`` on, which is the beginning of line ``line``. Lines that begin with
    ``%`` are left out.

    ``kind``: np.int64 or np.float64. Raises DataError naming the line and the text that is no such number.
    """
    for block in _blocks(file):
        ends = block.count(b"\n")
        places = np.arange(line, line + ends)
        text = block
        if b"%" in block:
            lines = block.split(b"\n")[:-1]
            kept = [place for place, entry in enumerate(lines) if not entry.lstrip().startswith(b"%")]
            text, places = b"".join(lines[place] + b"\n" for place in kept), places[kept]
        yield _parsed(text, places, where, kind)
        line += ends


def check_count(where: Path, count: int) -> None:
    """Refuse a number of vertices that a header states and a file of this size cannot mean; raises DataError."""
    if count > max(_MOST_VERTICES, _MOST_PER_BYTE * where.stat().st_size):
        raise DataError(where, f"states {count} vertices, which a file of this size does not describe")


def quoted(text: bytes) -> str:
    """``text`` of a file for a message: one line of printable characters, not long."""
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...")


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Pieces of whole lines; each ends in a newline, whether the file has one at its end or not."""
    rest: list[bytes] = []
    while piece := file.read(_BLOCK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = []
        rest.append(piece[cut:])
    if any(rest):
        yield b"".join([*rest, b"\n"])


def _parsed(text: bytes, places: npt.NDArray[np.int64], where: Path, kind: type) -> NumberLines:
    raw = np.frombuffer(text, np.uint8)
    filled = ~_BLANK[raw]
    begins = np.flatnonzero(filled & np.concatenate([[True], ~filled[:-1]])) if len(raw) else np.zeros(0, np.int64)
    so_far = np.searchsorted(begins, np.flatnonzero(raw == _NEWLINE))  # numbers up to the end of each line
    total = len(begins)
    values = _numbers(text, kind) if total else np.zeros(0, kind)
    if len(values) < total or _may_be_cut(values):
        for token, word in enumerate(re.finditer(rb"\S+", text)):
            if not _is_number(word[0], kind):
                place = int(places[np.searchsorted(so_far, token, "right")])
                raise DataError(where, f"line {place}: {quoted(word[0])} is no {_NAMES[kind]}")
    return NumberLines(values, np.diff(so_far, prepend=0), places)


def _numbers(text: bytes, kind: type) -> Array:
    """The numbers in ``text``; none, or those before the first fault, where something is no number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what older releases of numpy say instead of an error
            return np.fromstring(text, kind, sep=" ")
    except ValueError:
        return np.zeros(0, kind)


def _may_be_cut(values: Array) -> bool:
    """Whether a number may have been too large for int64. Such numbers are read as the largest."""
    limits = np.iinfo(np.int64)
    return (
        values.dtype.kind == "i"
        and len(values) > 0
        and bool(np.isin((values.min(), values.max()), (limits.min, limits.max)).any())
    )


def _is_number(word: bytes, kind: type) -> bool:
    if kind is np.int64:
        digits = re.fullmatch(rb"[+-]?0*([0-9]{1,19})", word)
        return digits is not None and int(digits[1]) < _LARGEST
    return len(_numbers(word, kind)) == 1
