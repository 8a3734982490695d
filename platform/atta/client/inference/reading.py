"""Reads what a stage of an inference computes on: batches of vertices, their edges, and the rows of both ends; and has the
tables of rows between layers, which processes share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from atta.client.cluster import Cluster
from atta.client.inference.block import LayerBlock, TypedBlock, one_prepared, typed_with_new, with_new
from atta.client.inference.stages import Rows, Stage, Targets
from atta.client.inference.task import Ids, InferenceTask, TargetBlock, TopTargets, UserIds, block_size, target_count
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader, in_edges
from atta.client.loaders.seeds import InputNodes
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, UnknownNameError, blaming
from atta.kvstore.spec import MAX_LEASE_S, MutableSpec
from atta.partition.graph.strings import NAME
from atta.partition.names import split_edge_type
from atta.samplers.seed_plan import home_of
from atta.wire.bulk import UnseenVertices

_SAMPLED_SEEDS = 1024
_RANKED = 4096
"""Sources, and targets, whose scores are in memory at a time: 64 MiB."""

_RENEW_S = 60.0


class InferenceTables:
    """The tables of one inference, created when they are first used. Its processes use the same ones, because ``key``
    is a digest of all that the rows depend on."""

    def __init__(self, cluster: Cluster, node_type: str, key: str, *, stages: int, shares: int) -> None:
        """``key``: letters and digits."""
        self._cluster, self._node_type, self._key = cluster, node_type, key
        self._shape = stages, shares
        self._open: dict[str, RemoteTable] = {}
        self._renewed = time.monotonic()

    def rows(self, rows: Rows) -> RemoteTable:
        """The table of float32 rows of all vertices of a type, which another stage has written. Raises AttaError if it
        has gone."""
        name = self._name(rows.name)
        if name not in self._open:
            gone = "rows between layers have gone: another process of this prediction has ended it"
            with blaming(AttaError, gone, of=UnknownNameError):
                self._open[name] = self._cluster.tables.open(name)
        return self._open[name]

    def take(self, rows: Rows, table: Any) -> None:
        """From now on read these rows from another table of the same vertices, which is not of this inference. It has
        ``locate``, ``pull`` and ``refresh`` of a ``RemoteTable``."""
        self._open[self._name(rows.name)] = table

    def begin(self, rows: Rows) -> RemoteTable:
        """The same table, which is created if nobody has begun to write it."""
        node_type = rows.node_type or self._node_type
        return self._opened(
            MutableSpec(
                self._name(rows.name),
                self._cluster.schema.node_counts[node_type],
                row_shape=() if rows.width is None else (rows.width,),
                policy=f"nodes:{node_type}",
                lease_s=MAX_LEASE_S,
            )
        )

    def done(self) -> np.ndarray:
        """bool [stages, shares]: which shares are done, of any process."""
        marks = self._marks().pull(np.arange(self._shape[0] * self._shape[1])).values
        return np.asarray(marks.reshape(self._shape) != 0)

    def mark(self, stage: int, share: int) -> None:
        """A share is done: all its rows are on the daemons."""
        row = np.array([stage * self._shape[1] + share])
        self._marks().push(row, np.ones(1, np.uint8)).wait()

    def keep(self) -> None:
        """Renew the leases of open tables, if it is time; call this now and then."""
        if time.monotonic() - self._renewed > _RENEW_S:
            self._renewed = time.monotonic()
            for name, table in [*self._open.items()]:
                try:
                    table.refresh()
                except UnknownNameError:  # nobody needs it any more, or else the next request for its rows says so
                    del self._open[name]

    def drop(self, name: str) -> None:
        """Delete the table of rows ``name``, if there is one."""
        full = self._name(name)
        self._open.pop(full, None)
        self._cluster.tables.delete(full)

    def clean(self) -> None:
        """Delete all tables of the inference."""
        self._open.clear()
        for name in self._cluster.tables.specs():
            if name.startswith(self._name("")):
                self._cluster.tables.delete(name)

    def _name(self, name: str) -> str:
        return f"predict.{self._key}.{name}"

    def _marks(self) -> RemoteTable:
        stages, shares = self._shape
        name = self._name(f"done-{stages}x{shares}")
        return self._opened(MutableSpec(name, stages * shares, dtype="|u1", lease_s=MAX_LEASE_S))

    def _opened(self, spec: MutableSpec) -> RemoteTable:
        if spec.name not in self._open:
            with blaming(ConfigError, "rows between layers", of=ConfigError):
                self._open[spec.name] = self._cluster.tables.create(spec)
        return self._open[spec.name]


class RowTables(Protocol):
    """The tables of rows that stages read and write."""

    def rows(self, rows: Rows) -> RemoteTable:
        """The table of float32 rows of all vertices of a type."""


@dataclass(frozen=True)
class Prepared:
    """A block with the user ids and the table rows of its targets, and the version of the dataset's tables that it was
    read from."""

    ids: UserIds
    rows: Ids
    block: LayerBlock | TypedBlock
    version: int


def present_version(cluster: Cluster, node_type: str, nodes: Targets) -> int:
    """The version of the dataset's tables that a session of ``nodes`` has which begins now; 0: the dataset as it was
    partitioned."""
    some = nodes[:1] if isinstance(nodes, np.ndarray) else nodes
    count = target_count(cluster.schema, some, node_type)  # so each rank has one vertex
    one = NeighborLoader(cluster, [], (node_type, some), tables={}, edge_ids=False, rank=0, world_size=count)
    return int(next(iter(one)).version)


def pin(loader: NeighborLoader, version: int) -> None:
    """Let the next iteration of a loader read this version of the dataset."""
    loader.load_state_dict({**loader.state_dict(), "tables_version": version})


class BlockReader:
    """Reads the blocks of shares of stages."""

    def __init__(
        self,
        cluster: Cluster,
        task: InferenceTask,
        tables: RowTables,
        id_type: np.dtype[np.str_] | None,
        *,
        pinned: bool = False,
    ) -> None:
        """``id_type``: of string ids, if these are written; None: numbers are. ``pinned``: read the task's version also when
        there are newer ones."""
        self._pinned = pinned
        self._cluster, self._task, self._tables, self._id_type = cluster, task, tables, id_type
        self._schema, self._node_type = cluster.schema, task.types[0]

    def blocks(self, share: int, stage: Stage) -> Iterator[Prepared]:
        """A share's blocks. The next one is prepared while one is in use."""
        seeds, size = (self._own(stage), stage.nodes), self._task.batch_size or self._block_size(stage)
        return one_prepared(self._loader(share, stage, seeds, size), partial(self._prepare, stage))

    def around(self, stage: Stage, new: UnseenVertices, company: Ids) -> tuple[LayerBlock | TypedBlock, int]:
        """The block of a sampled stage around new vertices, and the version that it was read from. ``new``: edge types by
        their full names, sources by their numbers, each known; ``company``: a known vertex, for those without edges."""
        types = {e: self._schema.endpoints(e) for e in self._schema.edge_types}
        coming = [(e, types[e][0], *ends) for e, ends in new.edges.items() if len(ends[0])]
        near, places = dict[str, Ids](), dict[str, tuple[Ids, Ids]]()
        for _, source, sources, _ in coming:
            near[source] = np.union1d(near.get(source, sources), sources)
        near, own, hops = near or {self._own(stage): company}, self._own(stage), len(stage.fan_outs)
        # Weights tell the degrees of expanded vertices.
        stage = replace(stage, fan_outs=stage.fan_outs[1:] or (1,) * stage.weighed)
        (batch,) = self._loader(0, stage, near, sum(map(len, near.values())))
        for edge_type, source, sources, targets in coming:
            order = np.argsort(batch.n_id(source)[: len(near[source])])
            places[edge_type] = order[np.searchsorted(near[source], sources)], targets
        block = self._prepare(stage, batch).block
        if isinstance(block, TypedBlock):
            return typed_with_new(block, own, new.x, places, types), batch.version
        (edge_type,), nothing = types, np.empty(0, np.int64)
        return with_new(block, new.x, *places.get(edge_type, (nothing, nothing)), hops), batch.version

    def _loader(self, share: int, stage: Stage, seeds: InputNodes, batch_size: int) -> NeighborLoader:
        fan_outs: Sequence[int] | Mapping[str, Sequence[int]] = stage.fan_outs
        if stage.fan_outs and stage.edge_types is not None:
            nothing = [0] * len(stage.fan_outs)
            fan_outs = {e: stage.fan_outs if e in stage.edge_types else nothing for e in self._schema.edge_types}
        loader = NeighborLoader(
            self._cluster, fan_outs, seeds, batch_size=batch_size, seed=self._task.seed,
            tables={t or self._node_type: [self._task.features] for t in stage.features},
            seed_tables=[NAME] if self._id_type is not None and stage.writes is None else [],
            edge_tables=sorted(set(stage.edge_tables.values())), edge_norm="gcn" if stage.weighed else None,
            unbiased=stage.weighed, **self._share(share, f"{stage.title.replace(' ', '-')}-{share}"),
        )  # fmt: skip
        if self._pinned and self._task.version is not None:
            pin(loader, self._task.version)
        return loader

    def sources(self, share: int, top: TopTargets) -> Iterator[Ids]:
        """User ids of a share's sources, block by block."""
        own, how = self._node_type, self._share(share, f"top-{share}")
        for batch in NeighborLoader(self._cluster, [], (own, top.sources), batch_size=_RANKED, tables={}, **how):
            self._check_version(batch)
            yield batch.n_id(own)[: batch.batch_size].copy()

    def candidates(self, top: TopTargets) -> Iterator[TargetBlock]:
        """All targets with the edges that they have already, block by block."""
        source, _, target = split_edge_type(top.edge_type)
        for batch in in_edges(
            self._cluster, top.edge_type, None, batch_size=_RANKED, edge_ids=False, job="predict-top"
        ):
            self._check_version(batch)
            ends = batch.edge_index(top.edge_type)
            linked = np.stack([batch.n_id(source)[ends[0]], ends[1]])
            yield TargetBlock(batch.n_id(target)[: batch.batch_size].copy(), linked)

    def _own(self, stage: Stage) -> str:
        return stage.node_type or self._node_type

    def _share(self, share: int, job: str) -> dict[str, Any]:
        """Arguments of a loader that goes over a share. Its home depends on the share: all daemons are kept busy."""
        home = home_of(share, self._task.shares, self._cluster.num_parts)
        ranks = {"rank": share, "world_size": self._task.shares, "home": home}
        return {**ranks, "pad": False, "edge_ids": False, "job": f"predict-{job}"}

    def _block_size(self, stage: Stage) -> int:
        if len(stage.fan_outs) > 1:
            return _SAMPLED_SEEDS
        schema, features = self._schema, self._task.features
        read = [1 if rows is None else rows.width or 1 for rows in stage.reads.values()]
        read += [schema.node_tables[t or self._node_type][features].row_shape[0] for t in stage.features]
        edge_types = schema.edge_types if stage.edge_types is None else stage.edge_types
        edges, vertices = sum(schema.edge_counts[e] for e in edge_types), schema.node_counts[self._own(stage)]
        width, queued = max([stage.width or 1, *read]), bool(stage.features)
        return block_size(vertices, edges, width, row_per_edge=stage.row_per_edge, queued=queued)

    def _prepare(self, stage: Stage, batch: MiniBatch) -> Prepared:
        """Find the table rows of a batch's vertices, and pull what the stage reads of them."""
        self._check_version(batch)
        own, targets = self._own(stage), batch.batch_size
        where: dict[str, Ids] = {}  # tables of one type number their rows alike

        def places(rows: Rows, node_type: str) -> Ids:
            if node_type not in where:
                where[node_type] = self._tables.rows(rows).locate(batch.n_id(node_type))
            return where[node_type]

        def pulled(rows: Rows, node_type: str) -> Any:
            return self._tables.rows(rows).pull(places(rows, node_type)).values

        x = {
            t: pulled(rows, t or own)
            if rows is not None
            else np.asarray(batch.table(self._task.features, t or own), np.float32)
            for t, rows in stage.reads.items()
        }
        degrees = {rule: pulled(rows, own) for rule, rows in stage.degrees.items()}
        written = np.empty(0, np.int64) if stage.writes is None else places(stage.writes, own)[:targets]
        block: LayerBlock | TypedBlock
        if stage.edge_types is None:
            edge_rows = {name: batch.edge_table(table) for name, table in stage.edge_tables.items()}
            block = LayerBlock(
                x.get("", np.empty((len(batch.n_id()), 0), np.float32)), batch.edge_index(), targets, degrees, edge_rows,
                batch.edge_weight(), batch.num_sampled_nodes(), batch.num_sampled_edges(),
            )  # fmt: skip
        else:
            edges = {e: batch.edge_index(e) for e in stage.edge_types}
            nodes = {t: batch.num_sampled_nodes(t) for t in self._schema.node_types}
            hops = {e: batch.num_sampled_edges(e) for e in stage.edge_types}
            block = TypedBlock(x, edges, targets, written, nodes, hops)
        if self._id_type is not None and stage.writes is None:
            return Prepared(batch.strings(own)[:targets].astype(self._id_type), written, block, batch.version)
        return Prepared(batch.n_id(own)[:targets].copy(), written, block, batch.version)

    def _check_version(self, batch: MiniBatch) -> None:
        if self._task.version not in (None, batch.version):
            raise AttaError(
                f"the dataset got version {batch.version} of its tables while predictions were made of version "
                f"{self._task.version}: make them again"
            )
