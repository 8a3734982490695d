"""Runs one process of an inference: does what ``plan`` says, share by share, block by block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.block import Floats
from atta.client.inference.reading import BlockReader, InferenceTables
from atta.client.inference.sinks import ShareWriter, Sink
from atta.client.inference.stages import Rows, Stage, unread
from atta.client.inference.task import BestTargets, Ids, InferencePlan, InferenceTask, TopTargets, UserIds, target_count
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, UnknownNameError
from atta.observe.progress import Progress, shown
from atta.partition.graph.strings import string_width
from atta.partition.schema import Schema
from atta.samplers.seed_plan import local_counts
from atta.wire.bulk import UnseenVertices

PATIENCE_S = 900.0
"""How long a process waits while no other process completes a share."""
_LOOK_S = (0.02, 0.5)
"""Shortest and longest pause between two looks at what other processes have done."""
_PAIRS = 1 << 16
"""Pairs that are scored at a time."""
_DIGITS = 20
"""Of the longest int64."""


class Inference:
    """One process of an inference. In a stage every vertex is in one block of one share. With all in-neighbours a block
    has all in-edges of its vertices. So each edge is read once per layer, and each row is written once."""

    def __init__(
        self,
        cluster: Cluster,
        task: InferenceTask,
        sink: Sink,
        *,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """``check`` is called between blocks and while others are waited for; what it raises ends the run."""
        self._cluster, self._task, self._sink = cluster, task, sink
        self._progress, self._check = shown(progress), check
        self.plan = InferencePlan(len(task.stages), task.shares, task.rank, task.world)
        self._tables = InferenceTables(
            cluster, task.types[0], task.key, stages=self.plan.stages, shares=self.plan.shares
        )
        self._strings = _string_type(cluster.schema, task.types) if sink.takes_strings else None
        self._reader = BlockReader(cluster, task, self._tables, self._strings)
        self._shown: int | None = None

    def run(self) -> None:
        """Do this process's part. Shares that earlier runs have finished are left out. Raises AttaError: no other process has
        completed a share for a long time; RemoteError: a daemon does not answer. UnknownNameError: a daemon has lost rows."""
        if self.over():
            return  # without tables
        try:
            while step := self.plan.next(self._done()):
                if step.share is None:
                    self._await(step.stage)
                else:
                    self._run(step.stage, step.share)
        except UnknownNameError:
            if not self.over():  # else another process was the last, and has deleted the tables
                raise

    @property
    def version(self) -> int | None:
        """Of the dataset's tables that are read; None: the newest."""
        return self._task.version

    def clean(self) -> None:
        """Delete the rows between stages, when all processes have ended."""
        self._tables.clean()

    def over(self) -> bool:
        """Whether all shares are finished, as far as it is to be seen here."""
        return all(self._sink.finished(share) for share in range(self.plan.shares))

    # -- point queries -------------------------------------------------------------------------------------------------

    def prepare(self, ends: Any = None) -> None:
        """Do all stages but the last one, which ``rows`` or ``best`` computes for some vertices. ``ends``: a table
        (see ``InferenceTables.take``) that has the rows of both ends of pairs already. For the only process of a run."""
        last = self._task.stages[-1]
        if ends is not None and last.ends is not None:
            for rows in last.ends:
                self._tables.take(rows, ends)
            return
        for number, done in enumerate(self._done()[:-1] if self.plan.stages > 1 else ()):
            for share in np.flatnonzero(~done).tolist():
                self._run(number, share)

    def rows(self, ids: Ids) -> tuple[Ids, npt.NDArray[Any], int]:
        """The last stage for vertices ``ids`` [n], each once: the same ids in another order, what is written of each
        [n, ...], and the oldest version of the dataset's tables that was read."""
        stage = replace(self._task.stages[-1], nodes=ids)
        assert stage.compute is not None, "a stage without ends computes rows"
        found = [(one.ids, stage.compute(one.block), one.version) for one in self._reader.blocks(0, stage)]
        self._tables.keep()
        numbers, values, versions = zip(*found, strict=True)
        return np.concatenate(numbers), self._task.finish(np.concatenate(values)), min(versions)

    def rows_of_new(self, new: UnseenVertices, company: Ids) -> tuple[npt.NDArray[Any], int]:
        """The same for vertices that the graph does not have, in their order, as ``BlockReader.around`` takes them."""
        stage = self._task.stages[-1]
        assert stage.compute is not None, "a stage without ends computes rows"
        block, version = self._reader.around(stage, new, company)
        self._tables.keep()
        return self._task.finish(stage.compute(block)), version

    def best(self, sources: Ids, count: int, new: tuple[Floats, Ids] | None = None) -> tuple[Ids, Floats]:
        """The last stage for sources [n], each once: int64 [r, 2] and float32 [r], as ``BestTargets.pairs``. ``new``: of
        vertices that the graph does not have, their rows and which of the sources and which targets have edges."""
        ends, top = self._task.stages[-1].ends, self._task.top
        assert ends is not None, "a task of the best targets ends with pairs"
        assert top is not None, "and says which"
        return self._best(sources, ends, replace(top, count=count), new)

    # -- stages --------------------------------------------------------------------------------------------------------

    def _done(self) -> npt.NDArray[np.bool_]:
        """bool [stages, shares]; the last stage is what the sink says."""
        shares = range(self.plan.shares)
        done = self._tables.done() if self.plan.stages > 1 else np.zeros((1, len(shares)), np.bool_)
        done[-1] = [self._sink.finished(share) for share in shares]
        return done

    def _run(self, number: int, share: int) -> None:
        stage = self._task.stages[number]
        if self.plan.rank == 0:
            for rows in unread(self._task.stages, number):
                self._tables.drop(rows.name)
        self._show(number)
        if stage.writes is not None:
            self._between(share, stage, self._tables.begin(stage.writes))
            self._tables.mark(number, share)
            return
        with self._sink.open(share) as writer:
            if stage.ends is None:
                self._last(share, stage, writer)
            elif self._task.top is None:
                self._score(share, stage.ends, writer)
            else:
                self._rank(share, stage.ends, self._task.top, writer)

    def _between(self, share: int, stage: Stage, table: RemoteTable) -> None:
        """Write a share of rows into a table. A block is pushed while the next one is computed."""
        ticket = None
        for _, rows, values in self._computed(share, stage):
            if ticket is not None:
                ticket.wait()
            ticket = table.push(rows, values)
        if ticket is not None:
            ticket.wait()

    def _last(self, share: int, stage: Stage, writer: ShareWriter) -> None:
        nothing = self._task.finish(np.empty((0, stage.width or 0), np.float32))
        writer.write(self._no_ids(0), nothing)  # a share without vertices has columns, too
        for ids, _, values in self._computed(share, stage):
            writer.write(ids, self._task.finish(values))

    def _score(self, share: int, ends: tuple[Rows, Rows], writer: ShareWriter) -> None:
        """Scores of both ends' rows, for this share's part of the pairs, in their order."""
        pairs, task = self._task.pairs, self._task
        assert pairs is not None, "a stage with ends scores pairs"
        counts = local_counts(len(pairs), self.plan.shares)
        first = sum(counts[:share])
        mine = pairs[first : first + counts[share]]
        nothing = [np.empty((0, rows.width or 0), np.float32) for rows in ends]
        writer.write(self._no_ids(0, 2), task.finish(task.score.pairs(nothing[0], nothing[1])))
        for at in range(0, len(mine), _PAIRS):
            self._check()
            some = mine[at : at + _PAIRS]
            source, target = (self._rows_of(rows, numbers) for rows, numbers in zip(ends, some.T, strict=True))
            writer.write(self._named(some), task.finish(task.score.pairs(source, target)))
            self._progress.advance(len(some))

    def _rank(self, share: int, ends: tuple[Rows, Rows], top: TopTargets, writer: ShareWriter) -> None:
        """The best targets of this share's sources. All targets are read once per block of sources."""
        writer.write(self._no_ids(0, 2), np.empty(0, np.float32))
        for sources in self._reader.sources(share, top):
            pairs, scores = self._best(sources, ends, top)
            writer.write(self._named(pairs), scores)
            self._progress.advance(len(sources))

    def _best(
        self, sources: Ids, ends: tuple[Rows, Rows], top: TopTargets, new: tuple[Floats, Ids] | None = None
    ) -> tuple[Ids, Floats]:
        loops = self._task.types[0] == self._task.types[-1] and new is None
        best = BestTargets(sources, top.count, loops=loops)
        rows, linked = (self._rows_of(ends[0], sources), None) if new is None else new
        for found in self._reader.candidates(top):
            self._check()
            self._tables.keep()
            known = found if linked is None else found.linked_as(linked)
            best.take(self._task.score.grid(rows, self._rows_of(ends[1], found.ids)), known)
        return best.pairs()

    def _no_ids(self, *shape: int) -> UserIds:
        return np.empty(shape, np.int64) if self._strings is None else np.empty(shape, self._strings)

    def _rows_of(self, rows: Rows, numbers: npt.NDArray[np.int64]) -> Floats:
        """float32 [n, width]: the rows of some vertices, each of which is pulled once."""
        table = self._tables.rows(rows)
        once, inverse = np.unique(numbers, return_inverse=True)
        return np.asarray(table.pull(table.locate(once)).values[inverse], np.float32)

    def _named(self, pairs: npt.NDArray[np.int64]) -> UserIds:
        """What users call the ends of pairs [n, 2]. Where the vertices of one end have string ids, both are strings."""
        if self._strings is None:
            return pairs
        types = self._task.types if len(self._task.types) == 2 else self._task.types * 2
        columns = [
            self._cluster.ids.strings(numbers, t).astype(self._strings)
            if string_width(self._cluster.schema, t) is not None
            else numbers.astype(self._strings)
            for numbers, t in zip(pairs.T, types, strict=True)
        ]
        return np.stack(columns, axis=1)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _computed(self, share: int, stage: Stage) -> Iterator[tuple[UserIds, npt.NDArray[np.int64], Floats]]:
        """Of each block of a share the user ids and the table rows of its targets, and their new rows. A block is freed
        as soon as it is computed: it and the next one are all that is in memory."""
        assert stage.compute is not None
        for prepared in self._reader.blocks(share, stage):
            self._check()
            self._tables.keep()
            values, targets = stage.compute(prepared.block), prepared.block.targets
            ids, rows = prepared.ids, prepared.rows
            del prepared
            yield ids, rows, values
            self._progress.advance(targets)

    # -- other processes -----------------------------------------------------------------------------------------------

    def _await(self, stage: int) -> None:
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
        stage, pairs, top = self._task.stages[number], self._task.pairs, self._task.top
        if stage.ends is not None and pairs is not None:
            total = len(pairs)
        elif stage.ends is not None and top is not None:
            total = target_count(self._cluster.schema, top.sources, self._task.types[0])
        else:
            total = target_count(self._cluster.schema, stage.nodes, stage.node_type or self._task.types[0])
        counts = local_counts(total, self.plan.shares)
        self._progress.stage(stage.title, sum(counts[share] for share in self.plan.mine))


def _string_type(schema: Schema, types: Sequence[str]) -> np.dtype[np.str_] | None:
    """Of the ids of these node types, if any of them has strings; numbers among them are written in digits."""
    widths = [string_width(schema, t) for t in types]
    if not any(width is not None for width in widths):
        return None
    return np.dtype(f"<U{max(_DIGITS if width is None else width for width in widths)}")
