"""Shared-memory slots: batches are assembled once, where the consumer will read them.

A slot is a range of an arena, an anonymous memory file (``atta.wire.memfiles``). A consumer on the same machine maps the arena through
``/proc/<pid>/fd/<n>``, locks the slot's range for as long as it looks at the batch, and then finds the batch's nonce in the first
bytes. Slots are reused because touching fresh pages costs about eight times a copy. None is written while a consumer has it
locked, whatever the sessions believe, and each batch has a nonce of its own: who comes too late finds another and takes nothing.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from atta.daemon.engine.arenas import Arena, arena_bytes
from atta.errors import QuotaExceededError
from atta.observe.machine.memory import available_bytes
from atta.wire import memfiles

__all__ = ["Slot", "SlotPool", "stale_sizes"]

PAGE = 4096
MIN_FREE_BYTES = 64 << 20
"""Less free memory than this, or than an earlier batch took, and no further slot is made: a page that cannot be had kills."""
IDLE_S = 30.0
"""Free slots of a size that no session uses are kept so long: the next epoch, or the next validation, may want them."""
IDLE_SIZES = 4
"""And of no more such sizes, the latest."""


@dataclass(eq=False)
class Slot:
    """A range of an arena; ``buffer`` uint8 [capacity], of which only touched pages take memory."""

    arena: Arena
    offset: int
    capacity: int
    buffer: np.ndarray
    nonce: int = 0

    @property
    def path(self) -> str:
        """Where a process of the same user on this machine can open the slot's arena."""
        return self.arena.path

    @property
    def touched_bytes(self) -> int:
        """Memory of the slot's pages as the kernel counts it."""
        return self.arena.touched_bytes(self.offset, _pages(self.capacity))

    def claim(self) -> bool:
        """Make the slot fit for a new batch; False while a consumer looks at it. One that comes later finds another nonce."""
        if not memfiles.exclude(self.arena.fd, self.offset, self.capacity):
            return False
        self.nonce = secrets.randbits(63)
        self.buffer[:8].view(np.uint64)[0] = self.nonce
        memfiles.unlock(self.arena.fd, self.offset, self.capacity)
        return True

    def drop(self) -> None:
        """Give the pages back, and the range to other slots."""
        self.buffer = np.empty(0, dtype=np.uint8)
        memfiles.punch(self.arena.fd, self.offset, _pages(self.capacity))
        self.arena.gaps.give(self.offset, _pages(self.capacity))


def _pages(nbytes: int) -> int:
    """``nbytes`` rounded up: no two slots share a page."""
    return -(-nbytes // PAGE) * PAGE


def stale_sizes(used: Mapping[int, float], in_use: Collection[int], now: float) -> list[int]:
    """Sizes whose free slots are not worth their memory. ``used``: when each was last used, the latest last. Pure."""
    idle = [size for size in used if size not in in_use]
    recent = idle[-IDLE_SIZES:]
    return [size for size in idle if size not in recent or now - used[size] > IDLE_S]


class SlotPool:
    """All slots of a daemon: hands out free ones, creates more within ``quota_bytes`` of touched memory."""

    def __init__(self, quota_bytes: int, on_return: Callable[[], None] = lambda: None) -> None:
        """``on_return``: called whenever a slot that was lent has come back or is given up."""
        self.quota_bytes, self._on_return = quota_bytes, on_return
        self._arenas: list[Arena] = []
        self._free: dict[int, list[Slot]] = {}  # by capacity, the latest used last
        self._out: set[Slot] = set()
        self._lent: dict[Slot, int] = {}
        self._left: dict[Slot, tuple[str, int]] = {}  # to consumers of closed sessions: whose, and their memory
        self._usual: dict[int, int] = {}  # by capacity, the largest batch that was lent
        self._used: OrderedDict[int, float] = OrderedDict()  # by capacity, when it was last used
        self._sessions: Counter[int] = Counter()  # by capacity
        self.created = 0

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def resident_bytes(self) -> int:
        """Memory that the pool's slots occupy, those that batches are being made in among them; not what was given up."""
        return sum(arena.resident_bytes for arena in self._arenas) - sum(nbytes for _, nbytes in self._left.values())

    @property
    def lent_bytes(self) -> int:
        """Bytes of the batches that consumers look at."""
        return sum(self._lent.values())

    @property
    def lingering(self) -> int:
        """Closed sessions whose consumers still look at batches."""
        return len({session for session, _ in self._left.values()})

    # -- sessions ------------------------------------------------------------------------------------------------------

    def opened(self, capacity: int) -> None:
        """A session will want slots of ``capacity`` bytes."""
        self._sessions[capacity] += 1

    def closed(self, capacity: int, now: float) -> None:
        """It has ended."""
        self._sessions[capacity] -= 1
        self._use(capacity, now)
        self.trim(now)

    def trim(self, now: float) -> None:
        """Take back what consumers of closed sessions have let go of; free what is not worth its memory."""
        for slot in list(self._left):
            if slot.claim():
                del self._left[slot]
                self._free.setdefault(slot.capacity, []).insert(0, slot)
        self._sessions += Counter()  # without zeros
        for capacity in self._free:
            if capacity not in self._used:
                self._use(capacity, now)
        for capacity in stale_sizes(self._used, self._sessions, now):
            self._drop_free(capacity)
            if capacity not in self._free:
                del self._used[capacity]
                self._usual.pop(capacity, None)

    def _use(self, capacity: int, now: float) -> None:
        self._used[capacity] = now
        self._used.move_to_end(capacity)

    def _drop_one(self, wanted: int) -> bool:
        """Give back a free slot of another size than ``wanted``, of one that no session uses if possible; False: there is none."""
        others = [size for size, slots in self._free.items() if slots and size != wanted]
        for size in sorted(others, key=lambda size: (self._sessions[size] > 0, self._used.get(size, 0.0))):
            for index, slot in enumerate(self._free[size]):
                if self._dropped(slot):
                    del self._free[size][index]
                    return True
        return False

    def _drop_free(self, capacity: int) -> None:
        """Give back the free slots of a size, but those that a consumer looks at against all agreements."""
        kept = [slot for slot in self._free.pop(capacity, []) if not self._dropped(slot)]
        if kept:
            self._free[capacity] = kept

    def _dropped(self, slot: Slot) -> bool:
        if not slot.claim():
            return False
        slot.drop()
        if slot.arena.gaps.whole:
            self._arenas.remove(slot.arena)
            slot.arena.close()
        return True

    # -- slots ---------------------------------------------------------------------------------------------------------

    def acquire(self, capacity: int) -> Slot:
        """A slot of exactly ``capacity`` bytes, a used one if possible.

        Raises:
            QuotaExceededError: the quota, the machine's free memory, or the number of descriptors is used up.
        """
        free = self._free.get(capacity, [])
        for index in range(len(free) - 1, -1, -1):
            if free[index].claim():
                slot = free.pop(index)
                self._out.add(slot)
                return slot
        self._make_room(capacity)
        slot = self._create(capacity)
        slot.claim()
        self.created += 1
        self._out.add(slot)
        return slot

    def _make_room(self, capacity: int) -> None:
        usual = self._usual.get(capacity, 0)
        while self.resident_bytes > self.quota_bytes // 2 and self._drop_one(capacity):
            pass
        resident, free, least = self.resident_bytes, available_bytes(), max(MIN_FREE_BYTES, usual)
        promised = self._promised(exactly=False)
        if resident + promised + usual > self.quota_bytes or free - promised < least:
            promised = self._promised(exactly=True)
        if (held := resident + promised) + usual > self.quota_bytes:
            raise QuotaExceededError(
                f"batch buffers hold {held >> 20} MiB of a quota of {self.quota_bytes >> 20} MiB: "
                "raise --buffer, lower the batch size, or let go of old batches"
            )
        if (left := max(0, free - promised)) < least:
            raise QuotaExceededError(f"no memory left for another batch buffer: {left >> 20} MiB available")

    def _promised(self, *, exactly: bool) -> int:
        """Memory that batches will still take which are being made, as much as others of their size; not exactly: at most."""
        making = [(slot, self._usual.get(slot.capacity, 0)) for slot in self._out if slot not in self._lent]
        return sum(max(0, usual - slot.touched_bytes) if exactly and usual else usual for slot, usual in making)

    def _create(self, capacity: int) -> Slot:
        for arena in self._arenas:
            if (start := arena.gaps.take(_pages(capacity))) is not None:
                return Slot(arena, start, capacity, arena.buffer[start : start + capacity])
        arena = Arena(arena_bytes(len(self._arenas), _pages(capacity)))
        self._arenas.append(arena)
        start = arena.gaps.take(_pages(capacity))
        assert start == 0
        return Slot(arena, start, capacity, arena.buffer[:capacity])

    def lend(self, slot: Slot, used_bytes: int) -> None:
        """A consumer has taken the batch in ``slot``, of ``used_bytes``."""
        self._lent[slot] = used_bytes
        self._usual[slot.capacity] = max(used_bytes, self._usual.get(slot.capacity, 0))

    def release(self, slot: Slot) -> None:
        """Take back a slot that nobody looks at any more; its pages stay."""
        self._out.discard(slot)
        self._free.setdefault(slot.capacity, []).append(slot)
        self._returned(slot)

    def abandon(self, slot: Slot, session: str) -> None:
        """Leave a slot to the consumer of a session that has ended, until it has let go of it or died."""
        self._out.discard(slot)
        if slot.claim():
            self._free.setdefault(slot.capacity, []).append(slot)
        else:
            self._left[slot] = session, slot.touched_bytes
        self._returned(slot)

    def _returned(self, slot: Slot) -> None:
        if self._lent.pop(slot, None) is not None:
            self._on_return()

    def close(self) -> None:
        """Drop all slots."""
        for arena in self._arenas:
            arena.close()
        self._arenas.clear()
        self._free.clear()
        self._out.clear()
        self._left.clear()
