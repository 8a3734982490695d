"""``DistNodeDataLoader``: batches of vertices, with the blocks that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import NeighborLoader
from atta.compat.dgl.dataloading.batches import (
    DistBatches,
    batch_count,
    check_device,
    loader_options,
    probably_wanted,
)
from atta.compat.dgl.dataloading.blocks import blocks_of, by_type
from atta.compat.dgl.dataloading.sampler import NeighborSampler
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.distributed.graph import DistGraph
from atta.compat.dgl.distributed.recent import BatchTables, Wanted
from atta.compat.dgl.job import drawing_seed
from atta.compat.dgl.offered import NotOfferedError
from atta.samplers.arguments import integers


class DistNodeDataLoader(DistBatches):
    """Gives ``(input_nodes, output_nodes, blocks)`` for each batch of this trainer's vertices.

    In graphs of several node types both are mappings from types to ids; ``output_nodes`` is one where ``nids`` is one.
    With seeds of several types it has those that the batch has.
    A vertex that is given twice for one batch is in it once. A share without vertices has no batches.

    ``g.ndata[name][input_nodes]`` and ``g.ndata[name][output_nodes]`` cost no further request from the second batch on:
    the daemons send these rows along.
    """

    def __init__(
        self, g: DistGraph, nids: Any, graph_sampler: NeighborSampler, device: Any = None, **options: Any
    ) -> None:
        """Describe the batches.

        Args:
            g: the graph.
            nids: ids of this trainer's vertices, or ``{node type: ids}``.
            graph_sampler: of this package's ``dataloading``.
            device: the CPU.
            **options: ``batch_size`` (1), ``shuffle`` (False), ``drop_last`` (False). Others of DGL mean nothing here.

        Raises:
            ConfigError: DGL is missing, or a vertex does not exist.
        """
        check_device("DistNodeDataLoader", device)
        if not isinstance(graph_sampler, NeighborSampler):
            raise NotOfferedError(
                f"DistNodeDataLoader does not offer {type(graph_sampler).__name__}: daemons sample, so take a "
                "NeighborSampler of atta.compat.dgl.dataloading"
            )
        self._mapped = isinstance(nids, Mapping)
        given = nids if isinstance(nids, Mapping) else {None: nids}
        self._ids = {g.types.node_type(ntype): integers("nids", ids).reshape(-1) for ntype, ids in given.items()}
        self._sampler, count = graph_sampler, sum(map(len, self._ids.values()))
        self._options = loader_options("DistNodeDataLoader", options)
        self._seed = drawing_seed()
        trains = bool(self._options.get("shuffle"))
        wanted = probably_wanted(g, self._ids) if trains else Wanted()
        length = len(self._batches_with(g, {}, [])) if batch_count(count, self._options) else 0
        super().__init__(g, length, wanted, trains=trains)

    def open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> DagLoader:
        return self._batches_with(self.g, tables, seed_tables)

    def _batches_with(self, g: DistGraph, tables: dict[str, list[str]], seed_tables: list[str]) -> NeighborLoader:
        if len(self._ids) > 1:  # rows for seeds come with all vertices of their types
            known = g.cluster.schema.node_tables
            of_seeds = {t: [name for name in seed_tables if name in known[t]] for t in self._ids}
            tables = {t: [*dict.fromkeys([*names, *of_seeds.get(t, ())])] for t, names in tables.items()}
            seed_tables = []
        return NeighborLoader(
            g.cluster, self._sampler.hops(g.types), self._ids, tables=tables, seed_tables=seed_tables,
            rank=0, world_size=1, home=g.home, seed=self._seed, **self._sampler.options, **self._options,
        )  # fmt: skip

    def made(self, batch: Any) -> tuple[Any, Any, list[Any]]:
        types, recent = self.g.types, self.g.recent
        inputs = {t: tensor(batch.n_id(t)) for t in types.schema.node_types}
        self._prefetch(inputs)
        tables = BatchTables(batch, self._wanted)
        for node_type, ids in inputs.items():
            recent.remember(ids, node_type, tables, whole=True)
        counts = {t: len(batch.seeds_of(t)) for t in self._ids}
        seeds = {t: inputs[t][:count] for t, count in counts.items() if count}
        for node_type, ids in seeds.items():
            recent.remember(ids, node_type, tables, whole=False)
        mapped = self._mapped or len(inputs) > 1
        outputs = {types.ntype(t): ids for t, ids in seeds.items()}
        return by_type(inputs, types), outputs if mapped else next(iter(seeds.values())), blocks_of(batch, types)
