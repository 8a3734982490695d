"""The CPU steps of one mini-batch while its DAG runs. Between these steps daemons exchange rows.

    seed() ──► growth of the seeds ──► sample_items(task) … accept(task, …) ──► join(op) ──► growth of the hop ──► …
                       └──► feature_items(task) … table_rows(…)                    └──► the same for the hop's vertices
    … ──► finish()

Nothing here waits or communicates. Steps of different tasks may run on different threads at the same time: each touches
only the state of its own operator, and the DAG runs one join of a batch at a time. Local ids number the vertices of a batch
per node type as they are first reached. So the new vertices of a hop are a range after that of the hop before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atta.errors import ConfigError, blaming
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.batch.edge_weights import FACTOR, WeighedEdges
from atta.samplers.batch.growths import Growths, Votes, among, rows_of_edges
from atta.samplers.batch.items import (
    EDGES,
    TIME,
    BatchSeeds,
    FeatureItem,
    Joined,
    PairItem,
    Pending,
    SampleItem,
    StreamPosition,
)
from atta.samplers.batch.layout import BatchArrays
from atta.samplers.batch.negatives import NegativeLinks, Positives, draw_negatives, times_of_trees
from atta.samplers.batch.sums import RowsAtHome, RowSums, WantedSums, last_edges, leaves_last_hop
from atta.samplers.batch.vertices import CompactorPool, Degree, KeptEdges, KeptRows, NewVertices, TaskRows
from atta.samplers.dag.instance import Kind, Task
from atta.samplers.dag.plan import EdgeUse
from atta.samplers.dag.spec import Plan, PlanOp
from atta.samplers.hashing import hash_string, stream_key
from atta.samplers.kernels.sums import LastEdges
from atta.samplers.operators.base import Batch, Bounds, Sampled, checked
from atta.samplers.requests import Program
from atta.samplers.shard import Answer, places, without_edges

NO_SOURCES: Mapping[tuple[str, str], int] = {}
"""All rows and edges are the dataset's own."""


class BatchState:
    """The arrays of one batch in flight. The module docstring has the order of calls."""

    def __init__(
        self,
        plan: Plan,
        dataset: Dataset,
        *,
        home: int,
        at: StreamPosition,
        seeds: BatchSeeds,
        out: BatchArrays,
        compactors: CompactorPool,
        degree: Degree,
        kept: KeptEdges | None = None,
        rows: KeptRows | None = None,
        sources: Mapping[tuple[str, str], int] = NO_SOURCES,
        shifts: Mapping[tuple[str, str], np.ndarray] | None = None,
    ) -> None:
        """``degree(edge_types, rows)`` gives the total in-degree of rows of the home partition: the exact cost of local
        tasks. ``kept`` and ``rows``: in-edges and table rows of other owners' vertices that are at home. ``sources``:
        by node type and table, the version whose rows the batch gets, and by edge type and ``EDGES`` the one whose
        edges it draws; 0 or absent: the dataset's own. ``shifts``: see ``RowSums``, for plans with sums."""
        self.plan, self.dataset, self.home, self.at, self.out = plan, dataset, home, at, out
        self._seeds = seeds
        self._pool, self._known = compactors, compactors.take(trees=plan.disjoint)
        self._growths, self.sources = Growths(plan, dataset, home=home, degree=degree, kept=kept, rows=rows), sources
        self._tree_times = seeds.times
        if plan.temporal and seeds.times is None:
            own = dataset.times(plan.seed.node_type)
            self._tree_times = None if own is None else own.times[seeds.ids]
        elif seeds.times is not None and plan.links:
            negatives = (op.negatives for op in plan.ops if op.negatives is not None)
            self._tree_times = times_of_trees(seeds.times, negatives)
        self._pending = {op.id: Pending() for op in plan.ops}
        self._votes = {t: Votes() for op in plan.neighborhoods for t, _ in op.budgets}
        self._weighed = {what.edge_type: WeighedEdges(what, plan, dataset) for what in plan.edge_weights}
        self._shifts = shifts or {}
        self._sums: RowSums | None = None
        self._last: dict[str, LastEdges] = {}
        self._leaves_last = plan.summed is not None and leaves_last_hop(plan, out.arrays)
        self._whole = np.empty(0, np.int64)  # ids of the edges that a batch operator has chosen
        self.stats: dict[str, float] = {}

    # -- seeds and pairs -----------------------------------------------------------------------------------------------

    def seed(self) -> Joined:
        """Number the seeds and report them by owner. A repeated seed is numbered once, unless trees are disjoint."""
        seeds = self._seeds
        if self.plan.links:
            assert seeds.sources is not None
            self.out.append("input_id", len(seeds.ids))[:] = seeds.input_id
            self._number_links("link/", seeds.sources, seeds.ids, 0)
            return self._grown(self.plan.seed.id, {})
        for node_type, start, stop in seeds.by_type(self.dataset.schema, self.plan.seed.node_type):
            known = self._known[node_type]
            local = known.insert(seeds.ids[start:stop], np.arange(start, stop))
            first: np.ndarray | slice = slice(None)
            if known.size < len(local):
                first = np.full(known.size, len(local), dtype=np.int64)
                np.minimum.at(first, local, np.arange(len(local)))
            self.out.append("input_id", known.size)[:] = seeds.input_id[start:stop][first]
        return self._grown(self.plan.seed.id, {})

    def _number_links(self, prefix: str, sources: np.ndarray, targets: np.ndarray, first_tree: int) -> None:
        source, target = self.dataset.schema.endpoints(self.plan.seed.edge_type)
        trees = first_tree + np.arange(2 * len(sources))
        self.out.append(f"{prefix}src", len(sources))[:] = self._known[source].insert(sources, trees[: len(sources)])
        self.out.append(f"{prefix}dst", len(targets))[:] = self._known[target].insert(targets, trees[len(sources) :])

    def _number_negatives(self, spec: NegativeLinks, sources: np.ndarray, targets: np.ndarray) -> None:
        """Number the ends of negative edges. The sources of triplets are those of the positives and have their trees.
        The trees of the targets are those of the first negative of each positive, then of the second ones, as in PyG.
        """
        positives = len(self._seeds.ids)
        if not spec.triplet:
            self._number_links("link/neg_", sources, targets, 2 * positives)
            return
        known = self._known[self.dataset.schema.endpoints(self.plan.seed.edge_type)[1]]
        order = np.arange(len(targets))
        trees = 2 * positives + order
        if self.plan.disjoint:
            order = order.reshape(-1, int(spec.amount)).T.ravel()
        self.out.append("link/neg_src", len(sources))[:] = np.repeat(self.out.filled("link/src"), int(spec.amount))
        self.out.append("link/neg_dst", len(targets))[order] = known.insert(targets[order], trees)

    def negatives(self, op_id: str) -> Program[tuple[np.ndarray, np.ndarray]]:
        """The program that draws an operator's negative edges."""
        op, schema = self.plan.op(op_id), self.dataset.schema
        source, target = schema.endpoints(op.edge_type)
        assert op.negatives is not None
        assert self._seeds.sources is not None
        by_rank = self.dataset.used(source), self.dataset.used(target)
        times, of = self._seeds.times, self.dataset.times
        since = None if times is None else (of(source), of(target))
        given = Positives(self._seeds.sources, self._seeds.ids, by_rank, source == target, times, since or (None, None))
        return draw_negatives(op.negatives, given, self._key(0, f"negative:{op.edge_type}"))

    def accept_negatives(self, op_id: str, links: tuple[np.ndarray, np.ndarray]) -> None:
        """Take the result of the program."""
        self._pending[op_id].links = links

    # -- whole batches -------------------------------------------------------------------------------------------------

    def sampler(self, op_id: str) -> Program[Sampled]:
        """The program that samples the whole batch."""
        op = self.plan.op(op_id)
        node_type = self.plan.seed.node_type
        keys, by_rank = self.dataset.ids(node_type), self.dataset.used(node_type)
        assert op.operator is not None
        seeds, _ = self._known[node_type].internal(0, self._known[node_type].size)
        return op.operator.run(Batch(seeds, keys, by_rank, self.at.seed, self.at.epoch, self.at.batch))

    def accept_sampled(self, op_id: str, sampled: Any) -> None:
        """Take the result of the program. Raises ConfigError: the result is not what the operator has announced."""
        op, arrays, node_type = self.plan.op(op_id), self.out.arrays, self.plan.seed.node_type
        known = self._known[node_type]
        extra = {k.removeprefix("extra/"): a for k, a in arrays.items() if k.startswith("extra/")}
        bounds = Bounds(
            len(arrays[f"n_id/{node_type}"]),
            len(arrays[f"row/{op.edge_type}"]),
            {name: (array.dtype.str, array.shape) for name, array in extra.items()},
        )
        seeds, _ = known.internal(0, known.size)
        nodes = self.dataset.schema.node_counts[node_type]
        with blaming(ConfigError, f"operator {type(op.operator).__name__}", of=ConfigError):
            found = checked(sampled, seeds=seeds, nodes=nodes, bounds=bounds, trees=self.plan.disjoint)
        self._pending[op_id].sampled = found

    def _join_batch(self, op: PlanOp, sampled: Sampled) -> None:
        local = self._known[self.plan.seed.node_type].insert(sampled.vertices, sampled.trees)
        if not np.array_equal(local, np.arange(len(local))):
            raise ConfigError(f"operator {type(op.operator).__name__}: its vertices repeat")
        edge_type, count, self._whole = op.edge_type, len(sampled.row), sampled.edge_ids
        self.out.append(f"hops/{edge_type}", 1)[:] = count
        self.out.append(f"row/{edge_type}", count)[:] = sampled.row
        self.out.append(f"col/{edge_type}", count)[:] = sampled.col
        if f"e_id/{edge_type}" in self.out.arrays:
            self.out.append(f"e_id/{edge_type}", count)[:] = sampled.edge_ids
        for name, array in sampled.extra.items():
            self.out.append(f"extra/{name}", len(array))[:] = array

    def pair_item(self, task: Task) -> PairItem:
        """What a POSITIVE or NEGATIVE task asks its owner."""
        op = self.plan.op(task.op)
        grown = self._growths.seeds[self.plan.seed.node_type]
        (asked,) = self._of_task(self.plan.seed.node_type, grown, task)
        version = self.sources.get((op.edge_type, EDGES), 0)
        return PairItem(op, asked.rows, asked.positions, self._key(0, f"{op.kind.value}:{op.edge_type}"), version)

    def accept_pairs(self, task: Task, positions: np.ndarray, ids: np.ndarray) -> None:
        """Take the answer to a pair task: internal ids int64 [n * count], -1 where no such vertex exists."""
        pending = self._pending[task.op]
        with pending.lock:
            pending.pairs.append((positions, ids))

    # -- neighbourhoods ------------------------------------------------------------------------------------------------

    def sample_items(self, task: Task) -> list[SampleItem]:
        """What a NEIGHBORHOOD task asks: one item per edge type with vertices to expand."""
        op = self.plan.op(task.op)
        frontier, items = self._growths.frontiers[op.id], []
        for edge_type, fan_out in op.fan_outs:
            source, target = self.dataset.schema.endpoints(edge_type)
            if target not in frontier:
                continue
            found = frontier[target]
            key, renewed = self.at.stream(op.hop, edge_type, self.plan.dependency)
            tables = self.plan.drawn_tables(edge_type)
            version = self.sources.get((edge_type, EDGES), 0)
            if op.method.temporal:
                version = max(version, self.sources.get((source, TIME), 0))
            for asked in self._of_task(target, found, task):
                trees = None if found.trees is None else found.trees[asked.positions - found.start]
                times = None if trees is None or self._tree_times is None else self._tree_times[trees]
                what = edge_type, asked.rows, asked.positions, fan_out, op.replace, op.method, key
                items.append(SampleItem(*what, trees, times, tables, asked.starts, asked.kept, version, op.by, renewed))
        return items

    def accept(self, task: Task, item: SampleItem, answer: Answer, first_row: int = 0) -> None:
        """Take the answer to rows of ``item``, those from ``first_row`` on. Each row must be answered once. Raises
        ValueError: the answer does not fit the question."""
        positions = item.positions[first_row : first_row + len(answer.counts)]
        by_peers = item.starts is not None  # nobody else could be wrong
        if by_peers and (len(answer.counts) != len(positions) or int(answer.counts.sum()) != len(answer.neighbors)):
            raise ValueError(f"malformed answer for edge type {item.edge_type}: counts and neighbours do not match")
        pending = self._pending[task.op]
        with pending.lock:
            pending.groups.setdefault(item.edge_type, []).append((positions, answer))

    def join(self, op_id: str) -> Joined:
        """Merge the answers to an operator's tasks into the batch."""
        pending = self._pending.pop(op_id)
        before = {t: c.size for t, c in self._known.items()}
        op = self.plan.op(op_id)
        if op.kind is Kind.NEIGHBORHOOD:
            self._use_hop(op, pending)
            if self.plan.summed is not None and self.plan.summed.inputs[0] == op_id:
                self._sums = RowSums(
                    self.plan, self.dataset.schema, self.out, shifts=self._shifts, sources=self.sources, inner=before,
                    scratch=self._pool.scratch, last=self._last,
                )  # fmt: skip
        elif pending.sampled is not None:
            self._join_batch(op, pending.sampled)
        elif pending.links is not None:
            assert op.negatives is not None
            self._number_negatives(op.negatives, *pending.links)
        else:
            self._join_pairs(op, pending)
        return self._grown(op_id, before)

    def _join_pairs(self, op: PlanOp, pending: Pending) -> None:
        source = self.dataset.schema.endpoints(op.edge_type)[0]
        stop = self._growths.seeds[self.plan.seed.node_type].stop
        seeds, _ = self._known[self.plan.seed.node_type].internal(0, stop)
        itself = seeds if source == self.plan.seed.node_type else np.full_like(seeds, -1)
        drawn = np.repeat(itself, op.count).reshape(len(seeds), op.count)
        for positions, ids in pending.pairs:
            found = ids.reshape(len(positions), op.count)
            drawn[positions] = np.where(found >= 0, found, drawn[positions])
        there = drawn >= 0
        local = self.out.append(f"pairs/{op.id}", len(seeds))
        local[:] = -1
        local[there] = self._known[source].insert(drawn[there])

    def _use_hop(self, op: PlanOp, pending: Pending) -> None:
        match op.use:
            case EdgeUse.JOIN if self._leaves_last and op is self.plan.neighborhoods[-1]:
                self._note_last_hop(op, pending)
            case EdgeUse.JOIN:
                self._join_hop(op, pending)
            case EdgeUse.WITHIN:
                for name in self.out.used.keys() & {name for e in self.plan.edge_types for name in self._of_edges(e)}:
                    self.out.used[name] = 0
                for edge_type in self.plan.edge_types:
                    self.out.used[f"hops/{edge_type}"] = 0
                self._join_hop(op, pending)
            case EdgeUse.ROWS:
                for edge_type, name in self.plan.edge_tables:
                    answers = [answer for _, answer in pending.groups.get(edge_type, [])]
                    out = self.out.append(f"edge/{edge_type}/{name}", len(self._whole))
                    rows_of_edges(self._whole, answers, name, out)
            case EdgeUse.BUDGET:
                self._join_voted(op, pending)

    def _of_edges(self, edge_type: str) -> set[str]:
        named = {f"{part}/{edge_type}" for part in ("row", "col", "e_id", "edge_weight")}
        return named | {f"edge/{edge_type}/{name}" for name in self.plan.tables_of(edge_type)}

    def _join_voted(self, op: PlanOp, pending: Pending) -> None:
        for edge_type, groups in sorted(pending.groups.items()):
            source = self.dataset.schema.endpoints(edge_type)[0]
            for _, answer in groups if source in self._votes else ():
                self._votes[source].add(answer, self._known[source])
        for node_type, count in op.budgets:
            drawn = self._votes[node_type].draw(
                count, self.dataset.ids(node_type), self._key(op.hop, f"budget:{node_type}")
            )
            self._known[node_type].insert(drawn)

    def _join_hop(self, op: PlanOp, pending: Pending) -> None:
        for edge_type in self.plan.edge_types:
            groups = [(p, self._fit(op, edge_type, p, a)) for p, a in pending.groups.get(edge_type, [])]
            count = sum(len(answer.neighbors) for _, answer in groups)
            target = self.dataset.schema.endpoints(edge_type)[1]
            frontier, weighed, loops = self._growths.frontiers[op.id].get(target), self._weighed.get(edge_type), 0
            weighing, of_loops = None, np.empty(0, np.float32)
            if weighed is not None and frontier is not None:
                grown, out = self.out.filled(f"hops/{target}"), self.out.append(f"edge_weight/{edge_type}", count)
                weighing, of_loops = weighed.weighing(op, self._known, frontier, grown, out)
            if count:
                assert frontier is not None
                self._stitch(edge_type, groups, count, frontier, weighing)
            if weighed is not None and frontier is not None:
                vertices = weighed.looped(op, frontier)
                loops = len(vertices)
                of_loops = of_loops if loops == len(of_loops) else of_loops[vertices - frontier.start]
                self._add_loops(edge_type, vertices, of_loops)
            self.out.append(f"hops/{edge_type}", 1)[:] = count + loops

    def _note_last_hop(self, op: PlanOp, pending: Pending) -> None:
        """Note where the rows of the last hop are, without numbers for the vertices at home. Other owners' vertices get
        numbers, so that each is asked for once."""
        for edge_type in self.plan.edge_types:
            groups = [(p, self._fit(op, edge_type, p, a)) for p, a in pending.groups.get(edge_type, [])]
            self.out.append(f"hops/{edge_type}", 1)[:] = 0
            source, target = self.dataset.schema.endpoints(edge_type)
            if (frontier := self._growths.frontiers[op.id].get(target)) is not None:
                own = self.dataset.book.range(source, self.home)
                self._last[edge_type] = last_edges(groups, frontier, own, self._known[source])

    def _stitch(
        self,
        edge_type: str,
        groups: list[tuple[np.ndarray, Answer]],
        count: int,
        frontier: NewVertices,
        weighing: kernels.Weighing | None,
    ) -> None:
        source, start, stop = self.dataset.schema.endpoints(edge_type)[0], frontier.start, frontier.stop
        row, col = self.out.append(f"row/{edge_type}", count), self.out.append(f"col/{edge_type}", count)
        with_ids = f"e_id/{edge_type}" in self.out.arrays
        self._known[source].compactor.stitch(
            [(p - start, a.counts, a.neighbors, a.edge_ids) for p, a in groups],
            np.arange(start, stop, dtype=np.int32),
            row,
            col,
            self.out.append(f"e_id/{edge_type}", count) if with_ids else None,
            trees=frontier.trees,
            sources=self._known[source].count,
            weights=weighing,
        )
        rows = {name: self.out.append(f"edge/{edge_type}/{name}", count) for name in self.plan.tables_of(edge_type)}
        factor = np.empty(count, np.float32) if FACTOR in groups[0][1].tables else None
        for name, out in (rows if factor is None else {**rows, FACTOR: factor}).items():
            for at, answer in places(groups, start, stop):
                kernels.scatter_rows(answer.tables[name], at, out)
        if factor is not None and weighing is not None:
            weighing.out[:] *= factor

    def _add_loops(self, edge_type: str, vertices: np.ndarray, weights: np.ndarray) -> None:
        """Add an edge of each of ``vertices`` (local ids) to itself. It has the edge id -1, and rows of 0."""
        values: dict[str, Any] = {"row": vertices, "col": vertices, "e_id": -1, "edge_weight": weights}
        names = {f"{name}/{edge_type}": value for name, value in values.items()}
        for name, value in {
            **names,
            **{f"edge/{edge_type}/{table}": 0 for table in self.plan.tables_of(edge_type)},
        }.items():
            if name in self.out.used:
                self.out.append(name, len(vertices))[:] = value

    def _fit(self, op: PlanOp, edge_type: str, positions: np.ndarray, answer: Answer) -> Answer:
        """The edges of an answer that may join, with what they stand for."""
        weighed = self._weighed.get(edge_type)
        if weighed is not None:
            answer = weighed.factored(op, self._known, positions, answer)
        if op.use is EdgeUse.WITHIN:
            source, target = self.dataset.schema.endpoints(edge_type)
            frontier = self._growths.frontiers[op.id][target]
            trees = None if frontier.trees is None else frontier.trees[positions - frontier.start]
            answer = among(answer, self._known[source], trees)
        return self._without_seeds(edge_type, positions, answer)

    def _without_seeds(self, edge_type: str, positions: np.ndarray, answer: Answer) -> Answer:
        """Leave out the batch's seed edges, so that a model cannot look up what it is to predict."""
        for excluded, reverse in self._seeds.exclude:
            if excluded != edge_type:
                continue
            ends = (self._seeds.ids, self._seeds.sources)
            targets, sources = ends[::-1] if reverse else ends
            assert targets is not None
            assert sources is not None
            target = self.dataset.schema.endpoints(edge_type)[1]
            known, seeds = self._known[target], self._growths.seeds.get(target)
            # Seeds come first, so only the first vertices are ends of seed edges. In trees any vertex may be one again.
            stop = known.size if known.in_trees or seeds is None else seeds.stop
            near = np.flatnonzero(positions < stop)
            ids, _ = known.internal(0, stop)
            answer = without_edges(answer, near, ids[positions[near]], targets, sources)
        return answer

    # -- features ------------------------------------------------------------------------------------------------------

    def feature_items(self, task: Task) -> list[FeatureItem]:
        """What a FEATURE task moves: rows of the vertices that the operator's input added."""
        op = self.plan.op(task.op)
        items = []
        for node_type, fetched in self._growths.fetched[op.inputs[0]].items():
            tables = tuple(name for owner, name in op.tables if owner == node_type)
            for asked in self._of_task(node_type, fetched, task) if tables else ():
                what = asked.rows, asked.positions, asked.starts, asked.keep, asked.kept
                version = max((self.sources.get((node_type, name), 0) for name in tables), default=0)
                items.append(FeatureItem(node_type, tables, *what, version))
        return items

    def table_rows(self, node_type: str, name: str) -> np.ndarray:
        """The batch's rows of a table, by local id. Feature tasks write to disjoint positions."""
        return self.out.arrays[f"table/{node_type}/{name}"]

    # -- sums --------------------------------------------------------------------------------------------------------

    def sum_items(self, task: Task) -> list[WantedSums]:
        """What the FEATURE task of other owners asks whose rows are summed."""
        assert self._sums is not None
        fetched = self._growths.fetched[self.plan.op(task.op).inputs[0]]
        asked = [(t, new, rows) for t, new in fetched.items() for rows in self._of_task(t, new, task)]
        return [wanted for each in asked if (wanted := self._sums.ask(*each)) is not None]

    def reduce(self, at_home: RowsAtHome) -> None:
        """Write the sums, when all rows have come."""
        if self._sums is not None and self.plan.summed is not None:
            sizes = {t: known.size for t, known in self._known.items()}
            self._sums.finish(self._growths.fetched[self.plan.summed.inputs[0]], sizes, at_home)

    # -- end -----------------------------------------------------------------------------------------------------------

    @property
    def vertices(self) -> int:
        """Number of vertices so far, all node types together."""
        return sum(known.size for known in self._known.values())

    def finish(self) -> None:
        """Close the batch: give each table its final length, one row per vertex (or per seed)."""
        seeds, of_seeds = self._growths.seeds, self.plan.tables_of_seeds
        for node_type, name in self.plan.tables:
            if (region := f"table/{node_type}/{name}") in self.out.used:
                grown = seeds.get(node_type)
                first = 0 if grown is None else grown.stop
                rows = self._known[node_type].size if self._sums is None else self._sums.inner[node_type]
                self.out.used[region] = first if (node_type, name) in of_seeds else rows
        self.stats["nodes"] = float(self.vertices)
        edges = sum(self.out.used[f"row/{e}"] for e in self.plan.edge_types)
        self.stats["edges"] = float(edges + sum(len(last.rows) for last in self._last.values()))
        self._pool.give(self._known)
        self._known = {}
        self._growths.fetched = {}  # all rows have been copied: let go of those that are kept at home

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _key(self, hop: int, name: str) -> int:
        return stream_key(self.at.seed, self.at.epoch, self.at.batch, hop, hash_string(name))

    def _of_task(self, node_type: str, grown: NewVertices, task: Task) -> Iterator[TaskRows]:
        return grown.of_task(task, self.dataset.book.offsets[node_type])

    def _grown(self, op_id: str, before: dict[str, int]) -> Joined:
        """Record the vertices added since ``before``, write their user ids, and report them by owner."""
        grown: dict[str, NewVertices] = {}
        for node_type, known in self._known.items():
            start, stop = before.get(node_type, 0), known.size
            if self._leaves_last and op_id == self.plan.neighborhoods[-1].id:
                if f"hops/{node_type}" in self.out.arrays:
                    self.out.append(f"hops/{node_type}", 1)[:] = 0
                if start < stop:
                    grown[node_type] = self._growths.grouped(node_type, *known.internal(start, stop), start)
                continue
            if f"hops/{node_type}" in self.out.arrays and self.plan.op(op_id).use not in (EdgeUse.WITHIN, EdgeUse.ROWS):
                self.out.append(f"hops/{node_type}", 1)[:] = stop - start
            if stop == start:
                continue
            ids, trees = known.internal(start, stop)
            if trees is not None:
                self.out.append(f"tree/{node_type}", stop - start)[:] = trees
            kernels.gather_rows(self.dataset.ids(node_type), ids, self.out.append(f"n_id/{node_type}", stop - start))
            grown[node_type] = self._growths.grouped(node_type, ids, trees, start)
        return self._growths.add(op_id, grown, self._known)
