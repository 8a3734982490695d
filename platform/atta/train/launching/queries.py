"""Answers the point queries of a daemon by a model (``atta serve --model``). Rows are computed as ``atta predict`` does it
on batches around vertices, or stand in a table that it has written. One thread at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import structlog

import atta
from atta.client.inference.followed import FollowedTables
from atta.client.inference.run import Inference
from atta.client.inference.sinks import Sink
from atta.client.tables.remote import RemoteTable
from atta.daemon.config import DaemonConfig
from atta.daemon.services.queries import TARGETS, PointAnswer, PointQuery
from atta.errors import (
    AttaError,
    ConfigError,
    DataError,
    DeadlineError,
    PeerLostError,
    UnavailableError,
    UnknownNameError,
)
from atta.kvstore.mutable.requests import Pulled
from atta.partition.dataset import Dataset
from atta.train.checkpoint.files import check_names, load_model
from atta.train.launching.predict import PredictJob, class_names, predicted_types
from atta.train.launching.predictors import check_stored
from atta.wire.bulk import UnseenVertices
from atta.wire.credentials import Credentials
from atta.wire.parts import replicas_of

log = structlog.get_logger("atta.daemon")

CONNECT_S = 20.0
"""How long the daemons of the other partitions are waited for, in seconds."""
_LOST = DeadlineError, PeerLostError, UnavailableError
NEWEST = -1
"""The version of rows that stood in a table."""

Numbers = npt.NDArray[np.int64]
T = TypeVar("T")


class _QueryJob(PredictJob):
    """Rows between its stages have names that all daemons with this model share: one of them computes these rows."""

    def _sink(self, shares: int, column: str, about: dict[str, Any]) -> Sink:
        sink = Sink("queries")
        sink.takes_strings = False
        return sink


@dataclass(frozen=True)
class _QueryInference:
    """What computes queries of one kind. ``width``: numbers per row."""

    inference: Inference
    types: tuple[str, ...]
    width: int


class _RowsTable:
    """The table, read as one of one version if a follower writes it. ``version``: that of ``pull``."""

    def __init__(self, table: RemoteTable, followed: FollowedTables | None) -> None:
        self._table, self._followed = table, followed
        self.version, self.locate, self.refresh = NEWEST, table.locate, table.refresh

    def pin(self) -> None:
        """From now on ``pull`` gives the present version."""
        self.version = NEWEST if self._followed is None else self._followed.state().version

    def pull(self, places: Numbers) -> Pulled:
        """Rows of the pinned version. Raises StaleRowError: it has gone."""
        if self._followed is None:
            return self._table.pull(places)
        return Pulled(self._followed.read_at(places, self.version)[0], None)

    def read(self, places: Numbers) -> tuple[npt.NDArray[Any], int]:
        """Rows of the present version, and which it is; -1: nobody says. Raises StaleRowError: there is none yet."""
        return (self._table.pull(places).values, NEWEST) if self._followed is None else self._followed.read_at(places)


class ModelAnswers:
    """An ``Answerer`` (see ``atta.daemon.services.queries``). Its daemon is a client of its own cluster."""

    def __init__(self, config: DaemonConfig) -> None:
        """Read the checkpoint and load torch. Raises DataError: it is missing, damaged or of other data."""
        import torch

        torch.set_num_threads(1)  # the cores are the daemon's
        self._config, self._saved = config, load_model(config.model)
        with contextlib.suppress(ConfigError):  # a model may have no rows of this kind, and answer other questions
            check_stored(config.data, model=config.model, what=config.what)
        self._ready: dict[tuple[str, str], _QueryInference] = {}  # by kind and node type, of targets relation
        self._cluster: atta.Cluster | None = None
        self._table: _RowsTable | None = None

    def begin(self, dataset: Callable[[], Dataset], address: str, credentials: Credentials | None) -> None:
        """See ``Answerer``."""
        try:
            check_names(self._saved.path, self._saved.shape, dataset().schema)
        except DataError as error:
            log.warning("classes will be refused", reason=str(error))
        self._newest, self._address, self._credentials = dataset, address, credentials

    @property
    def _dataset(self) -> Dataset:
        return self._newest()

    def prepare(self) -> None:
        """Connect to all daemons, and answer once, so that first callers wait less. Raises AttaError: it cannot be done."""
        self._connected()
        with contextlib.suppress(ConfigError):  # there is no table yet, or the model has no rows of this kind
            what, ids = self._config.what, self._connected().ids
            node_type = self._types(what)[0]
            first = self._someone(node_type)
            self.answer([PointQuery(what, ids.strings(first, node_type) if ids.known(node_type) else first)])

    def answer(self, queries: Sequence[PointQuery]) -> list[PointAnswer | AttaError]:
        """Answers of queries of one kind, which are computed together. Raises AttaError: why there are none."""
        first, node_type = queries[0], self._types(queries[0].what, queries[0].node_type)[0]
        if first.new is not None:
            return [self._of_new(query, node_type) for query in queries]
        numbers = self._numbers([query.ids for query in queries], node_type)
        known = [found for found in numbers if not isinstance(found, AttaError)]
        if not known:
            return [found for found in numbers if isinstance(found, AttaError)]
        once = np.unique(np.concatenate(known))
        cut = self._targets(first, once) if first.what == TARGETS else self._rows(first.what, once, node_type)
        return [found if isinstance(found, AttaError) else cut(np.searchsorted(once, found)) for found in numbers]

    # -- vertices ------------------------------------------------------------------------------------------------------

    def _someone(self, node_type: str) -> Numbers:
        """A vertex that is in use, int64 [1]."""
        return np.array(self._dataset.ids(node_type)[self._dataset.used(node_type)[:1]], np.int64)

    def _types(self, what: str, asked: str = "") -> tuple[str, ...]:
        return predicted_types(self._dataset.schema, self._saved, asked or None, pairs=what == TARGETS)

    def _numbers(self, asked: Sequence[npt.NDArray[Any]], node_type: str) -> list[Numbers | AttaError]:
        """Numbers of each caller's vertices, or why there are none. Strings are looked up at once if all are known."""
        ids, strings = self._connected().ids, [one for one in asked if one.dtype.kind == "U"]
        found: dict[int, Numbers] = {}
        if len(strings) > 1 and ids.known(node_type):
            with contextlib.suppress(ConfigError):
                together = ids.numbers(np.concatenate(strings), node_type)
                cuts = np.cumsum([len(one) for one in strings])[:-1]
                found = dict(zip(map(id, strings), np.split(together, cuts), strict=True))
        return [found[id(one)] if id(one) in found else self._asked(one, node_type) for one in asked]

    def _asked(self, given: npt.NDArray[Any], node_type: str) -> Numbers | AttaError:
        found = self._numbers_of(given, node_type)
        # who names an unknown vertex may have thought of another type
        if isinstance(found, UnknownNameError) and len(self._dataset.schema.node_types) > 1:
            return UnknownNameError(f"{found}; this query is about node type {node_type!r}")
        return found

    def _numbers_of(self, given: npt.NDArray[Any], node_type: str) -> Numbers | AttaError:
        ids = self._connected().ids
        if given.dtype.kind != "U" and ids.known(node_type):  # who has numbers in JSON means the strings
            return ConfigError(f'node type {node_type!r} has string ids: give strings, such as "{given[0]}"')
        try:
            numbers = ids.numbers(given, node_type) if given.dtype.kind == "U" else given
            self._dataset.to_used(node_type, numbers)
        except UnknownNameError as error:
            return error
        except ConfigError as error:
            return error if given.dtype.kind == "U" else UnknownNameError(str(error))
        return numbers

    # -- new vertices --------------------------------------------------------------------------------------------------

    def _of_new(self, query: PointQuery, node_type: str) -> PointAnswer | AttaError:
        """Rows of vertices that the graph does not have, or their best targets."""
        try:
            assert query.new is not None, "only such queries come here"
            new, someone = self._located(query.new, node_type), self._someone(node_type)
            what = "embeddings" if query.what == TARGETS else query.what
            rows, version = self._with(what, node_type, lambda prepared: prepared.inference.rows_of_new(new, someone))
            if query.what != TARGETS:
                return PointAnswer(rows, version, names=self._names(what, node_type))
            offered, schema = self._types(TARGETS)[-1], self._dataset.schema
            near = [ends for e, ends in new.edges.items() if schema.endpoints(e)[0] == offered]
            linked = np.concatenate([np.empty((2, 0), np.int64), *(np.stack(ends[::-1]) for ends in near)], axis=1)
            everyone = np.arange(len(rows))
            sources, targets, scores, version = self._ranked(
                query, lambda one: one.best(everyone, query.count, (rows, linked))
            )
        except ConfigError as error:
            return error
        counts = np.bincount(sources, minlength=len(rows)).astype(np.int32)
        return PointAnswer(scores, version, counts, targets)

    def _located(self, new: UnseenVertices, node_type: str) -> UnseenVertices:
        """The same with full names of edge types and numbers of vertices. Raises ConfigError: they do not fit the graph."""
        schema, edges = self._dataset.schema, dict[str, tuple[Numbers, Numbers]]()
        into = [e for e in schema.edge_types if schema.endpoints(e)[1] == node_type]
        if "x" not in schema.node_tables[node_type] or node_type in self._saved.embeddings.rows:
            raise ConfigError(f"node type {node_type!r} learns rows in place of features: it can have no new vertices")
        if new.x.shape[1:] != (shape := schema.table(node_type, "x").row_shape):
            raise ConfigError(
                f"x: a row has {new.x.shape[1]} numbers, the table x of {node_type!r} has rows of shape {shape}"
            )
        for name, (sources, targets) in new.edges.items():
            if (edge_type := schema.find_edge_type(name, into)) in edges:
                raise ConfigError(f"edges: {edge_type} is there twice")
            numbers = self._numbers_of(sources, schema.endpoints(edge_type)[0])
            if isinstance(numbers, AttaError):
                raise numbers
            edges[edge_type] = numbers, targets
        return UnseenVertices(new.x, edges)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, what: str, once: Numbers, node_type: str) -> Callable[[Numbers], PointAnswer]:
        """Compute, or read, the rows of vertices; returns what makes the answer of a caller from places among them."""

        def computed(prepared: _QueryInference) -> tuple[npt.NDArray[Any], int]:
            ids, rows, version = prepared.inference.rows(once)
            return rows[np.argsort(ids)], version

        rows, version = self._read(what, once, node_type) or self._with(what, node_type, computed)
        names = self._names(what, node_type)
        return lambda places: PointAnswer(rows[places], version, names=names)

    def _names(self, what: str, node_type: str) -> Sequence[str]:
        return class_names(self._dataset.schema, self._saved, node_type, what) or ()

    def _read(self, what: str, once: Numbers, node_type: str) -> tuple[npt.NDArray[Any], int] | None:
        """Rows of the table and their version; None: it has another kind, or another type's."""
        has = self._config.what
        if not self._config.table or (what != has and (what, has) != ("classes", "scores")):
            return None
        if node_type != self._types(has)[0]:
            return None
        places = self._dataset.to_internal(node_type, once)
        try:
            values, version = self._opened(has, node_type).read(places)
        except UnknownNameError:  # it is another one since
            self._table = None
            values, version = self._opened(has, node_type).read(places)
        return (np.asarray(values.argmax(axis=1), np.int64) if what != has else values), version

    def _opened(self, what: str, node_type: str) -> _RowsTable:
        if self._table is None:
            name, cluster = self._config.table, self._connected()
            table = cluster.tables.open(name)
            width = None if what == "classes" else self._of(what, node_type).width
            shape, kind = (() if width is None else (width,)), "<i8" if width is None else "<f4"
            spec = table.spec
            if (spec.policy, tuple(spec.row_shape), spec.dtype) != (f"nodes:{node_type}", shape, kind):
                raise ConfigError(
                    f"table {name}: rows of {spec.policy} with shape {list(spec.row_shape)} and type {spec.dtype} are not "
                    f"{what} of {node_type!r}, shape {list(shape)}, type {kind}: see --what"
                )
            followed = f"{name}.version" in cluster.tables.specs()
            self._table = _RowsTable(table, FollowedTables(cluster, name) if followed else None)
        return self._table

    # -- targets -------------------------------------------------------------------------------------------------------

    def _targets(self, first: PointQuery, once: Numbers) -> Callable[[Numbers], PointAnswer]:
        """Find the best targets of sources; returns what makes the answer of a caller from places among them."""
        sources, targets, scores, version = self._ranked(first, lambda one: one.best(once, first.count))
        starts = np.searchsorted(sources, np.append(once, np.iinfo(np.int64).max))

        def cut(places: Numbers) -> PointAnswer:
            counts = starts[places + 1] - starts[places]
            at = np.repeat(starts[places] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            return PointAnswer(scores[at], version, counts.astype(np.int32), targets[at])

        return cut

    def _ranked(
        self, query: PointQuery, find: Callable[[Inference], tuple[Numbers, npt.NDArray[np.float32]]]
    ) -> tuple[Numbers, npt.NDArray[Any], npt.NDArray[np.float32], int]:
        """Sources [r], user ids of their targets, scores, and the version of the targets' rows."""

        def best(prepared: _QueryInference) -> tuple[Numbers, npt.NDArray[np.float32], int, str]:
            version, node_type = prepared.inference.version, prepared.types[-1]
            if version is None:  # embeddings stand in the table
                table = self._opened("embeddings", node_type)
                table.pin()
                version = table.version
            return *find(prepared.inference), version, node_type

        pairs, scores, version, node_type = self._with(TARGETS, query.relation, best)
        ids = self._connected().ids
        targets = ids.strings(pairs[:, 1], node_type) if ids.known(node_type) else pairs[:, 1]
        return pairs[:, 0], targets, scores, version

    # -- what computes -------------------------------------------------------------------------------------------------

    def _with(self, what: str, which: str, use: Callable[[_QueryInference], T]) -> T:
        """``use`` of what computes a kind. It is prepared anew once if that fails: daemons have a later version of the
        dataset's tables by now, or have dropped rows between stages."""
        try:
            return use(self._of(what, which))
        except AttaError as error:
            is_new = self._ready.pop((what, which), None) is None
            if isinstance(error, _LOST) or (is_new and isinstance(error, ConfigError)):
                raise  # another try would wait as long; or the question makes no sense
        self._table = None
        return use(self._of(what, which))

    def _of(self, what: str, which: str) -> _QueryInference:
        found = self._ready.get((what, which))
        if found is None:
            found = self._ready[what, which] = self._made(what, which)
        return found

    def _made(self, what: str, which: str) -> _QueryInference:
        cluster = self._connected()
        job = self._job_of_targets(which) if what == TARGETS else self._job_of_rows(what, which)
        table = self._ends(job) if what == TARGETS else None
        # Rows between stages are those of one version. Without any, a batch may be of the newest.
        task = job.task if what == TARGETS and table is None else replace(job.task, version=None)
        inference = Inference(cluster, task, job.sink)
        inference.prepare(table)
        return _QueryInference(inference, job.types, job.width)

    def _job_of_targets(self, relation: str) -> PredictJob:
        """One for any number of targets: that of its own task is not used."""
        return _QueryJob(self._connected(), self._config.model, None, top=1, relation=relation or None, files=1)

    def _job_of_rows(self, what: str, node_type: str) -> PredictJob:
        fan_outs = list(self._config.fan_out or (-1,))

        def job(hops: list[int]) -> PredictJob:
            how: dict[str, Any] = {"num_neighbors": hops, "files": 1, "node_type": node_type}
            return _QueryJob(self._connected(), self._config.model, None, what, **how)

        try:
            return job(fan_outs)
        except ConfigError:
            if what != "embeddings" or len(fan_outs) == 1:
                raise
        return job(fan_outs[:-1])  # embeddings of most models are computed by all layers but the last one

    def _ends(self, job: PredictJob) -> _RowsTable | None:
        """The table, if it has the embeddings of both ends."""
        if not self._config.table or self._config.what != "embeddings" or job.types[0] != job.types[-1]:
            return None
        return self._opened("embeddings", job.types[0])

    def _connected(self) -> atta.Cluster:
        if self._cluster is None:
            config = self._config
            told = (config.peers.get(part) for part in range(self._dataset.partitions.num_parts))
            # Without an address it is this daemon's own.
            target = config.peers_file or [self._address if one is None else replicas_of(one)[0] for one in told]
            self._cluster = atta.connect(target, deadline_s=CONNECT_S, wait=True, credentials=self._credentials)
        return self._cluster
