"""Sums of other partitions' rows that stay for later batches. Vertices of dependent batches draw as in the batch before,
but for a few, and then need the same sums."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from atta.samplers import kernels
from atta.samplers.batch.items import SumItem
from atta.samplers.hashing import GOLDEN, mix64

_LEAST_SLOTS = 64


@dataclass(frozen=True, slots=True)
class _Slots:
    """``keys`` uint64 [slots, 2]; ``sums`` uint8 [slots, bytes of a sum]."""

    keys: np.ndarray
    sums: np.ndarray


class LackingSums(NamedTuple):
    """The sums of an item that are not kept. ``item``: they alone; ``out`` uint8 [n, bytes of a sum]: where they shall go;
    ``chosen`` int64 [n]: their places in the whole item; ``keys`` uint64 [n, 2]."""

    item: SumItem
    out: np.ndarray
    chosen: np.ndarray
    keys: np.ndarray


Asked = Sequence[tuple["SumItem", np.ndarray]]
"""What a batch asks for, and arrays uint8 [sums, bytes of a sum] for it."""


class KeptSums:
    """Sums by what they are of: a table's version, rows and weights, in any order. A sum has one slot that it may take,
    and takes it from another one. Safe to use from many threads."""

    def __init__(self, limit_bytes: int) -> None:
        """``limit_bytes``: of all sums together. Each table takes half of what is left when it first comes."""
        self._left, self._lock = limit_bytes, threading.Lock()
        self._tables: dict[tuple[str, str, int], _Slots | None] = {}

    def fill(self, asked: Asked) -> list[LackingSums]:
        """Copy the sums that are here to their arrays. Returns the others, by item."""
        return [self._fill(item, out) for item, out in asked]

    def keep(self, lacking: Sequence[LackingSums], asked: Asked) -> None:
        """Copy the sums that ``fill`` lacked and that have come to the arrays of ``asked``, and keep them."""
        for came, (_, out) in zip(lacking, asked, strict=True):
            if came.out is not out:
                kernels.gather_rows(came.out, np.arange(len(came.out)), out, positions=came.chosen)
            with self._lock:
                if (slots := self._slots(came.item, came.out)) is not None:
                    places, first = np.unique(_places(slots, came.keys), return_index=True)
                    slots.keys[places] = came.keys[first]
                    kernels.gather_rows(came.out, first, slots.sums, positions=places)

    def _fill(self, item: SumItem, out: np.ndarray) -> LackingSums:
        keys = sum_keys(item)
        with self._lock:
            slots, found = self._slots(item, out), np.zeros(len(out), bool)
            if slots is not None:
                places = _places(slots, keys)
                found = (slots.keys[places] == keys).all(axis=1)
                hits = np.flatnonzero(found)
                kernels.gather_rows(slots.sums, places[hits], out, positions=hits)
        chosen = np.flatnonzero(~found)
        if len(chosen) == len(out):
            return LackingSums(item, out, chosen, keys)
        return LackingSums(item.only(chosen), np.empty((len(chosen), out.shape[1]), np.uint8), chosen, keys[chosen])

    def _slots(self, item: SumItem, out: np.ndarray) -> _Slots | None:
        name = item.node_type, item.table, out.shape[1]
        if name not in self._tables:
            count = self._left // 2 // (out.shape[1] + 16)
            room = count >= _LEAST_SLOTS
            self._left -= count * (out.shape[1] + 16) if room else 0
            made = _Slots(np.zeros((count, 2), np.uint64), np.empty((count, out.shape[1]), np.uint8)) if room else None
            self._tables[name] = made
        return self._tables[name]


def _places(slots: _Slots, keys: np.ndarray) -> np.ndarray:
    return (keys[:, 0] % np.uint64(len(slots.keys))).astype(np.int64)


def sum_keys(item: SumItem) -> np.ndarray:
    """uint64 [sums, 2]: 128 bits that say which rows of which version are added, with which weights, in which units. The
    order of the rows does not count."""
    about = f"{item.node_type}/{item.table}/{item.version}/{item.width}".encode() + item.shifts.tobytes()
    addends: np.ndarray = item.rows.astype(np.uint64)
    if item.weights is not None:
        addends = mix64(addends) ^ item.weights.view(np.uint32)
    firsts = np.cumsum(item.counts, dtype=np.int64) - item.counts
    seeds = xxhash.xxh3_64_intdigest(about), xxhash.xxh3_64_intdigest(about, seed=GOLDEN)
    lanes = [mix64(addends ^ np.uint64(seed)) for seed in seeds]
    return np.stack([np.add.reduceat(lane, firsts) if len(firsts) else lane[:0] for lane in lanes], axis=1)
