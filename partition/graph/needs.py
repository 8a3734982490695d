"""What daemons need of a machine, as a dataset's manifest tells it, and how its memory is divided among them and those
who read their batches: first what every process needs at least, then batches, partitions, caches. A partition that is
mapped takes none of its own, but is slow where its files do not stay in the page cache. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atta.errors import ConfigError
from atta.observe.lastwords import counted
from atta.observe.settings import SIZES, amount_of
from atta.partition.dataset import Dataset, part_folder
from atta.partition.names import edge_folder, node_folder

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
    """Bytes of the machine or its tightest control group, in all and not promised, the page cache included."""

    limit: int
    free: int

    @property
    def usable(self) -> int:
        """What may be taken so that a part stays free."""
        return max(0, self.free - self.limit // SPARE)


@dataclass(frozen=True)
class MemoryWish:
    """What somebody has said, mostly by options of ``atta serve``; None: nothing. ``memory``: ``auto``, ``copy``,
    ``map``, ``disk``, or a size. ``cache``, ``buffer``, ``tables``: bytes of each daemon. ``replicas``: of the same partitions.
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
        bound: bytes of one daemon that reads from the disk what does not fit; 0: daemons have no bound.
    """

    copies: bool
    pages: bool
    cache: int
    total: int
    short: bool
    why: str
    bound: int = 0

    @property
    def way(self) -> str:
        """The value of ``--memory`` that says the same."""
        return str(self.bound) if self.bound else "copy" if self.copies else "disk" if self.pages else "map"

    @property
    def line(self) -> str:
        """One sentence for people."""
        if self.bound:
            return f"memory: each daemon takes up to {_text(self.bound)} and reads from the disk what does not fit"
        ways = {"copy": "loads its partition", "map": "maps its files, which the system holds in memory"}
        how = ways.get(self.way, "reads its partition from the disk, page by page")
        kept = f"up to {_text(self.cache)}" if self.cache else "no rows"
        todo = ". This works as it is; more free memory makes it faster" if self.short else ""
        return f"memory: {self.why}. So each daemon {how}, and keeps {kept} of other partitions{todo}"


def plan_memory(needs: Sequence[Needs], room: MachineRoom, wish: MemoryWish) -> MemoryPlan:
    """Divide ``room`` among daemons with ``needs``. What ``wish`` says stays as it is. Raises ConfigError: it cannot
    fit; the message has the figures."""
    if bound := memory_size(wish.memory):
        total, cache = wish.replicas * len(needs) * bound, wish.cache or 0
        return MemoryPlan(False, True, cache, total, False, "that is the bound of each", bound)
    daemons, files = wish.replicas * len(needs), sum(need.partition for need in needs)
    copies = wish.replicas * files
    loads = wish.memory == "copy"
    fixed = daemons * LEAST_BYTES + _caches(needs, wish.cache or 0, wish)
    least = fixed + (copies if loads else 0)
    free = f"{_text(room.free)} of {_text(room.limit)} are free, a tenth of all stays so"
    why = f"{counted(daemons, 'daemon')} may take {_text(room.usable)} ({free})"
    if least > room.usable:
        parts = f"{_text(daemons * LEAST_BYTES)} for themselves"
        parts += f", {_text(fixed - daemons * LEAST_BYTES)} for caches" if wish.cache else ""
        parts += f", {_text(copies)} for their partitions" if loads else ""
        raise ConfigError(
            f"daemons do not fit into memory: they need {_text(least)} ({parts}); {why}: start fewer, "
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
    why += f" and want {_text(fixed + comfort)} for themselves, batches and their readers"
    partitions = _text(copies if loads else files)
    return MemoryPlan(loads, pages, cache, total, short, f"{why}, and {partitions} for partitions")


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


EDGE_BLOCK = 512
"""Bytes of an in-edge file that stay in memory together: the edges of a few vertices."""
_MOST_LOADED = 0.75
"""An array is loaded if it takes at most this share of what is left."""
_LEAST_CACHE = 4 * MIB
"""Memory for rows of one file, at least."""


def memory_size(memory: str) -> int | None:
    """Bytes of ``--memory 4GiB``; None: it is a word such as ``map``."""
    amount = amount_of(memory, SIZES)
    return None if amount is None else int(amount)


def node_file(part: int, node_type: str, name: str) -> str:
    """The file of a partition's rows of a table."""
    return f"{part_folder(part)}/{node_folder(node_type)}/{name}.npy"


def edge_file(part: int, edge_type: str, name: str) -> str:
    """The file of one array of a partition's in-edges."""
    return f"{part_folder(part)}/{edge_folder(edge_type)}/{name}.npy"


@dataclass(frozen=True)
class DiskPlan:
    """How one daemon spends a bounded memory.

    Attributes:
        slots: number of rows, or of blocks of ``EDGE_BLOCK`` bytes, that stay in memory of each file that is read from the
            disk. Other tables and in-edges are loaded.
        cache: bytes for rows and in-edges of other partitions.
    """

    slots: Mapping[str, int] = field(default_factory=dict)
    cache: int = 0


class _Together(NamedTuple):
    """Files whose arrays have a part of each vertex, which a task reads together."""

    per_read: int
    """Bytes in memory that save one read: of a vertex each array is one read, however long its part is."""
    unit: int
    """Bytes that stay in memory together."""
    files: tuple[str, ...]


def plan_disk(dataset: Dataset, part: int, bound: int, *, cache: int | None, buffer: int) -> DiskPlan:
    """Divide ``bound`` bytes: first what must be in memory, then arrays that fit and save most reads per byte, then rows of
    others. ``buffer``: for batches. ``cache``: for other partitions; None: up to an eighth of the rest. Raises ConfigError:
    too little; names the least."""
    groups, need = _read_together(dataset, part), needs_of(dataset, [range(part, part + 1)])[0]
    size = {file: dataset.files[file].size for group in groups for file in group.files}
    fixed = OWN_BYTES + buffer + (int(TRANSIT * buffer) if need.remote else 0) + (cache or 0)
    fixed += _bytes_in(dataset, "shared/") + sum(
        dataset.files[edge_file(part, edge_type, "indptr")].size for edge_type in dataset.schema.edge_types
    )
    left, least = bound - fixed, sum(min(nbytes, _LEAST_CACHE) for nbytes in size.values())
    if left < least:
        raise ConfigError(
            f"--memory {_text(bound)}: this partition needs {-(-(fixed + least) // MIB)}MiB at least: {_text(buffer)} for batches "
            f"(--buffer), {_text(fixed - buffer)} for the process, ids, splits and caches, {_text(least)} for rows and in-edges"
        )
    if cache is None:
        cache = min(DEFAULT_CACHE, left // 8, need.cached(left)) if need.remote else 0
        left -= cache
    units = dict[str, int]()
    for group in sorted(groups):
        nbytes = sum(size[file] for file in group.files)
        if nbytes <= _MOST_LOADED * left:
            left -= nbytes
        else:
            units |= dict.fromkeys(group.files, group.unit)
    share = left / max(1, sum(size[file] for file in units))
    return DiskPlan({file: _slots(size[file], unit, share) for file, unit in units.items()}, cache)


def _slots(nbytes: int, unit: int, share: float) -> int:
    """Number of units of a file that stay in memory with their index, in this share of its size."""
    return max(1, min(-(-nbytes // unit), int(share * nbytes) // (unit + INDEX_BYTES)))


def _read_together(dataset: Dataset, part: int) -> list[_Together]:
    schema, found = dataset.schema, list[_Together]()
    for node_type, tables in schema.node_tables.items():
        for name, spec in tables.items():
            found.append(_Together(spec.row_bytes, max(1, spec.row_bytes), (node_file(part, node_type, name),)))
    for edge_type in schema.edge_types:
        indptr, *files = (edge_file(part, edge_type, name) for name in ("indptr", "indices", "edge_ids"))
        per_vertex = dataset.files[files[0]].size // dataset.files[indptr].shape[0]
        found.append(_Together(per_vertex, EDGE_BLOCK, tuple(files)))
    return found
