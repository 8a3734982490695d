"""``atta.InferenceFollower``: keeps the rows of all vertices up to date with the versions of a dataset."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.followed import (
    RESULT,
    DatasetChanges,
    FollowedTables,
    Marks,
    affected,
    edges_from,
    newest_version,
)
from atta.client.inference.reading import BlockReader, Prepared, pin
from atta.client.inference.sinks import MemorySink, Sink
from atta.client.inference.stages import Rows, Stage, Targets
from atta.client.loaders.neighbor import NeighborLoader, row_ids
from atta.client.tables.versions import each_done
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.kvstore.live.book import USED
from atta.observe.lastwords import counted
from atta.observe.progress import Progress, Silent
from atta.samplers.arguments import number
from atta.train.launching.predict import PredictJob
from atta.train.launching.totals import NewRows, RunningTotals, StageChanges

_SHARE_VERTICES = 1 << 13
"""At least so many vertices are worth a session of their own."""
_MOST_OF_ALL = 0.7
"""If more of all vertices are affected, all are computed: their ids need not be sent."""


@dataclass(frozen=True)
class FollowedVersion:
    """What was done for a version of the dataset.

    Attributes:
        version: the rows are of it now.
        since: the version that they were of before; None: all rows were computed.
        computed: rows that were computed, over all layers.
        changed: rows of the result that differ from those before.
        seconds: how long it took.
    """

    version: int
    since: int | None
    computed: int
    changed: int
    seconds: float

    def __str__(self) -> str:
        rows = counted(self.computed, "row")
        how = "all rows" if self.since is None else f"from version {self.since}, {rows} computed"
        return f"version {self.version}: {how}, {self.changed:,} of the result changed, {self.seconds:.2f} s"


class InferenceFollower:
    """Keeps a table of the rows of all vertices up to date: after one pass over everything, each version of the dataset that
    ``atta update`` publishes is followed by computing anew only what it can change, layer by layer.

        follower = atta.InferenceFollower(cluster, "runs/a", table="embeddings")
        follower.catch_up()
        values, version = follower.tables.read(ids)

    The tables are on the daemons: ``NAME``, ``NAME.version``, and of inner layers ``NAME.rows-1`` and so on. A follower that was
    killed goes on when the same is done again. Vertices of another dataset (``extend``) need a new follower."""

    def __init__(
        self,
        cluster: Cluster,
        model: str | Path | Sequence[Any],
        *,
        table: str,
        what: str = "embeddings",
        tolerance: float = 0.0,
        edge_tables: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        check: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        """Create the tables, or take over those of a follower that has ended.

        Args:
            cluster, model, what, edge_tables, progress: see ``atta.predict``.
            table: name of the table of the result.
            tolerance: a row between two layers that changes by less than this part of its norm stays as it is, so nothing
                that reads it is computed for that.
            check: called between blocks; what it raises ends the work.
            **options: ``features``, ``batch_size``, ``device`` and ``node_type`` of ``atta.predict``.

        Raises:
            ConfigError: an argument makes no sense, the model does not fit the graph, or a table belongs to something else.
            DataError: the checkpoint is missing or damaged.
            UnknownNameError: a daemon has lost its rows of a table.
            RemoteError: a daemon does not answer.
        """
        self._tolerance = 0.0 if not tolerance else number("tolerance", tolerance, "0 or more", above=0)
        known = {"features", "batch_size", "device", "node_type"}
        if other := sorted(options.keys() - known):
            raise ConfigError(f"{other[0]}: goes with atta.predict, a follower computes all vertices exactly")
        job = _FollowedJob(cluster, model, what=what, edge_tables=edge_tables, **options)
        self._cluster, self._task, self._schema = cluster, job.task, cluster.schema
        self._progress, self._check = progress or Silent(), check
        self._own = job.task.types[0]
        *inner, last = job.task.stages
        result = Rows(RESULT, None if what == "classes" else job.width, last.node_type)
        self._stages = [*inner, replace(last, writes=result)]
        self.tables = FollowedTables.created(cluster, table, job.digest)
        """See ``FollowedTables.read``."""
        for stage in self._stages:
            dtype = "<i8" if stage is self._stages[-1] and what == "classes" else "<f4"
            self.tables.create(_written(stage), self._own, dtype)
        self._totals = {
            number: RunningTotals(cluster, self.tables, stage, self._type(stage), f"totals-{number}")
            for number, stage in enumerate(self._stages, 1)
            if stage.sums is not None
        }
        self._state = self.tables.state()
        self._ids: dict[str, npt.NDArray[np.int64]] = {}

    @property
    def version(self) -> int | None:
        """The version of the dataset that the rows are of; None: the first pass is not over."""
        return self._state.version if self._state.done else None

    def follow(self) -> Iterator[FollowedVersion]:
        """Follow the dataset without an end; yields what was done. Raises as ``each_done``; UnknownNameError: a daemon has lost
        rows; AttaError: another follower writes the tables."""
        return each_done(self.catch_up)

    def catch_up(self) -> FollowedVersion | None:
        """Compute what the newest version of the dataset changes; None: the rows are of it already. Several versions are
        followed at once. Raises as ``follow``, and RemoteError at once; then call it again."""
        self._check()
        began, version = time.monotonic(), newest_version(self._cluster)
        state = self._state = self.tables.state()
        if state.done and version == state.version:
            return None
        if version < state.version:
            raise AttaError(f"table {self.tables.name}: is of version {state.version}, the dataset has only {version}")
        with contextlib.ExitStack() as sessions:
            if not self._keep(version, sessions):
                return self.catch_up()
            changes = DatasetChanges.between(self._cluster, state.version, version) if state.done else None
            self._state, again = self.tables.begin(), state.begun > state.done
            moved, computed = dict[Rows, Marks](), 0
            for number, stage in enumerate(self._stages, 1):
                # Rows of a version that was begun before may be there: then all that may differ is written.
                tolerance = None if again else 0.0 if changes is None else self._tolerance
                new = self._new_rows(number, version, changes, moved, again=again)
                moved[_written(stage)], count = self._write(stage, new, version, tolerance)
                computed += count
            self._state = self.tables.commit(version)
        changed = int(moved[_written(self._stages[-1])].sum())
        since = None if changes is None else state.version
        return FollowedVersion(version, since, computed, changed, time.monotonic() - began)

    def _new_rows(
        self, number: int, version: int, changes: DatasetChanges | None, moved: Mapping[Rows, Marks], *, again: bool
    ) -> Iterator[NewRows]:
        """The rows of a stage that may differ. ``moved``: those that differ in what earlier stages have written."""
        stage, todo, totals = self._stages[number - 1], None, self._totals.get(number)
        if changes is not None:
            read = self._read(stage, changes, moved)
            as_before = all((t or self._own, self._task.features) not in changes.rows for t in stage.features)
            if totals is not None and as_before and not again:
                of = StageChanges(read, changes.edges, self._state, version, partial(self._features, stage, version))
                todo = yield from totals.added(of)
            else:
                todo = self._affected(stage, version, changes, read)
        yield from self._computed(stage, totals, todo, version)

    def _read(self, stage: Stage, changes: DatasetChanges, moved: Mapping[Rows, Marks]) -> dict[str, Marks]:
        """By node type, the vertices whose rows that a stage reads have changed, and those of its own type that are new."""
        own, counts = self._type(stage), self._schema.node_counts

        def differ(node_type: str, rows: Rows | None) -> Marks:
            if rows is not None:
                return moved[rows]
            marks = np.zeros(counts[node_type], np.bool_)
            marks[changes.rows.get((node_type, self._task.features), [])] = True
            return marks

        read = {own: np.zeros(counts[own], np.bool_)}
        read[own][changes.rows.get((own, USED), [])] = True
        reads = [(node_type or own, rows) for node_type, rows in stage.reads.items()]
        for node_type, rows in [*reads, *((own, rows) for rows in stage.degrees.values())]:
            read[node_type] = differ(node_type, rows) | read.get(node_type, np.False_)
        return read

    def _affected(self, stage: Stage, version: int, changes: DatasetChanges, read: Mapping[str, Marks]) -> Marks:
        """The vertices of a stage whose rows may differ."""
        edges, everywhere = {}, range(self._count(stage))

        def targets(edge_type: str, sources: Marks) -> Marks:
            found = np.zeros(self._count(stage), np.bool_)
            for ends in edges_from(self._cluster, edge_type, sources, version, everywhere):
                found[ends[1]] = True
            return found

        for edge_type in self._schema.edge_types if stage.edge_types is None else stage.edge_types:
            source, target = self._schema.endpoints(edge_type)
            changed = np.zeros(self._schema.node_counts[target], np.bool_)
            changed[changes.edges.get(edge_type, [[]])[0]] = True
            edges[edge_type] = source, changed
        return affected(len(stage.fan_outs), self._type(stage), read, edges, targets)

    def _computed(
        self, stage: Stage, totals: RunningTotals | None, todo: Marks | None, version: int
    ) -> Iterator[NewRows]:
        """Rows of a stage from all that it reads, and ``totals`` if they are kept. ``todo``: None: all."""
        count = self._count(stage) if todo is None else int(todo.sum())
        if not count:
            return
        nodes = None if todo is None or count > _MOST_OF_ALL * len(todo) else self._user_ids(self._type(stage))[todo]
        self._progress.stage(stage.title, count)
        for prepared in self._blocks(replace(stage, nodes=nodes), version, 1 + count // _SHARE_VERTICES):
            assert stage.compute is not None
            if totals is not None:
                yield prepared.rows, totals.computed(prepared.block, prepared.rows, version)
            else:
                yield prepared.rows, stage.compute(prepared.block)

    def _blocks(self, stage: Stage, version: int, shares: int) -> Iterator[Prepared]:
        task = replace(self._task, version=version, shares=min(self._cluster.num_parts, shares))
        reader = BlockReader(self._cluster, task, self.tables, None, pinned=True)
        for share in range(task.shares):
            yield from reader.blocks(share, stage)

    def _features(
        self, stage: Stage, version: int, node_type: str, at: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """float32 [n, channels]: features of vertices of a type, by rows of tables."""
        ids, typed = self._user_ids(node_type)[at], stage.edge_types is not None
        (width,) = self._schema.table(node_type, self._task.features).row_shape
        found, order = np.empty((len(at), width), np.float32), np.argsort(ids)
        if len(at):
            reads, edge_types = {node_type if typed else "": None}, () if typed else None
            alone = Stage("features", ids, width, node_type, reads=reads, edge_types=edge_types)
            for prepared in self._blocks(alone, version, 1):
                x: Any = prepared.block.x
                found[order[np.searchsorted(ids[order], prepared.ids)]] = x[node_type] if typed else x
        return found

    def _write(self, stage: Stage, new: Iterator[NewRows], version: int, tolerance: float | None) -> tuple[Marks, int]:
        """Write rows of a stage; returns which of them differ, and how many there were."""
        changed, count = np.zeros(self._count(stage), np.bool_), 0
        for at, rows in new:
            self._check()
            values: npt.NDArray[Any] = rows
            if stage is self._stages[-1]:
                values, tolerance = self._task.finish(values), tolerance and 0.0
            differ = self.tables.write(
                _written(stage), at, values, state=self._state, version=version, tolerance=tolerance
            )
            changed[at[differ]] = True
            count += len(at)
            self._progress.advance(len(at))
        return changed, count

    def _keep(self, version: int, sessions: contextlib.ExitStack) -> bool:
        """Have all daemons keep a version: each has one of ``sessions`` that reads it. False: it has gone, there are newer
        ones."""
        one = self._user_ids(self._own).min(keepdims=True)  # a daemon sorts the seeds of a session
        for parts in self._cluster.parts:
            how: dict[str, Any] = {"rank": 0, "world_size": 1, "home": parts.start, "job": "follow"}
            loader = NeighborLoader(self._cluster, [], (self._own, one), tables={}, **how)
            pin(loader, version)
            try:
                batches: Any = iter(loader)
            except UnknownNameError:
                if newest_version(self._cluster) == version:
                    raise
                return False
            sessions.enter_context(contextlib.closing(batches))
        return True

    def _user_ids(self, node_type: str) -> npt.NDArray[np.int64]:
        """int64 [vertices]: user ids by rows of tables."""
        if node_type not in self._ids:
            ids = row_ids(self._cluster, node_type)
            found = self._ids[node_type] = np.empty(len(ids), np.int64)
            found[self._cluster.tables.locate(f"nodes:{node_type}", ids)] = ids
        return self._ids[node_type]

    def _type(self, stage: Stage) -> str:
        return stage.node_type or self._own

    def _count(self, stage: Stage) -> int:
        return self._schema.node_counts[self._type(stage)]


def _written(stage: Stage) -> Rows:
    assert stage.writes is not None, "all stages of a follower write tables"
    return stage.writes


class _FollowedJob(PredictJob):
    """A job whose rows go where the follower says."""

    digest: int = 0
    """Of what rows depend on besides the version."""

    def _present_version(self, nodes: Targets) -> int:
        return 0  # the follower asks

    def _sink(self, shares: int, column: str, about: dict[str, Any]) -> Sink:
        said = hashlib.blake2b(json.dumps(about).encode(), digest_size=8)
        self.digest = int.from_bytes(said.digest()) >> 2
        return MemorySink()
