"""Runs one process of an inference: does what ``plan`` says, share by share, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.block import Floats, Layer, LayerBlock, in_degrees, one_prepared
from atta.client.inference.plan import AwaitStage, InferencePlan, RunShare, block_size
from atta.client.inference.sinks import ShareWriter, Sink
from atta.client.inference.tables import InferenceTables
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.progress import Progress, Silent
from atta.partition.schema import Schema
from atta.samplers.seed_plan import local_counts

__all__ = ["InferenceTask", "LayerwiseInference", "Targets", "feature_width", "layer_widths", "target_count"]

PATIENCE_S = 900.0
"""How long a process waits while no other process completes a share."""
_LOOK_S = (0.02, 0.5)
"""Shortest and longest pause between two looks at what other processes have done."""
_DEGREES = "degrees"

Targets = npt.NDArray[np.int64] | str | None
"""Vertices to predict: user ids without repeats, the name of a split, or None for all."""


@dataclass(frozen=True)
class InferenceTask:
    """What is computed, for whom, and by how many.

    Attributes:
        layers: of the model, first to last.
        widths: numbers per row before the first layer and after each (``layer_widths``).
        nodes: vertices to predict.
        key: digest of everything that rows depend on; processes with the same one share tables.
        features: node table with the input.
        shares: number of shares.
        rank, world: number of this process, and of all.
        batch_size: vertices per block; None: what fits into about 128 MiB.
        finish: turns a block of the last layer's rows into what is written.
    """

    layers: Sequence[Layer]
    widths: Sequence[int]
    nodes: Targets
    key: str
    shares: int
    features: str = "x"
    rank: int = 0
    world: int = 1
    batch_size: int | None = None
    finish: Callable[[Floats], npt.NDArray[Any]] = np.asarray


def feature_width(schema: Schema, features: str) -> int:
    """Numbers per vertex of the table ``features``.

    Raises:
        ConfigError: the graph has several types, or the table is not rows of numbers.
        UnknownNameError: there is no such table.
    """
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("inference layer by layer takes graphs with one node type and one edge type")
    spec = schema.table(schema.node_types[0], features)
    if len(spec.row_shape) != 1:
        raise ConfigError(
            f"inference needs one row of features per vertex, {features} has rows of shape {spec.row_shape}"
        )
    return spec.row_shape[0]


def target_count(schema: Schema, nodes: Targets) -> int:
    """How many vertices ``nodes`` are; raises UnknownNameError for an unknown split, ConfigError for no vertices."""
    node_type = schema.node_types[0]
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


class LayerwiseInference:
    """One process of an inference, layer by layer over all in-neighbours.

    In a stage every vertex is in one block of one share, and a block has all in-edges of its vertices. So each edge is
    read once per layer, and each row is written once.
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

        Raises the errors of ``feature_width``, ``target_count`` and ``InferencePlan``.
        """
        schema = cluster.schema
        self._cluster, self._task, self._sink = cluster, task, sink
        self._progress, self._check = progress or Silent(), check
        self._node_type, self._edge_type = schema.node_types[0], schema.edge_types[0]
        feature_width(schema, task.features)
        self._targets = target_count(schema, task.nodes)
        self._vertices = schema.node_counts[self._node_type]
        self._counted = any(layer.needs_degrees for layer in task.layers)
        stages = len(task.layers) + self._counted
        self.plan = InferencePlan(stages, task.shares, task.rank, task.world)
        self._tables = InferenceTables(cluster, self._node_type, task.key, stages=stages, shares=task.shares)
        self._shown: int | None = None

    def run(self) -> None:
        """Do this process's part. Shares that earlier runs have finished are left out.

        Raises:
            AttaError: no other process has completed a share for a long time.
            RemoteError: a daemon does not answer. UnknownNameError: a daemon has lost rows.
        """
        finished = [self._sink.finished(share) for share in range(self.plan.shares)]
        if all(finished):
            return
        while step := self.plan.next(self._done()):
            if isinstance(step, AwaitStage):
                self._await(step.stage)
            else:
                self._run(step)

    def clean(self) -> None:
        """Delete the rows between layers, when all processes have ended."""
        self._tables.clean()

    # -- stages --------------------------------------------------------------------------------------------------------

    def _done(self) -> npt.NDArray[np.bool_]:
        """bool [stages, shares]; the last stage is what the sink says."""
        shares = range(self.plan.shares)
        done = self._tables.done() if self.plan.stages > 1 else np.zeros((1, len(shares)), np.bool_)
        done[-1] = [self._sink.finished(share) for share in shares]
        return done

    def _run(self, step: RunShare) -> None:
        stage, last = step.stage, step.stage == self.plan.stages - 1
        if stage >= self._counted + 2 and self.plan.rank == 0:
            self._tables.drop(self._name(stage - 2))  # the stage before is done, and nobody reads its input again
        self._show(stage)
        if last:
            with self._sink.open(step.share) as writer:
                self._last(step, writer)
            return
        self._between(step)
        self._tables.mark(stage, step.share)

    def _name(self, stage: int) -> str:
        return _DEGREES if self._counted and stage == 0 else f"rows-{stage - self._counted + 1}"

    def _between(self, step: RunShare) -> None:
        """Write a share of rows into a table. A block is pushed while the next one is computed."""
        layer = step.stage - self._counted
        table = self._tables.rows(self._name(step.stage), None if layer < 0 else self._task.widths[layer + 1])
        ticket = None
        for _, rows, values in self._computed(step, None):
            if ticket is not None:
                ticket.wait()
            ticket = table.push(rows, values)
        if ticket is not None:
            ticket.wait()

    def _last(self, step: RunShare, writer: ShareWriter) -> None:
        nothing = self._task.finish(np.empty((0, self._task.widths[-1]), np.float32))
        writer.write(np.empty(0, np.int64), nothing)
        for ids, _, values in self._computed(step, self._task.nodes):
            writer.write(ids, self._task.finish(values))

    def _computed(self, step: RunShare, nodes: Targets) -> Iterator[tuple[np.ndarray, np.ndarray, Floats]]:
        """User ids, table rows and values of a share's vertices, block by block."""
        number = step.stage - self._counted
        layer = None if number < 0 else self._task.layers[number]
        prepare = partial(self._block, number)
        for ids, rows, block in one_prepared(self._loader(step, number, nodes), prepare):
            self._check()
            self._tables.keep()
            values = in_degrees(block.edge_index, block.targets) if layer is None else layer(block)
            yield ids, rows, values
            self._progress.advance(block.targets)

    def _loader(self, step: RunShare, number: int, nodes: Targets) -> NeighborLoader:
        widths = self._task.widths[max(0, number) : number + 2]  # read and written; none for degrees
        edges = self._cluster.schema.edge_counts[self._edge_type]
        size = self._task.batch_size or block_size(self._vertices, edges, max(widths, default=1))
        return NeighborLoader(
            self._cluster,
            [-1],
            (self._node_type, nodes),
            batch_size=size,
            rank=step.share,
            world_size=self.plan.shares,
            pad=False,
            tables=[self._task.features] if number == 0 else [],
            edge_ids=False,
            job=f"predict-{step.stage}-{step.share}",
        )

    def _block(self, number: int, batch: MiniBatch) -> tuple[np.ndarray, np.ndarray, LayerBlock]:
        """User ids of the targets, their table rows, and what the layer reads."""
        n_id, targets = batch.n_id(), batch.batch_size
        ids = n_id[:targets].copy()
        # With a single stage no table is read or written.
        rows = np.empty(0, np.int64) if self.plan.stages == 1 else self._any_table(number).locate(n_id)
        if number < 0:
            x = np.empty((len(n_id), 0), np.float32)
        elif number == 0:
            x = np.asarray(batch.table(self._task.features), np.float32)
        else:
            x = self._tables.rows(f"rows-{number}", self._task.widths[number]).pull(rows).values
        counted = number >= 0 and self._task.layers[number].needs_degrees
        degrees = self._tables.rows(_DEGREES, None).pull(rows).values if counted else None
        return ids, rows[:targets], LayerBlock(x, batch.edge_index(), targets, degrees)

    def _any_table(self, number: int) -> Any:
        """A table of vertices that exists in this stage: all of them number their rows alike."""
        if number > 0:
            return self._tables.rows(f"rows-{number}", self._task.widths[number])
        return self._tables.rows(_DEGREES, None) if self._counted else self._tables.rows("rows-1", self._task.widths[1])

    # -- other processes -----------------------------------------------------------------------------------------------

    def _await(self, stage: int) -> None:
        """Wait until all shares of a stage are done."""
        self._progress.stage(f"waiting for {self._title(stage)}", None)
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
                    f"{self._title(stage)}: nobody has completed a share for {PATIENCE_S:.0f} s; "
                    f"missing are {', '.join(map(str, missing))}: are all {self.plan.world} processes running?"
                )
            time.sleep(pause)
            pause = min(_LOOK_S[1], 2 * pause)

    def _show(self, stage: int) -> None:
        if self._shown == stage:
            return
        self._shown = stage
        total = self._targets if stage == self.plan.stages - 1 else self._vertices
        counts = local_counts(total, self.plan.shares)
        self._progress.stage(self._title(stage), sum(counts[share] for share in self.plan.mine))

    def _title(self, stage: int) -> str:
        number = stage - self._counted + 1
        return f"layer {number} of {len(self._task.layers)}" if number else "in-degrees"


def layer_widths(layers: Sequence[Layer], channels: int) -> list[int]:
    """Numbers per row before the first layer, which are ``channels``, and after each layer: each is tried on one vertex.

    Raises:
        ConfigError: a layer does not take what the layer before gives, or does not give a row.
    """
    widths = [channels]
    for number, layer in enumerate(layers, 1):
        before = widths[-1]
        x, edges, degrees = np.zeros((1, before), np.float32), np.empty((2, 0), np.int64), np.zeros(1, np.float32)
        try:
            out = layer(LayerBlock(x, edges, 1, degrees))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            cause = str(error).partition("\n")[0]
            raise ConfigError(f"layer {number} does not take rows of {before} numbers: {cause}") from error
        if out.ndim != 2 or len(out) != 1:
            raise ConfigError(
                f"layer {number} gives an array of shape {list(out.shape)} for one vertex, not [1, width]"
            )
        widths.append(out.shape[1])
    return widths
