"""Reads what a stage of an inference computes on: batches of vertices, their edges, and the rows of both ends; and keeps the
best targets of sources, block of targets by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.block import Floats, LayerBlock, TypedBlock, one_prepared
from atta.client.inference.sinks import InferenceTables, UserIds
from atta.client.inference.stages import HopCounts, Rows, Stage, Targets, TypedReads
from atta.client.inference.task import InferenceTask, TopTargets, block_size, target_count
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError
from atta.partition.graph.strings import NAME
from atta.partition.schema import split_edge_type
from atta.samplers.seed_plan import home_of

_SAMPLED_SEEDS = 1024
_RANKED = 4096
"""Sources, and targets, whose scores are in memory at a time: 64 MiB."""


@dataclass(frozen=True)
class Prepared:
    """A block with the user ids and the table rows of its targets."""

    ids: UserIds
    rows: npt.NDArray[np.int64]
    block: LayerBlock | TypedBlock
    counts: HopCounts


def present_version(cluster: Cluster, node_type: str, nodes: Targets) -> int:
    """The version of the dataset's tables that a session of ``nodes`` has which begins now; 0: the dataset as it was
    partitioned."""
    some = nodes[:1] if isinstance(nodes, np.ndarray) else nodes
    count = target_count(cluster.schema, some, node_type)  # so each rank has one vertex
    one = NeighborLoader(cluster, [], (node_type, some), tables={}, edge_ids=False, rank=0, world_size=count)
    return int(next(iter(one)).version)


class BlockReader:
    """Reads the blocks of shares of stages."""

    def __init__(
        self, cluster: Cluster, task: InferenceTask, tables: InferenceTables, id_type: np.dtype[np.str_] | None
    ) -> None:
        """``id_type``: of string ids, if these are written; None: numbers are."""
        self._cluster, self._task, self._tables, self._id_type = cluster, task, tables, id_type
        self._schema, self._node_type = cluster.schema, task.types[0]

    def blocks(self, share: int, stage: Stage) -> Iterator[Prepared]:
        """A share's blocks. The next one is prepared while one is in use."""
        return one_prepared(self._loader(share, stage), partial(self._prepare, stage))

    def sources(self, share: int, top: TopTargets) -> Iterator[npt.NDArray[np.int64]]:
        """User ids of a share's sources, block by block."""
        own = self._node_type
        for batch in self._bare(share, self._task.shares, own, top.sources, []):
            yield batch.n_id(own)[: batch.batch_size].copy()

    def candidates(self, top: TopTargets) -> Iterator[TargetBlock]:
        """All targets with the edges that they have already, block by block."""
        source, _, target = split_edge_type(top.edge_type)
        fan_outs = {name: [-1 if name == top.edge_type else 0] for name in self._schema.edge_types}
        for batch in self._bare(0, 1, target, None, fan_outs):
            ends = batch.edge_index(top.edge_type)
            linked = np.stack([batch.n_id(source)[ends[0]], ends[1]])
            yield TargetBlock(batch.n_id(target)[: batch.batch_size].copy(), linked)

    def _bare(self, share: int, shares: int, node_type: str, nodes: Targets, fan_outs: Any) -> Iterator[MiniBatch]:
        """Batches without rows of a share of vertices."""
        loader = NeighborLoader(
            self._cluster,
            fan_outs,
            (node_type, nodes),
            batch_size=_RANKED,
            rank=share,
            world_size=shares,
            home=home_of(share, shares, self._cluster.num_parts),
            pad=False,
            tables={},
            edge_ids=False,
            job=f"predict-top-{share}",
        )
        for batch in loader:
            self._check_version(batch)
            yield batch

    def _loader(self, share: int, stage: Stage) -> NeighborLoader:
        return NeighborLoader(
            self._cluster,
            self._fan_outs(stage),
            (self._node_type if stage.typed is None else stage.typed.node_type, stage.nodes),
            batch_size=self._task.batch_size or self._block_size(stage),
            rank=share,
            world_size=self._task.shares,
            home=home_of(share, self._task.shares, self._cluster.num_parts),  # the shares keep all daemons busy
            pad=False,
            seed=self._task.seed,
            tables=self._features(stage),
            seed_tables=[NAME] if self._writes_strings(stage) else [],
            edge_tables=sorted(set(stage.edge_tables.values())),
            edge_ids=False,
            edge_norm="gcn" if stage.weighed else None,
            unbiased=stage.weighed,
            job=f"predict-{stage.title.replace(' ', '-')}-{share}",
        )

    def _fan_outs(self, stage: Stage) -> Sequence[int] | Mapping[str, Sequence[int]]:
        """Of a typed graph those of the edge types that are read. With one hop these end at the vertices to compute."""
        if stage.typed is None or not stage.fan_outs:
            return stage.fan_outs
        nothing = [0] * len(stage.fan_outs)
        return {name: stage.fan_outs if name in stage.typed.edge_types else nothing for name in self._schema.edge_types}

    def _features(self, stage: Stage) -> Mapping[str, Sequence[str]] | Sequence[str]:
        """The features that come with a stage's batches."""
        if stage.typed is None:
            return [self._task.features] if stage.features else []
        return {t: [self._task.features] for t, rows in stage.typed.rows.items() if rows is None}

    def _block_size(self, stage: Stage) -> int:
        if len(stage.fan_outs) > 1:
            return _SAMPLED_SEEDS
        if stage.typed is not None:
            return self._typed_block_size(stage, stage.typed)
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
        return self._id_type is not None and stage.writes is None

    def _prepare(self, stage: Stage, batch: MiniBatch) -> Prepared:
        """Find the table rows of a batch's vertices, and pull what the stage reads of them."""
        self._check_version(batch)
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
        degrees = {rule: self._table(of_rule).pull(rows).values for rule, of_rule in stage.degrees.items()}
        counts = HopCounts(batch.num_sampled_nodes(), batch.num_sampled_edges())
        edge_rows = {name: batch.edge_table(table) for name, table in stage.edge_tables.items()}
        block = LayerBlock(x, batch.edge_index(), targets, degrees, edge_rows, batch.edge_weight())
        return Prepared(self._ids(stage, batch), rows[:targets], block, counts)

    def _check_version(self, batch: MiniBatch) -> None:
        if batch.version != self._task.version:
            raise AttaError(
                f"the dataset got version {batch.version} of its tables while predictions were made of version "
                f"{self._task.version}: make them again"
            )

    def _prepare_typed(self, stage: Stage, typed: TypedReads, batch: MiniBatch) -> Prepared:
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
        nodes = {t: batch.num_sampled_nodes(t) for t in self._schema.node_types}
        hops = {name: batch.num_sampled_edges(name) for name in typed.edge_types}
        block = TypedBlock(x, edges, targets, places, nodes, hops)
        return Prepared(self._ids(stage, batch), places, block, HopCounts((), ()))

    def _ids(self, stage: Stage, batch: MiniBatch) -> UserIds:
        """What users call the vertices that a batch is about."""
        node_type = self._node_type if stage.typed is None else stage.typed.node_type
        if self._id_type is not None and stage.writes is None:
            return batch.strings(node_type)[: batch.batch_size].astype(self._id_type)
        return batch.n_id(node_type)[: batch.batch_size].copy()

    @staticmethod
    def _numbering(stage: Stage) -> list[Rows]:
        """Tables that the stage uses. All of them number their rows alike."""
        used = (stage.reads, *stage.degrees.values(), stage.writes)
        return [rows for rows in used if rows is not None]

    def _table(self, rows: Rows) -> RemoteTable:
        return self._tables.rows(rows)


Ids = npt.NDArray[np.int64]
_SPARE = 4
"""A block in which this many times more scores than wanted beat the ones before is thinned before it is sorted."""


@dataclass(frozen=True)
class TargetBlock:
    """A block of targets.

    Attributes:
        ids: int64 [m], user ids of the targets.
        linked: int64 [2, e], user ids of sources and places in ``ids``: edges that exist.
    """

    ids: Ids
    linked: Ids


class BestTargets:
    """The best targets of some sources so far."""

    def __init__(self, sources: Ids, count: int, *, loops: bool) -> None:
        """sources: int64 [n], user ids, each once. count: targets for each.

        loops: whether sources and targets are vertices of one type, so that a source meets itself.
        """
        self._sources, self._count, self._loops = sources, count, loops
        self._order = np.argsort(sources)
        self._rows, self._ids = np.empty(0, np.int64), np.empty(0, np.int64)
        self._scores = np.empty(0, np.float32)

    def take(self, scores: Floats, found: TargetBlock) -> None:
        """Take a block's scores [n, m]. They are overwritten where a pair does not count."""
        self._hide(scores, *found.linked)
        if self._loops:
            self._hide(scores, found.ids, np.arange(len(found.ids)))
        rows, places = self._better(scores)
        self._keep(
            np.concatenate([self._rows, rows]),
            np.concatenate([self._ids, found.ids[places]]),
            np.concatenate([self._scores, scores[rows, places]]),
        )

    def pairs(self) -> tuple[Ids, Floats]:
        """int64 [r, 2] sources and targets, and their scores [r]: source by source, the best first."""
        return np.stack([self._sources[self._rows], self._ids], axis=1), self._scores

    def _hide(self, scores: Floats, sources: Ids, places: Ids) -> None:
        """Strike out pairs of a source's id and a target's place. Ids that are not among the sources do not count."""
        at = np.searchsorted(self._sources, sources, sorter=self._order)
        rows = self._order[np.minimum(at, len(self._order) - 1)]
        here = self._sources[rows] == sources
        scores[rows[here], places[here]] = -np.inf

    def _better(self, scores: Floats) -> tuple[Ids, Ids]:
        """Rows and columns of scores that may belong to the best: equal ones do."""
        floor = self._floor()[:, None]
        better = (scores >= floor) & (scores > -np.inf)
        wide = scores.shape[1] - self._count
        if wide > 0 and int(better.sum()) > _SPARE * self._count * len(scores):
            better &= scores >= np.partition(scores, wide, axis=1)[:, wide, None]
        rows, places = np.nonzero(better)
        return rows, places

    def _floor(self) -> Floats:
        """float32 [n]: the last score of each source that has enough targets, otherwise the smallest number."""
        floor = np.full(len(self._sources), -np.inf, np.float32)
        counts = np.bincount(self._rows, minlength=len(floor))
        full = np.flatnonzero(counts == self._count)
        floor[full] = self._scores[np.cumsum(counts)[full] - 1]
        return floor

    def _keep(self, rows: Ids, ids: Ids, scores: Floats) -> None:
        """Keep the best of these per row, sorted."""
        order = np.lexsort((ids, -scores, rows))
        rows, ids, scores = rows[order], ids[order], scores[order]
        counts = np.bincount(rows, minlength=len(self._sources))
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = rank < self._count
        self._rows, self._ids, self._scores = rows[kept], ids[kept], scores[kept]
