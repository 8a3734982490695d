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
    newest_version,
    targets_of,
)
from atta.client.inference.reading import BlockReader, pin
from atta.client.inference.sinks import MemorySink, Sink
from atta.client.inference.stages import Rows, Stage, Targets
from atta.client.loaders.neighbor import NeighborLoader
from atta.errors import AttaError, ConfigError, RemoteError, UnknownNameError
from atta.observe.progress import Progress, Silent
from atta.samplers.arguments import number
from atta.train.launching.predict import PredictJob

PATIENCE_S = 300.0
"""How long daemons that do not answer are waited for."""
_PAUSE_S = 1.0
_LOOK_S = 0.5
_SHARE_VERTICES = 1 << 13
"""At least so many vertices are worth a session of their own."""
_IDS_AT_ONCE = 1 << 14
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
        how = "all rows" if self.since is None else f"from version {self.since}, {self.computed:,} rows computed"
        return f"version {self.version}: {how}, {self.changed:,} of the result changed, {self.seconds:.2f} s"


class InferenceFollower:
    """Keeps a table of the rows of all vertices up to date: after one pass over everything, each version of the dataset that
    ``atta update`` publishes is followed by computing anew only what it can change, layer by layer.

        follower = atta.InferenceFollower(cluster, "runs/a", table="embeddings")
        follower.catch_up()
        values, version = follower.tables.read(ids)

    The tables are on the daemons: ``NAME``, ``NAME.version``, and of inner layers ``NAME.rows-1`` and so on. A follower that was
    killed goes on when the same is done again. New vertices need a new dataset (``extend``), and a new follower."""

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
        self._state = self.tables.state()
        self._ids: dict[str, npt.NDArray[np.int64]] = {}

    @property
    def version(self) -> int | None:
        """The version of the dataset that the rows are of; None: the first pass is not over."""
        return self._state.version if self._state.done else None

    def follow(self) -> Iterator[FollowedVersion]:
        """Follow the dataset without an end; yields what was done. While a daemon does not answer, it is waited for.

        Raises RemoteError: for minutes; UnknownNameError: a daemon has lost rows; AttaError: another follower writes the
        tables."""
        silent_since: float | None = None
        while True:
            self._check()
            try:
                done = self.catch_up()
            except RemoteError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > PATIENCE_S:
                    raise
                time.sleep(_PAUSE_S)
                continue
            silent_since = None
            if done is None:
                time.sleep(_LOOK_S)
            else:
                yield done

    def catch_up(self) -> FollowedVersion | None:
        """Compute what the newest version of the dataset changes; None: the rows are of it already. Several versions are
        followed at once. Raises as ``follow``, and RemoteError at once; then call it again."""
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
            for stage in self._stages:
                todo = None if changes is None else self._affected(stage, version, changes, moved)
                # Rows of a version that was begun before may be there: then all that may differ is written.
                tolerance = None if again else 0.0 if changes is None else self._tolerance
                moved[_written(stage)] = self._computed(stage, todo, version, tolerance)
                computed += self._count(stage) if todo is None else int(todo.sum())
            self._state = self.tables.commit(version)
        changed = int(moved[_written(self._stages[-1])].sum())
        since = None if changes is None else state.version
        return FollowedVersion(version, since, computed, changed, time.monotonic() - began)

    def _affected(self, stage: Stage, version: int, changes: DatasetChanges, moved: Mapping[Rows, Marks]) -> Marks:
        """The vertices of a stage whose rows may differ. ``moved``: those that differ in what earlier stages have written."""
        own, counts = self._type(stage), self._schema.node_counts

        def differ(node_type: str, rows: Rows | None) -> Marks:
            if rows is not None:
                return moved[rows]
            return changes.rows.get((node_type, self._task.features), np.zeros(counts[node_type], np.bool_))

        read = {own: np.zeros(counts[own], np.bool_)}
        reads = [(node_type or own, rows) for node_type, rows in stage.reads.items()]
        for node_type, rows in [*reads, *((own, rows) for rows in stage.degrees.values())]:
            read[node_type] = differ(node_type, rows) | read.get(node_type, np.False_)
        edges = {}
        for edge_type in self._schema.edge_types if stage.edge_types is None else stage.edge_types:
            source, target = self._schema.endpoints(edge_type)
            edges[edge_type] = source, changes.edges.get(edge_type, np.zeros(counts[target], np.bool_))
        return affected(len(stage.fan_outs), own, read, edges, partial(targets_of, self._cluster, version))

    def _computed(self, stage: Stage, todo: Marks | None, version: int, tolerance: float | None) -> Marks:
        """Compute rows of a stage and write them; returns those that differ. ``todo``: None: all."""
        own, last = self._type(stage), stage is self._stages[-1]
        changed = np.zeros(self._count(stage), np.bool_)
        count = len(changed) if todo is None else int(todo.sum())
        if not count:
            return changed
        nodes = None if todo is None or count > _MOST_OF_ALL * len(todo) else self._user_ids(own)[todo]
        shares = min(self._cluster.num_parts, 1 + count // _SHARE_VERTICES)
        task = replace(self._task, version=version, shares=shares)
        reader = BlockReader(self._cluster, task, self.tables, None, pinned=True)
        self._progress.stage(stage.title, count)
        assert stage.compute is not None
        for share in range(shares):
            for prepared in reader.blocks(share, replace(stage, nodes=nodes)):
                self._check()
                values: npt.NDArray[Any] = stage.compute(prepared.block)
                if last:
                    values, tolerance = self._task.finish(values), tolerance and 0.0
                at = prepared.rows
                differ = self.tables.write(
                    _written(stage), at, values, state=self._state, version=version, tolerance=tolerance
                )
                changed[at[differ]] = True
                self._progress.advance(len(at))
        return changed

    def _keep(self, version: int, sessions: contextlib.ExitStack) -> bool:
        """Have all daemons keep a version: each has one of ``sessions`` that reads it. False: it has gone, there are newer
        ones."""
        for parts in self._cluster.parts:
            how: dict[str, Any] = {"rank": 0, "world_size": 1, "home": parts.start, "job": "follow"}
            loader = NeighborLoader(self._cluster, [], (self._own, None), tables={}, **how)
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
            how: dict[str, Any] = {"rank": 0, "world_size": 1, "batch_size": _IDS_AT_ONCE, "job": "follow"}
            loader = NeighborLoader(self._cluster, [], (node_type, None), tables={}, edge_ids=False, **how)
            ids = np.concatenate([batch.n_id(node_type) for batch in loader])
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
