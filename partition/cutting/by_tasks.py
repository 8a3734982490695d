"""Partitioning by tasks on several machines, for graphs that outgrow one; the result is that of one machine, bit for bit.
Tasks read slices of the graph folder and write files into a work folder, which all machines share with the destination."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress, Silent
from atta.partition.cutting.balance import Counts, known_balance, missed_lines
from atta.partition.cutting.placing import Placing, RowBlocks
from atta.partition.cutting.run import check_parts, check_seed, how_made
from atta.partition.cutting.tasks import (
    POSITIONS,
    RowRanges,
    TaskPool,
    TaskSizes,
    TaskWork,
    check_one,
    edge_slices,
    keep_numbering,
    merged_rows,
    reverse_balance,
    split_by_part,
    split_by_row,
    type_starts,
    written_part,
)
from atta.partition.cutting.writer import DatasetSteps
from atta.partition.dataset import MANIFEST, part_folder
from atta.partition.disk.files import FileRecord, write_array
from atta.partition.disk.staging import Staging
from atta.partition.disk.store import is_url
from atta.partition.graph import Graph
from atta.partition.methods import bounds_of, make_method
from atta.partition.methods.streaming import Ldg, limits

METHOD = "ldg"
"""The method that tasks know."""
WORK = "work"
"""The folder of a dataset under construction that tasks write into."""

Result = TypeVar("Result")


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
    check_parts(parts)
    check_seed(seed)
    method = make_method(METHOD, options)
    assert isinstance(method, Ldg)
    if method.order == "bfs":
        raise ConfigError("--option order=bfs: needs the whole graph on one machine; random and given do not")
    for place in (src, dst):
        if is_url(place):
            raise ConfigError(f"{place}: tasks need folders that all machines share, not object storage")
    source = Path(src).absolute()
    graph = Graph.open(source, verify=False)
    with Staging(dst, MANIFEST, overwrite=overwrite) as staging:
        folder = staging.path.absolute() / WORK
        folder.mkdir()
        divided = sizes or TaskSizes.of(sum(graph.schema.edge_counts.values()))
        run = _Run(tasks, graph, TaskWork(source, folder, divided), parts, progress or Silent())
        if verify:
            run.tasks("checksums of the graph", check_one, [(name,) for name in sorted(graph.files)])
        assignment = run.assign(method, seed, balance)
        how = how_made(METHOD, parts, seed, balance, options)
        quality = run.write(staging.path, assignment, how, bounds_of(method, graph, balance))
    return how | {"missed": missed_lines(quality)}


@dataclass
class _Run:
    runner: TaskPool
    graph: Graph
    work: TaskWork
    parts: int
    progress: Progress

    def tasks(self, stage: str, function: Callable[..., Result], given: Sequence[tuple[Any, ...]]) -> list[Result]:
        """Run ``function(work, ...)``."""
        self.progress.stage(stage, len(given))
        return self.runner.run(function, [(self.work, *each) for each in given], self.progress.advance)

    def assign(self, method: Ldg, seed: int, balance: Sequence[str] | None) -> dict[str, npt.NDArray[np.int32]]:
        """Place the vertices; returns the partition of each row by node type."""
        names = known_balance(self.graph, balance)
        counts, starts = self.graph.schema.node_counts, type_starts(self.graph)
        total, limit = sum(counts.values()), self.work.sizes.block_edges
        slices = edge_slices(self.graph, self.work.sizes.slice_edges)
        both = sum(self.tasks("symmetry", reverse_balance, [(s,) for s in slices])) % 2**64 != 0
        neighbors = sum(self.graph.schema.edge_counts.values()) * (2 if both else 1)
        ranges = RowRanges(total, max(1, total // max(1, -(-neighbors // limit))), both)
        order = np.random.default_rng(seed).permutation(total) if method.order == "random" else np.arange(total)
        shuffled = method.order == "random"
        if shuffled:
            positions = np.empty(total, np.int64)
            positions[order] = np.arange(total)
            write_array(self.work.folder / POSITIONS, positions)
            del positions
        split = self.tasks("union graph", split_by_row, [(s, ranges) for s in slices])
        given = [(split, ranges, number, ranges.rows if shuffled else None) for number in range(ranges.count)]
        folders = [folder for folder, _ in self.tasks("rows", merged_rows, given)]
        _remove(split)
        blocks = RowBlocks.of(ranges, folders)
        inward = blocks.in_degrees()
        in_degrees = {t: inward[starts[t] : starts[t] + counts[t]] for t in counts}
        weights, room = limits(self.graph, names, self.parts, method.slack, in_degrees)
        turns = [order[slice(*ranges.bounds(number))] for number in range(ranges.count)]
        rows = blocks.streamed if shuffled else lambda number, _: blocks.block(number)
        placing = Placing(blocks, self.parts, weights, room, limit)
        owners = placing.owners(method.passes, turns, rows, self.progress)
        _remove(folders)
        return {t: owners[starts[t] : starts[t] + counts[t]] for t in counts}

    def write(
        self,
        path: Path,
        assignment: Mapping[str, npt.NDArray[np.int32]],
        provenance: dict[str, Any],
        bounds: Mapping[str, float],
    ) -> dict[str, Any]:
        """Write the dataset, and return its quality."""
        steps = DatasetSteps(self.graph, path, self.parts, self.progress)
        steps.number(assignment)
        steps.shared()
        steps.degrees()
        keep_numbering(self.work, steps.numbering)
        slices = edge_slices(self.graph, self.work.sizes.slice_edges)
        split = self.tasks("moving edges", split_by_part, [(s, self.parts) for s in slices])
        moved = {
            e: [folder for s, folder in zip(slices, split, strict=True) if s.edge_type == e]
            for e in self.graph.schema.edge_types
        }
        records: dict[str, FileRecord] = {}
        given = [(moved, part, self.parts) for part in range(self.parts)]
        for part, (folder, counts, files) in enumerate(self.tasks("partitions", written_part, given)):
            (folder / part_folder(part)).rename(path / part_folder(part))
            _take(steps.counts, counts, part)
            records |= files
        shutil.rmtree(self.work.folder)
        return steps.manifest(provenance, bounds, records)


def _take(total: Counts, counts: Counts, part: int) -> None:
    """Copy what a task counted for its partition."""
    for mine, others in ((total.edges, counts.edges), (total.halo, counts.halo)):
        for name, figures in others.items():
            mine[name][part] = figures[part]
    total.cut[part] = counts.cut[part]
    total.most_into[part] = counts.most_into[part]


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)
