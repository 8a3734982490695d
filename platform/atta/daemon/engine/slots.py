"""Shared-memory slots: batches are assembled once, in a range of an arena that the consumer maps and locks while it reads.
An arena is a memory file that holds many slots, so that many batches need few descriptors; only touched pages take memory.

Slots are reused because touching fresh pages costs about eight times a copy. A slot that a consumer has locked is never
written, whatever the sessions' state says. Every batch has its own nonce, so a consumer that comes too late notices it.
"""

from __future__ import annotations

import mmap
import os
import resource
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from atta.errors import QuotaExceededError
from atta.observe.machine.memory import available_bytes, total_bytes
from atta.wire import memfiles
from atta.wire.memfiles import Gaps

FIRST_BYTES = 1 << 30
"""Size of the first arena; later ones double."""
LARGEST_BYTES = 1 << 40
"""Size at which arenas stop doubling."""
SPARE_DESCRIPTORS = 8
"""Number of descriptors left for connections. Without any, a daemon could not even report what it lacks."""


def arena_bytes(open_arenas: int, wanted: int) -> int:
    """Size of one more arena with room for ``wanted`` bytes. Sizes double, so a few dozen arenas are always enough."""
    return max(wanted, min(FIRST_BYTES << min(open_arenas, 20), LARGEST_BYTES))


class Arena:
    """A sealed memory file of ``nbytes`` (a multiple of the page size), mapped as ``buffer`` uint8 [nbytes]."""

    def __init__(self, nbytes: int) -> None:
        """Raises QuotaExceededError when there is no descriptor, or no address space, for it."""
        self.gaps = Gaps(nbytes)
        try:
            self.fd = memfiles.create("atta-slots", nbytes)
        except OSError as error:
            raise _refused(error) from error
        try:
            # The mapping takes another descriptor. Both have the lowest free numbers, so these tell how many are left.
            if 0 <= _most_files() <= self.fd + 1 + SPARE_DESCRIPTORS:
                raise _refused("the rest is kept for connections")
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0)
            self.buffer = np.frombuffer(mmap.mmap(self.fd, nbytes, flags=flags), dtype=np.uint8)
        except OSError as error:
            os.close(self.fd)
            raise _refused(error) from error
        except BaseException:
            os.close(self.fd)
            raise
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self.inode = os.fstat(self.fd).st_ino

    @property
    def resident_bytes(self) -> int:
        """Memory of its pages, as the kernel counts it."""
        return 512 * os.fstat(self.fd).st_blocks if self.fd >= 0 else 0

    def touched(self, start: int, nbytes: int) -> list[tuple[int, int]]:
        """Where in a range there are pages: (start, stop), ascending, counted from the begin of the range."""
        found, at, stop = [], start, start + nbytes
        while at < stop:
            try:
                data = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError:  # nothing from here to the end
                break
            at = min(os.lseek(self.fd, data, os.SEEK_HOLE), stop)
            if data < at:
                found.append((data - start, at - start))
        return found

    def close(self) -> None:
        """Drop this side's file and mapping; a consumer that still maps it keeps the pages."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.buffer = np.empty(0, dtype=np.uint8)


def _most_files() -> int:
    """How many files this process may have open; -1: any number."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _refused(cause: object) -> QuotaExceededError:
    return QuotaExceededError(
        f"no memory file for another batch buffer: {cause}; the daemon may have {_most_files()} files open (ulimit -n)"
    )


PAGE = 4096
POPULATED_AT_ONCE = 4 << 20
"""Pages are made for so many bytes at a time. In between, the slot may be given back."""
MIN_FREE_BYTES = 64 << 20
"""Least free memory for another slot, if no batch took more. Touching a page that the machine does not have kills the
process."""
GROWN_BYTES, GROWN_BATCHES = 512 << 20, 3
"""Slots that hold so much, and so many of the largest batches, leave a tenth of the machine's memory free."""
IDLE_S = 30.0
"""How long free slots of a size are kept that no session uses. The next epoch, or the next validation, may want
them."""
IDLE_SIZES = 4
"""Largest number of such sizes; those used last are kept."""


@dataclass(eq=False)
class Slot:
    """A range of an arena; ``buffer`` uint8 [capacity], of which only touched pages take memory. ``made`` numbers the
    slots of a pool: a range whose pages were given back is another slot when it is taken again."""

    arena: Arena
    offset: int
    capacity: int
    buffer: np.ndarray = field(repr=False)
    made: int
    nonce: int = 0
    populating: bool = False  # pages are still made by another thread

    @property
    def path(self) -> str:
        """Where a process of the same user on this machine can open the slot's arena."""
        return self.arena.path

    def touched(self) -> list[tuple[int, int]]:
        """Where the slot has pages: (start, stop), ascending."""
        return self.arena.touched(self.offset, _pages(self.capacity))

    def populate(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Make the pages of ``ranges``, if the slot is not given back meanwhile. Any thread may do so beside writers."""
        buffer = self.buffer  # keeps the mapping
        try:
            for start, stop in ranges:
                for at in range(start, min(stop, len(buffer)), POPULATED_AT_ONCE):
                    nbytes = min(stop - at, POPULATED_AT_ONCE)
                    if not len(self.buffer) or not memfiles.populate(buffer.ctypes.data + at, nbytes):
                        return
        finally:
            self.populating = False

    def claim(self) -> bool:
        """Prepare the slot for a new batch; False while a consumer reads it. Later consumers find another nonce."""
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


def slot_size(nbytes: int) -> int:
    """``nbytes`` rounded up to one of eight sizes between two powers of two. So loaders whose batches differ little in
    size use each other's slots. What is not touched takes no memory."""
    pages = -(-nbytes // PAGE)
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step * PAGE


def _available() -> int:
    try:
        return available_bytes()
    except OSError as error:
        raise QuotaExceededError(f"no room for another batch buffer: too many files open ({error})") from error


def stale_sizes(used: Mapping[int, float], in_use: Collection[int], now: float) -> list[int]:
    """Sizes whose free slots are not worth their memory. ``used``: when each was last used, the latest one last. Pure."""
    idle = [size for size in used if size not in in_use]
    recent = idle[-IDLE_SIZES:]
    return [size for size in idle if size not in recent or now - used[size] > IDLE_S]


class SlotPool:
    """All slots of a daemon: hands out free ones, creates more within ``quota_bytes`` of touched memory."""

    def __init__(
        self,
        quota_bytes: int,
        on_return: Callable[[], None] = lambda: None,
        aside: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``on_return``: called whenever a slot that was lent has come back or is given up. ``aside`` runs work on
        another thread; None: pages are made by those who fill them."""
        self.quota_bytes, self._on_return, self._aside = quota_bytes, on_return, aside
        self._arenas: list[Arena] = []  # none is wholly free
        # Every slot is in exactly one of these three. Ranges of slots do not overlap.
        self._free: dict[int, list[Slot]] = {}  # by capacity, the latest used last
        self._out: set[Slot] = set()  # batches are made in them, queued, or read by consumers
        self._left: dict[Slot, tuple[str, int]] = {}  # to consumers of closed sessions: session, bytes
        self._lent: dict[Slot, int] = {}  # those of ``_out`` that consumers read, and the bytes of their batches
        self._usual: dict[int, int] = {}  # by capacity, the largest batch that was lent
        self._pages: dict[int, list[tuple[int, int]]] = {}  # by capacity, where that batch lay in its slot
        self._used: OrderedDict[int, float] = OrderedDict()  # by capacity, when it was last used, the latest last
        self._sessions: Counter[int] = Counter()  # by capacity; not negative
        self.created = 0

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def resident_bytes(self) -> int:
        """Memory that the pool's slots occupy, without those left to consumers of closed sessions."""
        return sum(arena.resident_bytes for arena in self._arenas) - sum(nbytes for _, nbytes in self._left.values())

    @property
    def lent_bytes(self) -> int:
        """Bytes of the batches that consumers read."""
        return sum(self._lent.values())

    @property
    def lingering(self) -> int:
        """Number of closed sessions whose consumers still read batches."""
        return len({session for session, _ in self._left.values()})

    # -- sessions ------------------------------------------------------------------------------------------------------

    def opened(self, capacity: int) -> None:
        """A session will want slots of ``capacity`` bytes."""
        self._sessions[slot_size(capacity)] += 1

    def closed(self, capacity: int, now: float) -> None:
        """A session that wanted slots of ``capacity`` bytes has ended."""
        capacity = slot_size(capacity)
        self._sessions[capacity] -= 1
        self._use(capacity, now)
        self.trim(now)

    def trim(self, now: float) -> None:
        """Take back slots that consumers of closed sessions have let go of. Free those that are not worth their memory."""
        for slot in list(self._left):
            if slot.claim():
                del self._left[slot]
                self._free.setdefault(slot.capacity, []).insert(0, slot)
        self._sessions += Counter()  # without zeros
        for capacity in self._free:
            if capacity not in self._used:
                self._use(capacity, now)
        for capacity in stale_sizes(self._used, self._sessions, now):
            # Slots stay that a consumer reads although it has let go of them.
            if kept := [slot for slot in self._free.pop(capacity, []) if not self._dropped(slot)]:
                self._free[capacity] = kept
            else:
                del self._used[capacity]
                self._usual.pop(capacity, None)
                self._pages.pop(capacity, None)

    def _use(self, capacity: int, now: float) -> None:
        self._used[capacity] = now
        self._used.move_to_end(capacity)

    def _drop_one(self, wanted: int) -> bool:
        """Give back a free slot of another size than ``wanted``, first of sizes that no session uses, if any."""
        others = [size for size, slots in self._free.items() if slots and size != wanted]
        for size in sorted(others, key=lambda size: (self._sessions[size] > 0, self._used.get(size, 0.0))):
            for index, slot in enumerate(self._free[size]):
                if self._dropped(slot):
                    del self._free[size][index]
                    return True
        return False

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
        """A slot of at least ``capacity`` bytes, a used one if possible. Raises QuotaExceededError: the quota, the
        machine's free memory, or the number of descriptors is used up."""
        capacity = slot_size(capacity)
        free = self._free.get(capacity, [])
        for index in range(len(free) - 1, -1, -1):
            if free[index].claim():
                slot = free.pop(index)
                self._out.add(slot)
                return slot
        self._make_room(capacity)
        slot = self._create(capacity)
        slot.claim()
        if self._aside is not None and (ranges := self._pages.get(capacity)):
            slot.populating = True
            self._aside(partial(slot.populate, ranges))
        self.created += 1
        self._out.add(slot)
        return slot

    def _make_room(self, capacity: int) -> None:
        usual = self._usual.get(capacity, 0)
        while self.resident_bytes > self.quota_bytes // 2 and self._drop_one(capacity):
            pass
        least = max(MIN_FREE_BYTES, usual)
        # An upper bound: batches in the making still take as much as others of their size.
        making = [slot for slot in self._out if slot.populating or slot not in self._lent]
        promised = sum(self._usual.get(slot.capacity, 0) for slot in making)
        if self.resident_bytes >= max(GROWN_BYTES, GROWN_BATCHES * usual):
            least += total_bytes() // 10
        held, free = self.resident_bytes + promised, _available()
        if held + usual > self.quota_bytes or free - promised < least:
            held, promised = self._exactly()
            free = _available()
        if held + usual > self.quota_bytes:
            raise QuotaExceededError(
                f"batch buffers hold {held >> 20} MiB of a quota of {self.quota_bytes >> 20} MiB: "
                "raise --buffer, lower the batch size, or let go of old batches"
            )
        if (left := max(0, free - promised)) < least:
            raise QuotaExceededError(f"no memory left for another batch buffer: {left >> 20} MiB available")

    def _exactly(self) -> tuple[int, int]:
        """What the slots hold once the batches in the making are made, and how much of it they will still take. Pages
        are made meanwhile, so every slot is looked at once: two looks could miss what comes between them."""
        held = promised = 0
        for slot in [*(slot for slots in self._free.values() for slot in slots), *self._out]:
            making = slot.populating or (slot in self._out and slot not in self._lent)
            touched = sum(stop - start for start, stop in slot.touched())
            more = max(0, self._usual.get(slot.capacity, 0) - touched) if making else 0
            held, promised = held + touched + more, promised + more
        return held, promised

    def _create(self, capacity: int) -> Slot:
        for arena in self._arenas:
            if (start := arena.gaps.take(_pages(capacity))) is not None:
                return Slot(arena, start, capacity, arena.buffer[start : start + capacity], self.created + 1)
        arena = Arena(arena_bytes(len(self._arenas), _pages(capacity)))
        self._arenas.append(arena)
        start = arena.gaps.take(_pages(capacity))
        assert start == 0
        return Slot(arena, start, capacity, arena.buffer[:capacity], self.created + 1)

    def lend(self, slot: Slot, used_bytes: int) -> None:
        """A consumer has taken the batch in ``slot``, of ``used_bytes``."""
        self._lent[slot] = used_bytes
        if used_bytes > self._usual.get(slot.capacity, 0):
            self._usual[slot.capacity], self._pages[slot.capacity] = used_bytes, slot.touched()

    def release(self, slot: Slot) -> None:
        """Take back a slot that is no longer read; its pages stay."""
        self._out.discard(slot)
        self._free.setdefault(slot.capacity, []).append(slot)
        self._returned(slot)

    def abandon(self, slot: Slot, session: str) -> None:
        """Leave a slot to the consumer of a session that has ended, until the consumer lets go of it or dies."""
        self._out.discard(slot)
        if slot.claim():
            self._free.setdefault(slot.capacity, []).append(slot)
        else:  # it has at least the pages of its batch; to count all of them takes the kernel as long as a small batch
            self._left[slot] = session, self._lent.get(slot, 0)
        self._returned(slot)

    def _returned(self, slot: Slot) -> None:
        if self._lent.pop(slot, None) is not None:
            self._on_return()

    def close(self) -> None:
        for arena in self._arenas:
            arena.close()
        self._arenas.clear()
        self._free.clear()
        self._out.clear()
        self._left.clear()
        self._lent.clear()
