"""Shared-memory slots: batches are assembled once, where the consumer will read them.

A slot is an anonymous memory file (memfd). A consumer on the same machine maps it through ``/proc/<pid>/fd/<n>`` and proves
that it got the right file by the nonce in its first bytes. Nothing has a name in a file system, so nothing is left behind when
either side is killed: the kernel frees the pages with the last mapping. Slots are reused because touching fresh pages costs about
eight times a copy; a slot that a consumer still looks at when its session ends is given up, never overwritten.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atta.errors import QuotaExceededError
from atta.observe.memory import available_bytes

__all__ = ["Slot", "SlotPool"]

MIN_FREE_BYTES = 64 << 20
"""Less free memory than this, or than an earlier batch took, and no further slot is made: a page that cannot be had kills."""


@dataclass(eq=False)
class Slot:
    """One mapped memory file; ``buffer`` uint8 [capacity], of which only touched pages take memory."""

    fd: int
    capacity: int
    nonce: int
    buffer: np.ndarray

    @classmethod
    def create(cls, capacity: int) -> Slot:
        """Map a fresh slot with room for ``capacity`` bytes; no page is touched but the first."""
        fd = os.memfd_create("atta-slot", os.MFD_CLOEXEC)
        os.ftruncate(fd, capacity)
        mapping = mmap.mmap(fd, capacity, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0))
        buffer = np.frombuffer(mapping, dtype=np.uint8)
        nonce = secrets.randbits(63)
        buffer[:8].view(np.uint64)[0] = nonce
        return cls(fd, capacity, nonce, buffer)

    @property
    def path(self) -> str:
        """Where a process of the same user on this machine can open the slot."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @property
    def touched_bytes(self) -> int:
        """Memory of the slot's pages as the kernel counts it: only a batch itself knows how much of the slot it will fill."""
        return 512 * os.fstat(self.fd).st_blocks

    def close(self) -> None:
        """Drop this side's file and mapping; a consumer that still maps the slot keeps its pages."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.buffer = np.empty(0, dtype=np.uint8)


class SlotPool:
    """All slots of a daemon: hands out free ones, creates more within ``quota_bytes`` of touched memory."""

    def __init__(self, quota_bytes: int, on_return: Callable[[], None] = lambda: None) -> None:
        """``on_return``: called whenever a slot that was lent has come back or is given up."""
        self.quota_bytes, self._on_return = quota_bytes, on_return
        self._lent: dict[Slot, int] = {}
        self._free: list[Slot] = []
        self._out: set[Slot] = set()
        self.created = 0

    @property
    def resident_bytes(self) -> int:
        """Memory that the pool's slots occupy, those that batches are being made in among them."""
        return sum(slot.touched_bytes for slot in self._slots)

    @property
    def _slots(self) -> list[Slot]:
        return [*self._free, *self._out]

    def acquire(self, capacity: int) -> Slot:
        """A slot of exactly ``capacity`` bytes, a used one if possible.

        Raises:
            QuotaExceededError: the quota, or the machine's free memory, is used up.
        """
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index].capacity == capacity:
                slot = self._free.pop(index)
                self._out.add(slot)
                return slot
        while self._free and self.resident_bytes > self.quota_bytes // 2:
            self._free.pop(0).close()
        touched = {slot: slot.touched_bytes for slot in self._slots}
        usual = max([n for slot, n in touched.items() if slot.capacity == capacity], default=0)
        # A batch that is being made will take as much as others of its size have taken.
        held = sum(max(n, usual) if slot.capacity == capacity else n for slot, n in touched.items())
        if held + usual > self.quota_bytes:
            raise QuotaExceededError(
                f"batch buffers hold {held >> 20} MiB of a quota of {self.quota_bytes >> 20} MiB: "
                "raise --buffer, lower the batch size, or let go of old batches"
            )
        if (free := available_bytes()) < max(MIN_FREE_BYTES, usual):
            raise QuotaExceededError(f"no memory left for another batch buffer: {free >> 20} MiB available")
        slot = Slot.create(capacity)
        self.created += 1
        self._out.add(slot)
        return slot

    @property
    def lent_bytes(self) -> int:
        """Bytes of the batches that consumers look at."""
        return sum(self._lent.values())

    def lend(self, slot: Slot, used_bytes: int) -> None:
        """A consumer has taken the batch in ``slot``, of ``used_bytes``."""
        self._lent[slot] = used_bytes

    def release(self, slot: Slot) -> None:
        """Take back a slot that nobody looks at any more; its pages stay."""
        self._out.discard(slot)
        self._free.append(slot)
        self._returned(slot)

    def abandon(self, slot: Slot) -> None:
        """Give up a slot that a consumer may still be reading."""
        self._out.discard(slot)
        slot.close()
        self._returned(slot)

    def _returned(self, slot: Slot) -> None:
        if self._lent.pop(slot, None) is not None:
            self._on_return()

    def close(self) -> None:
        """Drop all slots."""
        for slot in self._slots:
            slot.close()
        self._free.clear()
        self._out.clear()
