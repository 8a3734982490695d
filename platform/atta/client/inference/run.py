"""Runs one process of an inference: does what ``plan`` says, share by share, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.block import Floats, LayerBlock, TypedBlock, one_prepared
from atta.client.inference.plan import AwaitStage, InferencePlan, RunShare, block_size
from atta.client.inference.sinks import ShareWriter, Sink, UserIds
from atta.client.inference.stages import DEGREES, HopCounts, Rows, Stage, Targets, TypedReads, unread
from atta.client.inference.tables import InferenceTables
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.progress import Progress, Silent
from atta.partition.graph.strings import NAME, string_width
from atta.partition.schema import Schema
from atta.samplers.seed_plan import home_of, local_count, local_counts

__all__ = ["Inference", "InferenceTask", "feature_width", "inner_products", "target_count"]

PATIENCE_S = 900.0
"""How long a process waits while no other process completes a share."""
_LOOK_S = (0.02, 0.5)
"""Shortest and longest pause between two looks at what other processes have done."""
_SAMPLED_SEEDS = 1024
_PAIRS = 1 << 16
"""Pairs that are scored at a time."""


def inner_products(sources: Floats, targets: Floats) -> Floats:
    """float32 [n]: the inner product of each row [n, width] with its partner."""
    products: Floats = np.einsum("nd,nd->n", sources, targets)
    return products


@dataclass(frozen=True)
class InferenceTask:
    """What is computed, and by how many.

    Attributes:
        stages: first to last (``layerwise_stages`` or ``sampled_stages``).
        key: digest of everything that rows depend on; processes with the same one share tables.
        shares: number of shares.
        features: node table with the input.
        rank, world: number of this process, and of all.
        batch_size: vertices per block; None: what ``block_size`` says, or 1024 of sampled batches.
        seed: of sampled batches.
        pairs: int64 [n, 2], user ids of sources and targets to score, if the last stage is about pairs.
        finish: turns rows of the last stage into what is written.
        score: gives each pair a number, float32 [n], from the rows [n, width] of sources and of targets.
        node_type: of the vertices that are asked for; empty: the only one.
    """

    stages: Sequence[Stage]
    key: str
    shares: int
    features: str = "x"
    rank: int = 0
    world: int = 1
    batch_size: int | None = None
    seed: int = 0
    pairs: npt.NDArray[np.int64] | None = None
    finish: Callable[[Floats], npt.NDArray[Any]] = np.asarray
    score: Callable[[Floats, Floats], Floats] = inner_products
    node_type: str = ""


def feature_width(schema: Schema, features: str) -> int:
    """Numbers per vertex of the table ``features``.

    Raises:
        ConfigError: the graph has several types, or the table is not rows of numbers.
        UnknownNameError: there is no such table.
    """
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("inference takes graphs with one node type and one edge type")
    spec = schema.table(schema.node_types[0], features)
    if len(spec.row_shape) != 1:
        raise ConfigError(
            f"inference needs one row of features per vertex, {features} has rows of shape {spec.row_shape}"
        )
    return spec.row_shape[0]


def target_count(schema: Schema, nodes: Targets, node_type: str) -> int:
    """How many vertices of a type ``nodes`` are; raises UnknownNameError for an unknown split, ConfigError for none."""
    if nodes is None:
        count = schema.node_counts[node_type]
    elif isinstance(nodes, str):
        if nodes not in schema.splits[node_type]:
            raise UnknownNameError.of("split", nodes, schema.splits[node_type])
        count = schema.splits[node_type][nodes]
    else:
        count = len(nodes)
    if not count:
        raise ConfigError("there are no vertices to predict: the split or list of ids is empty")
    return count


@dataclass(frozen=True)
class _Prepared:
    """A block with the user ids and the table rows of its targets."""

    ids: UserIds
    rows: npt.NDArray[np.int64]
    block: LayerBlock | TypedBlock
    counts: HopCounts


class Inference:
    """One process of an inference.

    In a stage every vertex is in one block of one share. With all in-neighbours a block has all in-edges of its
    vertices. So each edge is read once per layer, and each row is written once.
    """

    def __init__(
        self,
        cluster: Cluster,
        task: InferenceTask,
        sink: Sink,
        *,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` is called between blocks and while others are waited for; what it raises ends the run.

        Raises the errors of ``InferencePlan``.
        """
        self._cluster, self._task, self._sink = cluster, task, sink
        self._progress, self._check = progress or Silent(), check
        self._schema, self._node_type = cluster.schema, task.node_type or cluster.schema.node_types[0]
        self.plan = InferencePlan(len(task.stages), task.shares, task.rank, task.world)
        self._tables = InferenceTables(
            cluster, self._node_type, task.key, stages=self.plan.stages, shares=self.plan.shares
        )
        width = string_width(self._schema, self._node_type) if sink.takes_strings else None
        self._strings = width is not None
        self._id_type = np.dtype(np.int64 if width is None else f"<U{width}")
        """Of the ids that are written."""
        self._shown: int | None = None

    def run(self) -> None:
        """Do this process's part. Shares that earlier runs have finished are left out.

        Raises:
            AttaError: no other process has completed a share for a long time.
            RemoteError: a daemon does not answer. UnknownNameError: a daemon has lost rows.
        """
        if all(self._sink.finished(share) for share in range(self.plan.shares)):
            return  # without tables
        while step := self.plan.next(self._done()):
            if isinstance(step, AwaitStage):
                self._await(step.stage)
            else:
                self._run(step)

    def clean(self) -> None:
        """Delete the rows between stages, when all processes have ended."""
        self._tables.clean()

    # -- stages --------------------------------------------------------------------------------------------------------

    def _done(self) -> npt.NDArray[np.bool_]:
        """bool [stages, shares]; the last stage is what the sink says."""
        shares = range(self.plan.shares)
        done = self._tables.done() if self.plan.stages > 1 else np.zeros((1, len(shares)), np.bool_)
        done[-1] = [self._sink.finished(share) for share in shares]
        return done

    def _run(self, step: RunShare) -> None:
        stage = self._task.stages[step.stage]
        if self.plan.rank == 0:
            for rows in unread(self._task.stages, step.stage):
                self._tables.drop(rows.name)
        self._show(step.stage)
        if stage.writes is not None:
            self._between(step, stage, self._table(stage.writes))
            self._tables.mark(step.stage, step.share)
            return
        with self._sink.open(step.share) as writer:
            if self._task.pairs is None:
                self._last(step, stage, writer)
            else:
                self._score(step, stage, self._task.pairs, writer)

    def _between(self, step: RunShare, stage: Stage, table: RemoteTable) -> None:
        """Write a share of rows into a table. A block is pushed while the next one is computed."""
        ticket = None
        for prepared, values in self._computed(step, stage):
            if ticket is not None:
                ticket.wait()
            ticket = table.push(prepared.rows, values)
        if ticket is not None:
            ticket.wait()

    def _last(self, step: RunShare, stage: Stage, writer: ShareWriter) -> None:
        nothing = self._task.finish(np.empty((0, stage.width or 0), np.float32))
        writer.write(np.empty(0, self._id_type), nothing)  # a share without vertices has columns, too
        for prepared, values in self._computed(step, stage):
            writer.write(prepared.ids, self._task.finish(values))

    def _score(self, step: RunShare, stage: Stage, pairs: npt.NDArray[np.int64], writer: ShareWriter) -> None:
        """Scores of both ends' rows, for this share's part of the pairs, in their order."""
        assert stage.reads is not None
        table = self._table(stage.reads)
        first = sum(local_count(len(pairs), share, self.plan.shares) for share in range(step.share))
        mine = pairs[first : first + local_count(len(pairs), step.share, self.plan.shares)]
        writer.write(np.empty((0, 2), self._id_type), np.empty(0, np.float32))
        for at in range(0, len(mine), _PAIRS):
            self._check()
            some = mine[at : at + _PAIRS]
            ends, inverse = np.unique(some, return_inverse=True)
            rows = table.pull(table.locate(ends)).values
            source, target = inverse.reshape(-1, 2).T
            named = self._named(ends)[inverse.reshape(-1, 2)] if self._strings else some
            writer.write(named, self._task.score(rows[source], rows[target]))
            self._progress.advance(len(some))

    def _named(self, numbers: npt.NDArray[np.int64]) -> UserIds:
        """The string ids of vertices, in the type of the column that is written."""
        return self._cluster.ids.strings(numbers, self._node_type).astype(self._id_type)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _computed(self, step: RunShare, stage: Stage) -> Iterator[tuple[_Prepared, Floats]]:
        """A share's blocks and the rows of their targets. The next block is prepared while one is computed."""
        assert stage.compute is not None
        for prepared in one_prepared(self._loader(step, stage), partial(self._prepare, stage)):
            self._check()
            self._tables.keep()
            yield prepared, stage.compute(prepared.block, prepared.counts)
            self._progress.advance(prepared.block.targets)

    def _loader(self, step: RunShare, stage: Stage) -> NeighborLoader:
        return NeighborLoader(
            self._cluster,
            self._fan_outs(stage),
            (self._node_type if stage.typed is None else stage.typed.node_type, stage.nodes),
            batch_size=self._task.batch_size or self._block_size(stage),
            rank=step.share,
            world_size=self.plan.shares,
            home=home_of(step.share, self.plan.shares, self._cluster.num_parts),  # the shares keep all daemons busy
            pad=False,
            seed=self._task.seed,
            tables=self._features(stage),
            seed_tables=[NAME] if self._writes_strings(stage) else [],
            edge_ids=False,
            job=f"predict-{stage.title.replace(' ', '-')}-{step.share}",
        )

    def _fan_outs(self, stage: Stage) -> Sequence[int] | Mapping[str, Sequence[int]]:
        """One hop of a typed graph has the edges that end at the vertices to compute, of the types that are read."""
        if stage.typed is None or not stage.fan_outs:
            return stage.fan_outs
        return {name: [-1 if name in stage.typed.edge_types else 0] for name in self._schema.edge_types}

    def _features(self, stage: Stage) -> Mapping[str, Sequence[str]] | Sequence[str]:
        """The features that come with a stage's batches."""
        if stage.typed is None:
            return [self._task.features] if stage.features else []
        return {t: [self._task.features] for t, rows in stage.typed.rows.items() if rows is None}

    def _block_size(self, stage: Stage) -> int:
        if stage.typed is not None:
            return self._typed_block_size(stage, stage.typed)
        if len(stage.fan_outs) > 1:
            return _SAMPLED_SEEDS
        read = self._schema.node_tables[self._node_type][self._task.features].row_shape[0] if stage.features else 1
        width = max(read, stage.width or 1, (stage.reads.width or 1) if stage.reads else 1)
        edges = self._schema.edge_counts[self._schema.edge_types[0]]
        vertices = self._schema.node_counts[self._node_type]
        return block_size(vertices, edges, width, row_per_edge=stage.row_per_edge, queued=stage.features)

    def _typed_block_size(self, stage: Stage, typed: TypedReads) -> int:
        tables = self._schema.node_tables
        read = [
            tables[t][self._task.features].row_shape[0] if rows is None else rows.width or 1
            for t, rows in typed.rows.items()
        ]
        edges = sum(self._schema.edge_counts[name] for name in typed.edge_types)
        vertices = self._schema.node_counts[typed.node_type]
        return block_size(vertices, edges, max([stage.width or 1, *read]), row_per_edge=True, queued=None in typed.rows)

    def _writes_strings(self, stage: Stage) -> bool:
        return self._strings and stage.writes is None

    def _prepare(self, stage: Stage, batch: MiniBatch) -> _Prepared:
        """Find the table rows of a batch's vertices, and pull what the stage reads of them."""
        if stage.typed is not None:
            return self._prepare_typed(stage, stage.typed, batch)
        n_id, targets = batch.n_id(), batch.batch_size
        table = next((self._table(rows) for rows in self._numbering(stage)), None)
        rows = np.empty(0, np.int64) if table is None else table.locate(n_id)
        if stage.reads is not None:
            x = self._table(stage.reads).pull(rows).values
        elif stage.features:
            x = np.asarray(batch.table(self._task.features), np.float32)
        else:
            x = np.empty((len(n_id), 0), np.float32)
        degrees = self._table(DEGREES).pull(rows).values if stage.degrees else None
        counts = HopCounts(batch.num_sampled_nodes(), batch.num_sampled_edges())
        block = LayerBlock(x, batch.edge_index(), targets, degrees)
        return _Prepared(self._ids(stage, batch), rows[:targets], block, counts)

    def _prepare_typed(self, stage: Stage, typed: TypedReads, batch: MiniBatch) -> _Prepared:
        """The same of a typed graph: rows by node type."""
        own, targets = typed.node_type, batch.batch_size
        x = {}
        for node_type, read in typed.rows.items():
            if read is None:
                x[node_type] = np.asarray(batch.table(self._task.features, node_type), np.float32)
            else:
                table = self._table(read)
                x[node_type] = table.pull(table.locate(batch.n_id(node_type))).values
        places = np.empty(0, np.int64)
        if stage.writes is not None:
            places = self._table(stage.writes).locate(batch.n_id(own)[:targets])
        edges = {name: batch.edge_index(name) for name in typed.edge_types}
        block = TypedBlock(x, edges, targets, places)
        return _Prepared(self._ids(stage, batch), places, block, HopCounts((), ()))

    def _ids(self, stage: Stage, batch: MiniBatch) -> UserIds:
        """What users call the vertices that a batch is about."""
        node_type = self._node_type if stage.typed is None else stage.typed.node_type
        if self._writes_strings(stage):
            return batch.strings(node_type)[: batch.batch_size].astype(self._id_type)
        return batch.n_id(node_type)[: batch.batch_size].copy()

    @staticmethod
    def _numbering(stage: Stage) -> list[Rows]:
        """Tables that the stage uses. All of them number their rows alike."""
        used = (stage.reads, DEGREES if stage.degrees else None, stage.writes)
        return [rows for rows in used if rows is not None]

    def _table(self, rows: Rows) -> RemoteTable:
        return self._tables.rows(rows)

    # -- other processes -----------------------------------------------------------------------------------------------

    def _await(self, stage: int) -> None:
        """Wait until all shares of a stage are done."""
        title = self._task.stages[stage].title
        self._progress.stage(f"waiting for {title}", None)
        self._shown = None
        before, since, pause = -1, time.monotonic(), _LOOK_S[0]
        while not (done := self._tables.done())[stage].all():
            self._check()
            self._tables.keep()
            if int(done.sum()) != before:
                before, since, pause = int(done.sum()), time.monotonic(), _LOOK_S[0]
            elif time.monotonic() - since > PATIENCE_S:
                missing = np.flatnonzero(~done[stage])[:8].tolist()
                raise AttaError(
                    f"{title}: nobody has completed a share for {PATIENCE_S:.0f} s; "
                    f"missing are {', '.join(map(str, missing))}: are all {self.plan.world} processes running?"
                )
            time.sleep(pause)
            pause = min(_LOOK_S[1], 2 * pause)

    def _show(self, number: int) -> None:
        if self._shown == number:
            return
        self._shown = number
        stage, pairs = self._task.stages[number], self._task.pairs
        scored = pairs is not None and number == self.plan.stages - 1
        node_type = self._node_type if stage.typed is None else stage.typed.node_type
        total = len(pairs) if scored and pairs is not None else target_count(self._schema, stage.nodes, node_type)
        counts = local_counts(total, self.plan.shares)
        self._progress.stage(stage.title, sum(counts[share] for share in self.plan.mine))
