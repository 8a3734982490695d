"""Partitioning by tasks on several machines, for graphs that outgrow one; the result is that of one machine, bit for
bit. Tasks read slices of the graph folder and write files into a work folder, which all machines share with the
destination. One process places the vertices by LDG (``methods.streaming``), block by block of the union graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import known_balance, missed_lines
from atta.partition.cutting.run import check_seed, how_made
from atta.partition.cutting.tasks import (
    POSITIONS,
    EdgeSlice,
    RowRanges,
    TaskPool,
    TaskRun,
    TaskSizes,
    check_one,
    lots,
    merged_rows,
    read_bucket,
    remove_folders,
    reverse_balance,
    split_by_row,
    thread_count,
    type_starts,
)
from atta.partition.cutting.writer import DatasetSteps, check_parts
from atta.partition.dataset import MANIFEST
from atta.partition.disk.files import map_array, write_array
from atta.partition.disk.staging import Staging
from atta.partition.disk.store import is_url
from atta.partition.graph import Graph, index_dtype
from atta.partition.methods import bounds_of, make_method
from atta.partition.methods.streaming import Ldg, limits

Longs = npt.NDArray[np.int64]
Rows = tuple[Longs, npt.NDArray[Any]]
"""``indptr`` over all vertices and ``indices``; only some vertices have their rows, the others none."""


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of rows that tasks wrote: a folder for each range, see ``merged_rows``. ``degrees``: int64 [N]."""

    ranges: RowRanges
    folders: Sequence[Path]
    degrees: Longs

    @classmethod
    def of(cls, ranges: RowRanges, folders: Sequence[Path]) -> RowBlocks:
        """Read the degrees."""
        degrees = np.zeros(ranges.total, np.int64)
        for number, folder in enumerate(folders):
            lo, hi = ranges.bounds(number)
            degrees[lo:hi] = np.diff(map_array(folder / "indptr.npy"))
        return cls(ranges, folders, degrees)

    def in_degrees(self) -> Longs:
        """In-degrees of all vertices, loops included, int64 [N]."""
        return np.concatenate([np.empty(0, np.int64), *(map_array(f / "in_degrees.npy") for f in self.folders)])

    def block(self, number: int) -> Rows:
        """The rows of a range."""
        lo, hi = self.ranges.bounds(number)
        return self._indptr(np.arange(lo, hi)), map_array(self.folders[number] / "indices.npy")

    def streamed(self, number: int, vertices: Longs) -> Rows:
        """The rows of ``vertices``, which have the turns of bucket ``number``."""
        (indices,) = read_bucket(self.folders, {"streamed": index_dtype(self.ranges.total)}, number)
        return self._indptr(vertices), indices

    def chosen(self, vertices: Longs) -> Rows:
        """The rows of any ``vertices``, picked from the files."""
        vertices = np.sort(vertices)
        found = [np.empty(0, index_dtype(self.ranges.total))]
        firsts = np.searchsorted(vertices, np.arange(self.ranges.count + 1) * self.ranges.rows)
        for number in np.flatnonzero(np.diff(firsts)).tolist():
            folder, local = self.folders[number], vertices[firsts[number] : firsts[number + 1]]
            begins = map_array(folder / "indptr.npy")[local - number * self.ranges.rows]
            sizes = self.degrees[local]
            shift = begins - (np.cumsum(sizes) - sizes)
            found.append(map_array(folder / "indices.npy")[np.arange(sizes.sum()) + np.repeat(shift, sizes)])
        return self._indptr(vertices), np.concatenate(found)

    def lots(self, vertices: Longs, limit: int) -> Iterator[Longs]:
        """Yield ``vertices`` in lots of at most ``limit`` neighbours, or one vertex that has more."""
        for first, last in lots(np.concatenate([[0], np.cumsum(self.degrees[vertices])]), limit):
            yield vertices[first:last]

    def _indptr(self, vertices: Longs) -> Longs:
        indptr = np.zeros(self.ranges.total + 1, np.int64)
        indptr[vertices + 1] = self.degrees[vertices]
        return np.cumsum(indptr, out=indptr)


Owners = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Placing:
    """What vertices are placed by: ``weights`` int64 [N, C], what is balanced, ``room`` float64 [C], how much of it a
    partition may hold, and ``block_edges``, the neighbours held at a time."""

    blocks: RowBlocks
    parts: int
    weights: Longs
    room: npt.NDArray[np.float64]
    block_edges: int

    def owners(
        self, passes: int, turns: Sequence[Longs], rows: Callable[[int, Longs], Rows], progress: Progress
    ) -> Owners:
        """Return the partition of each vertex, int32 [N]. ``turns``: the vertices in their order, block by block.
        ``rows``: their rows by the block's number and the block's vertices, ascending."""
        owners: Owners | None = None
        flat = self.weights.reshape(-1)
        progress.stage("streaming", passes * len(turns))
        for _ in range(passes):
            placed = np.full(self.blocks.ranges.total, -1, np.int32)
            for number, vertices in enumerate(turns):
                indptr, indices = rows(number, np.sort(vertices))
                given = vertices, owners, placed, self.parts, flat, self.room, 0.0, 0.0, thread_count()
                _native.stream_vertices(indptr, indices, *given)
                progress.advance(1)
            owners = placed
        assert owners is not None
        self._even(owners)
        for number in range(self.blocks.ranges.count):
            block = self.blocks.block(number)
            _native.refine_owners(*block, owners, self.parts, flat, self.room, thread_count())
        return owners

    def _even(self, owners: Owners) -> None:
        """Move vertices out of partitions that hold too much, as ``_native.even_owners`` does, in lots."""
        flat = self.weights.reshape(-1)
        for thing in range(len(self.room)):
            for strict in (True, False):
                if (full := self._full(owners, thing)).any():
                    candidates = self._candidates(owners, thing, strict, full)
                    for lot in self.blocks.lots(candidates, self.block_edges):
                        near = self.blocks.chosen(lot)
                        _native.even_moves(*near, lot, owners, self.parts, flat, self.room, thing, strict)
                        if not self._full(owners, thing).any():
                            break

    def _full(self, owners: Owners, thing: int) -> npt.NDArray[np.bool_]:
        loads = np.bincount(owners, weights=self.weights[:, thing], minlength=self.parts)
        full: npt.NDArray[np.bool_] = loads - self.room[thing] > 0
        return full

    def _candidates(self, owners: Owners, thing: int, strict: bool, full: npt.NDArray[np.bool_]) -> Longs:
        """The vertices of full partitions; those whose move costs the fewest cut edges first."""
        flat = self.weights.reshape(-1)
        vertices, costs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number in range(self.blocks.ranges.count):
            lo, hi = self.blocks.ranges.bounds(number)
            found = lo + np.flatnonzero((self.weights[lo:hi, thing] > 0) & full[owners[lo:hi]])
            if len(found):
                near = self.blocks.block(number)
                vertices.append(found)
                costs.append(_native.even_costs(*near, found, owners, self.parts, flat, self.room, thing, strict))
        return np.concatenate(vertices)[np.argsort(np.concatenate(costs), kind="stable")]


METHOD = "ldg"
"""The method that tasks know."""


def partition_by_tasks(
    tasks: TaskPool,
    src: str | Path,
    dst: str | Path,
    *,
    parts: int,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    balance: Sequence[str] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
    sizes: TaskSizes | None = None,
) -> dict[str, Any]:
    """Partition ``src`` into ``dst`` by LDG, as ``partition_graph(..., method="ldg")`` does, bit for bit. ``tasks``
    runs the work; ``src`` and ``dst`` are folders that all its machines share. ``sizes`` divide the work; by default
    they suit the number of edges. The order "bfs" would need the whole graph at once, so it is refused. For the rest
    see ``partition_graph``. Raises ConfigError: an option is wrong or ``dst`` may not be written; DataError: the graph
    folder is damaged."""
    check_seed(seed)
    method = make_method(METHOD, options)
    assert isinstance(method, Ldg)
    if method.order == "bfs":
        raise ConfigError("--method ldg:order=bfs: needs the whole graph on one machine; random and given do not")
    for place in (src, dst):
        if is_url(place):
            raise ConfigError(f"{place}: tasks need folders that all machines share, not object storage")
    graph = Graph.open(src, verify=False)
    check_parts(parts, graph)
    with Staging(dst, MANIFEST, overwrite=overwrite) as staging:
        run = TaskRun.begun(tasks, graph, staging.path, sizes, progress)
        if verify:
            run.tasks("checksums of the graph", check_one, [(name,) for name in sorted(graph.files)])
        assignment = _assigned(run, parts, method, seed, known_balance(graph, balance))
        how = how_made(METHOD, parts, seed, balance, options)
        quality = DatasetSteps(run, staging.path, parts).all(assignment, how, bounds_of(method, graph, balance))
    return how | {"missed": missed_lines(quality)}


def _assigned(run: TaskRun, parts: int, method: Ldg, seed: int, names: Sequence[str]) -> dict[str, Owners]:
    """Place the vertices: the partition of each row by node type, int32 [n]."""
    counts, starts = run.graph.schema.node_counts, type_starts(run.graph)
    total, limit, slices = sum(counts.values()), run.work.sizes.block_edges, [(s,) for s in run.slices]
    both = sum(run.tasks("symmetry", reverse_balance, slices)) % 2**64 != 0
    neighbors = sum(run.graph.schema.edge_counts.values()) * (2 if both else 1)
    ranges = RowRanges(total, max(1, total // max(1, -(-neighbors // limit))), both)
    shuffled = method.order == "random"
    order = np.random.default_rng(seed).permutation(total) if shuffled else np.arange(total)
    if shuffled:
        positions = np.empty(total, np.int64)
        positions[order] = np.arange(total)
        write_array(run.work.folder / POSITIONS, positions)
        del positions
    blocks = _blocks(run, slices, ranges, ranges.rows if shuffled else None)
    inward = blocks.in_degrees()
    in_degrees = {t: inward[starts[t] : starts[t] + counts[t]] for t in counts}
    weights, room = limits(run.graph, names, parts, method.slack, in_degrees)
    turns = [order[slice(*ranges.bounds(number))] for number in range(ranges.count)]
    rows = blocks.streamed if shuffled else lambda number, _: blocks.block(number)
    owners = Placing(blocks, parts, weights, room, limit).owners(method.passes, turns, rows, run.progress)
    remove_folders(blocks.folders)
    return {t: owners[starts[t] : starts[t] + counts[t]] for t in counts}


def _blocks(run: TaskRun, slices: Sequence[tuple[EdgeSlice]], ranges: RowRanges, turns: int | None) -> RowBlocks:
    split = run.tasks("union graph", split_by_row, [(*s, ranges) for s in slices])
    merged = run.tasks("rows", merged_rows, [(split, ranges, number, turns) for number in range(ranges.count)])
    remove_folders(split)
    return RowBlocks.of(ranges, [folder for folder, _ in merged])
