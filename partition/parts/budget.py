"""How the memory of one machine is divided among the daemons on it and those who read their batches. Pure: sizes in, plan
out.

Memory goes, in this order, to what every process needs at least, to batches and those who read them, to the partitions, and
to the caches. A partition that is mapped takes none of its own, but is slow where its files do not stay in the page cache.
So caches get what these files leave, and files that cannot stay there are read page by page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.partition.parts.needs import TRANSIT, Needs

__all__ = ["DEFAULT_CACHE", "MachineRoom", "MemoryPlan", "MemoryWish", "plan_memory"]

MIB = 1 << 20
SPARE = 10
"""One in so many bytes of the machine, or of the control group, stays free."""
LEAST_BYTES = 128 * MIB
"""What a daemon of a small graph takes, with few sessions."""
OWN_BYTES = 192 * MIB
"""What a daemon takes beside its data: interpreter, libraries, threads, requests of its peers."""
BATCH_BYTES = 512 * MIB
"""Buffers of the daemon that makes batches for one reader. They may grow further while memory is free."""
IN_FLIGHT = 16
"""Batches of one reader that may be under way. Each has a row of the graph once, mostly."""
READER_BYTES = 1 << 30
"""What a process that reads batches takes: libraries, a model, the batches that it holds."""
DEFAULT_CACHE = 1 << 30
"""Most memory of a cache that nobody has said the size of."""
MAPPED_CACHE = 256 * MIB
"""The same where several daemons map files on one machine: they read each other's rows from the same page cache."""
LOADED = 4
"""A partition is loaded where this many of it would fit: so the machine stays useful for others."""
BESIDE = 2
"""All partitions are loaded where caches may then take as much."""


@dataclass(frozen=True)
class MachineRoom:
    """Bytes of the machine, or of the tightest control group: ``limit`` in all, ``free`` not taken or promised. Files in
    the page cache count as free."""

    limit: int
    free: int

    @property
    def usable(self) -> int:
        """What may be taken so that a part stays free."""
        return max(0, self.free - self.limit // SPARE)


@dataclass(frozen=True)
class MemoryWish:
    """What somebody has said, mostly by options of ``atta serve``. None: nothing.

    Attributes:
        memory: ``auto``, ``copy``, ``map`` or ``disk``.
        cache, buffer, tables: bytes of each daemon.
        replicas: number of daemons that serve the same partitions.
        readers: number of processes on this machine that are going to read batches.
    """

    memory: str = "auto"
    cache: int | None = None
    buffer: int | None = None
    tables: int | None = None
    replicas: int = 1
    readers: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What each daemon is to take.

    Attributes:
        copies: whether partitions are loaded; otherwise their files are mapped.
        pages: whether mapped files are read page by page, as they do not stay in memory.
        cache: most bytes of each daemon's cache.
        total: bytes of all daemons and readers together, apart from mapped files.
        short: whether more memory would have changed the plan.
        why: the figures behind it, for people.
    """

    copies: bool
    pages: bool
    cache: int
    total: int
    short: bool
    why: str

    @property
    def way(self) -> str:
        """The value of ``--memory`` that says the same."""
        return "copy" if self.copies else "disk" if self.pages else "map"

    @property
    def line(self) -> str:
        """One sentence for people."""
        how = {"copy": "loads what it serves", "map": "maps the files that it serves"}.get(
            self.way, "reads the files that it serves page by page"
        )
        return f"memory: each daemon {how} and keeps up to {_text(self.cache)} of others, because {self.why}"


def plan_memory(needs: Sequence[Needs], room: MachineRoom, wish: MemoryWish) -> MemoryPlan:
    """Divide ``room`` among daemons with ``needs``. What ``wish`` says stays as it is.

    Raises:
        ConfigError: it cannot fit; the message has the figures.
    """
    daemons, files = wish.replicas * len(needs), sum(need.partition for need in needs)
    copies = wish.replicas * files
    loads = wish.memory == "copy"
    fixed = daemons * LEAST_BYTES + _caches(needs, wish.cache or 0, wish)
    least = fixed + (copies if loads else 0)
    why = f"{daemons} of them have {_text(room.usable)} ({_text(room.free)} of {_text(room.limit)} are free)"
    if least > room.usable:
        parts = f"{_text(daemons * LEAST_BYTES)} for themselves"
        parts += f", {_text(fixed - daemons * LEAST_BYTES)} for caches" if wish.cache else ""
        parts += f", {_text(copies)} for their partitions" if loads else ""
        raise ConfigError(
            f"daemons do not fit into memory: they need {_text(least)} ({parts}), and {why}; start fewer, "
            "let --memory map files, or give less to --cache"
        )
    whole = max(need.partition + need.remote for need in needs)
    comfort = min(room.usable - least, _comfort(daemons, wish, IN_FLIGHT * whole))
    left = room.usable - fixed - comfort
    if wish.memory == "auto":
        beside = _caches(needs, DEFAULT_CACHE, wish) if wish.cache is None else 0
        most = min(beside, (BESIDE - 1) * copies) if wish.replicas == 1 else beside  # replicas share files, not copies
        loads = LOADED * max(need.partition for need in needs) <= room.free and copies + most <= left
    mapped = files + max(need.shared for need in needs)
    left -= copies if loads else mapped
    pages = wish.memory == "disk" or (wish.memory == "auto" and not loads and mapped > room.usable - fixed)
    most = DEFAULT_CACHE if loads or daemons == 1 else MAPPED_CACHE
    cache = _most_cache(needs, left, wish, most) if wish.cache is None else wish.cache
    total = fixed + comfort + (copies if loads else 0) + (_caches(needs, cache, wish) if wish.cache is None else 0)
    short = (not loads and wish.memory == "auto") or (wish.cache is None and cache < DEFAULT_CACHE)
    why += f": {_text(fixed + comfort)} for themselves, batches and readers, {_text(copies if loads else files)} for partitions"
    return MemoryPlan(loads, pages, cache, total, short, why)


def _comfort(daemons: int, wish: MemoryWish, most: int) -> int:
    """Bytes for batches, for those who read them, and for tables, if there is room. ``most``: of batches that the graph
    gives."""
    buffer = BATCH_BYTES if wish.buffer is None else min(BATCH_BYTES, int((1 + TRANSIT) * wish.buffer))
    buffer = min(buffer, most)
    busy = min(daemons, max(1, wish.readers))
    return daemons * (OWN_BYTES - LEAST_BYTES + (wish.tables or 0)) + busy * buffer + wish.readers * READER_BYTES


def _caches(needs: Sequence[Needs], cache: int, wish: MemoryWish) -> int:
    """Bytes of all caches of at most ``cache`` bytes."""
    return wish.replicas * sum(need.cached(cache) for need in needs)


def _most_cache(needs: Sequence[Needs], left: int, wish: MemoryWish, most: int) -> int:
    """The largest size of each cache up to ``most``, in whole MiB, with which all of them fit into ``left``."""
    low, high = 0, most // MIB
    while low < high:
        middle = (low + high + 1) // 2
        if _caches(needs, middle * MIB, wish) <= left:
            low = middle
        else:
            high = middle - 1
    return low * MIB


def _text(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes // MIB} MiB"
