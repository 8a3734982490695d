"""Pins batches where they lie: in the slots that a daemon and its consumer share.

A GPU copies at full speed, and beside a computation, only from memory that the kernel must not move. Copying a batch to
such memory first takes a trainer longer than many a step on a GPU. Slots are used again and again, so their pages are
pinned once, as far as batches have filled them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from atta.client.sessions.slots import SlotLease, lease_of

PAGE = 4096
LEAST_BYTES = 64 << 10
"""Smaller arrays are copied to pinned memory, which takes less time than a look at their pages."""
SPARE = 1.25
"""Pages are pinned for an array that is so much larger, as the next batch in the slot may be."""
IDLE_BATCHES = 256
"""After so many batches elsewhere, a slot gives way to another one. Sooner, slots in turns would push each other out."""


class Pages(Protocol):
    """Pins memory of this process."""

    def pin(self, address: int, nbytes: int) -> bool:
        """Whether the pages there, none of which is pinned, are pinned now."""

    def unpin(self, address: int) -> None:
        """Undo a ``pin``, once nobody copies from there any more."""


@dataclass
class _PinnedSlot:
    """What is pinned of a slot: where ranges begin and stop, in bytes from the begin of the file."""

    made: int
    offset: int
    stop: int
    used_at: int = 0  # number of the latest batch
    uses: int = 0
    ranges: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges.items())

    def holds(self, start: int) -> bool:
        """Whether the byte at ``start`` is pinned."""
        return any(begin <= start < end for begin, end in self.ranges.items())

    def cutting(self, spans: list[tuple[int, int]]) -> list[int]:
        """Where the ranges start that have a part of one of these spans alone: CUDA copies no array of which a part is pinned."""
        return [
            begin
            for begin, end in self.ranges.items()
            if any(start < end and begin < stop and not (begin <= start and stop <= end) for start, stop in spans)
        ]


class PinnedSlots:
    """The slots whose pages are pinned.

    A slot that a batch is in has the pages that it had before, unless its number (``SlotLease.made``) is another one:
    then the daemon has given them back meanwhile, and what was pinned there is no longer part of the file."""

    def __init__(self, pages: Pages, limit_bytes: int) -> None:
        self._pages, self._limit = pages, limit_bytes
        self._slots: OrderedDict[tuple[int, int], _PinnedSlot] = OrderedDict()  # by address of the file, and offset
        self._batches = 0
        self._able = True

    @property
    def nbytes(self) -> int:
        """Number of bytes that are pinned."""
        return sum(slot.nbytes for slot in self._slots.values())

    def pin(self, arrays: Iterable[np.ndarray]) -> None:
        """Pin the large ones of a batch's arrays that lie in a slot, if they are not the slot's first batch.

        To pin a slot takes as long as several copies to pinned memory, and some slots are used once. Where pages cannot
        be pinned, nothing happens."""
        self._batches += 1
        leases: dict[int, tuple[SlotLease, list[np.ndarray]]] = {}
        for array in arrays:
            lease = lease_of(array)
            if lease is not None and lease.made:
                leases.setdefault(id(lease), (lease, []))[1].append(array)
        for lease, inside in leases.values():
            if self._able:
                self._pin(lease, inside)

    def release(self) -> None:
        """Pin nothing any more of what is pinned now."""
        for key in list(self._slots):
            self._drop(key)

    def _pin(self, lease: SlotLease, arrays: list[np.ndarray]) -> None:
        base = lease.mapping.ctypes.data
        slot = self._slot(lease, base)
        if slot.uses == 1:
            return
        spans = sorted((array.ctypes.data - base, array.ctypes.data - base + array.nbytes) for array in arrays)
        for start in slot.cutting(spans):
            self._unpin(base, slot, start)
        begins = [*(start for start, _ in spans), slot.stop]
        for start, stop in spans:
            if stop - start < LEAST_BYTES or start % PAGE or slot.holds(start):
                continue
            room = next(begin for begin in begins if begin >= stop)
            if not self._extend(base, slot, start, stop, room):
                self._drop((base, slot.offset))
                return
        if slot.cutting(spans):  # an array begins in the last page of another one
            self._drop((base, slot.offset))

    def _slot(self, lease: SlotLease, base: int) -> _PinnedSlot:
        """What is known of a slot, which is now the latest used."""
        key, stop = (base, lease.offset), lease.offset + lease.nbytes
        slot = self._slots.get(key)
        if slot is None or (slot.made, slot.stop) != (lease.made, stop):
            if not any(of == base for of, _ in self._slots):
                weakref.finalize(lease.mapping, self._forget, base).atexit = False
            for other, known in list(self._slots.items()):
                if other[0] == base and known.offset < stop and lease.offset < known.stop:
                    self._drop(other)
            slot = self._slots[key] = _PinnedSlot(lease.made, lease.offset, stop)
        self._slots.move_to_end(key)
        slot.used_at, slot.uses = self._batches, slot.uses + 1
        return slot

    def _make_room(self, nbytes: int) -> bool:
        """Whether so many bytes more may be pinned, now that slots have given way that were not used for long."""
        while (held := self.nbytes) + nbytes > self._limit:
            key, oldest = next(iter(self._slots.items()))
            if held == 0 or self._batches - oldest.used_at < IDLE_BATCHES:
                return False
            self._drop(key)
        return True

    def _extend(self, base: int, slot: _PinnedSlot, start: int, stop: int, room: int) -> bool:
        """Have ``start`` to ``stop`` pinned, and some more, but nothing beyond ``room``, where another array begins."""
        room = min([room, *(begin for begin in slot.ranges if begin >= stop)])
        stop = min(_pages_up(start + int(SPARE * (stop - start))), max(_pages_up(stop), room // PAGE * PAGE))
        if not self._make_room(stop - start):
            return False
        if self._pages.pin(base + start, stop - start):
            slot.ranges[start] = stop
            return True
        self.release()
        self._able = False
        return False

    def _unpin(self, base: int, slot: _PinnedSlot, start: int) -> None:
        del slot.ranges[start]
        self._pages.unpin(base + start)

    def _drop(self, key: tuple[int, int]) -> None:
        if (slot := self._slots.pop(key, None)) is not None:
            for start in list(slot.ranges):
                self._unpin(key[0], slot, start)

    def _forget(self, base: int) -> None:
        """A file is about to be unmapped."""
        for key in [key for key in self._slots if key[0] == base]:
            self._drop(key)


def _pages_up(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
