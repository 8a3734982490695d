"""What daemons need of a machine, as a dataset's manifest tells it, and how its memory is divided among them and those
who read their batches: first what every process needs at least, then batches, partitions, caches. A partition that is
mapped takes none of its own, but is slow where its files do not stay in the page cache. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.partition.dataset import Dataset, part_folder
from atta.partition.names import node_folder

BARE_BYTES = 384 << 20
"""Memory of a daemon beside its data: interpreter, libraries, and what its threads and sessions hold."""
TRANSIT = 0.5
"""Rows of other daemons on their way into batches, relative to the bound for batches."""
INDEX_BYTES = 80
"""Memory of a cached vertex beside its rows, at most: its place in a hash table, and what choosing it takes for a while."""


@dataclass(frozen=True)
class Needs:
    """What one daemon needs, in bytes, as the dataset's manifest tells it.

    Attributes:
        partition: files of the partition.
        shared: files that every daemon maps: ids and splits, and the times of other partitions' vertices.
        halo_rows: table rows of vertices of other partitions with edges into this one.
        halo_edges: in-edges of those vertices, about; the cache keeps them beside the rows.
        remote: table rows and in-edges of all vertices of other partitions. No cache keeps more.
        index: bytes that a cache takes to find its rows, for each byte of rows.
    """

    partition: int
    shared: int
    halo_rows: int
    halo_edges: int = 0
    remote: int = 0
    index: float = 0.0

    def cached(self, cache: int) -> int:
        """Bytes of a full cache that is bounded by ``cache``."""
        return int((1 + self.index) * min(cache, self.remote))

    def memory(self, cache: int, buffer: int) -> int:
        """Bytes to ask an engine for. ``cache``, ``buffer``: the daemon's bounds for hot rows and for batches."""
        kept = int((1 + self.index) * min(cache, self.halo_rows + self.halo_edges))
        return BARE_BYTES + self.partition + self.shared + kept + buffer + int(TRANSIT * buffer)


def needs_of(dataset: Dataset, groups: Sequence[range] | None = None) -> list[Needs]:
    """What the daemon of each of ``groups`` of partitions needs, from the manifest alone; None: of each partition."""
    groups = [range(part, part + 1) for part in range(dataset.partitions.num_parts)] if groups is None else groups
    shared = _bytes_in(dataset, "shared/")
    return [_needs_of_group(dataset, parts, shared) for parts in groups]


def _needs_of_group(dataset: Dataset, parts: range, shared: int) -> Needs:
    own = tuple(f"{part_folder(part)}/" for part in parts)
    times = [name for node_type in dataset.schema.node_types for name in dataset.time_files(node_type)]
    sizes = {t: sum(spec.row_bytes for spec in tables.values()) for t, tables in dataset.schema.node_tables.items()}
    lists = {t: [f"{folder}{node_folder(t)}/halo.npy" for folder in own] for t in sizes}
    halos = {t: sum(dataset.files[name].shape[0] for name in names) for t, names in lists.items()}
    rows = sum(halos[t] * size for t, size in sizes.items())
    owned = {t: sum(hi - lo for part in parts for lo, hi in [dataset.partitions.range(t, part)]) for t in sizes}
    others = sum((dataset.schema.node_counts[t] - owned[t]) * size for t, size in sizes.items())
    indexed = sum(halos[t] for t, size in sizes.items() if size)
    return Needs(
        partition=sum(_bytes_in(dataset, folder) for folder in own),
        shared=shared + sum(dataset.files[name].size for name in times if not name.startswith(own)),
        halo_rows=rows,
        halo_edges=_halo_edges(dataset, parts, sum(halos.values())),
        remote=others + _edges_elsewhere(dataset, parts),
        index=INDEX_BYTES * indexed / rows if rows else 0.0,
    )


def _bytes_in(dataset: Dataset, folder: str) -> int:
    return sum(record.size for name, record in dataset.files.items() if name.startswith(folder))


def _edges_elsewhere(dataset: Dataset, parts: range) -> int:
    own = tuple(f"{part_folder(part)}/" for part in parts)
    names = [name for name in dataset.files if "/edges/" in name and not name.startswith(own)]
    return sum(dataset.files[name].size for name in names if name.endswith(("/indices.npy", "/edge_ids.npy")))


def _halo_edges(dataset: Dataset, parts: range, halo: int) -> int:
    """In-edges of HALO vertices, as if these had as many as other vertices of other partitions."""
    total = dataset.partitions.num_parts
    others = sum(dataset.schema.node_counts.values()) * (total - len(parts)) // total
    return int(_edges_elsewhere(dataset, parts) * min(1.0, halo / max(1, others)))


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
    """Bytes of the machine, or of the tightest control group: ``limit`` in all, ``free`` not taken or promised. Files
    in the page cache count as free."""

    limit: int
    free: int

    @property
    def usable(self) -> int:
        """What may be taken so that a part stays free."""
        return max(0, self.free - self.limit // SPARE)


@dataclass(frozen=True)
class MemoryWish:
    """What somebody has said, mostly by options of ``atta serve``; None: nothing. ``memory``: ``auto``, ``copy``,
    ``map`` or ``disk``. ``cache``, ``buffer``, ``tables``: bytes of each daemon. ``replicas``: of the same partitions.
    ``readers``: processes on this machine that are going to read batches."""

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
    """Divide ``room`` among daemons with ``needs``. What ``wish`` says stays as it is. Raises ConfigError: it cannot
    fit; the message has the figures."""
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
