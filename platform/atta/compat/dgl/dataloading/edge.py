"""``DistEdgeDataLoader``: batches of edges with negative pairs, and the blocks that their ends need."""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.client.loaders.dag import DagLoader
from atta.client.loaders.link import LinkNeighborLoader, NegativeSampling
from atta.compat.dgl.dataloading.batches import DistBatches, check_device, drawing_seed, loader_options
from atta.compat.dgl.dataloading.blocks import blocks_of, plain
from atta.compat.dgl.dataloading.negative_sampler import Uniform
from atta.compat.dgl.dataloading.sampler import NeighborSampler
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.distributed.graph import DistGraph
from atta.compat.dgl.offered import NotOfferedError
from atta.samplers.arguments import integers

__all__ = ["DistEdgeDataLoader"]

_EXCLUDE = {None: None, "self": "self", "reverse_id": "reverse"}


class DistEdgeDataLoader(DistBatches):
    """Gives ``(input_nodes, pair_graph, blocks)`` for each batch of this trainer's edges, or ``(input_nodes, pair_graph,
    negative_graph, blocks)`` with a negative sampler.

    Both graphs have the same vertices: the destinations of the last block. For graphs with one node type and one edge
    type.
    """

    def __init__(
        self,
        g: DistGraph,
        eids: Any,
        graph_sampler: NeighborSampler,
        device: Any = None,
        *,
        negative_sampler: Uniform | None = None,
        exclude: str | None = None,
        reverse_eids: Any = None,
        reverse_etypes: Any = None,
        **options: Any,
    ) -> None:
        """Describe the batches.

        Args:
            g: the graph.
            eids: ids of this trainer's edges.
            graph_sampler: of this package's ``dataloading``.
            device: the CPU.
            negative_sampler: of ``dataloading.negative_sampler``; None: no negative pairs.
            exclude: ``"self"`` leaves a batch's edges out of its blocks, ``"reverse_id"`` also the edges from their
                destinations to their sources. None leaves nothing out.
            reverse_eids: means nothing here: reverse edges are found by their ends.
            reverse_etypes: not offered.
            **options: ``batch_size`` (1), ``shuffle`` (False), ``drop_last`` (False). Others of DGL mean nothing here.

        Raises:
            UnknownNameError: another sampler, another way to exclude, or a graph of several types.
            ConfigError: DGL is missing, or an edge does not exist.
        """
        check_device("DistEdgeDataLoader", device)
        for given, kind in ((graph_sampler, NeighborSampler), (negative_sampler, Uniform | None)):
            if not isinstance(given, kind):
                raise NotOfferedError(
                    f"DistEdgeDataLoader does not offer {type(given).__name__}: daemons sample, so take one of "
                    "atta.compat.dgl.dataloading"
                )
        if exclude not in _EXCLUDE or reverse_etypes is not None:
            raise NotOfferedError(f"DistEdgeDataLoader offers exclude= None, 'self' and 'reverse_id', not {exclude!r}")
        if not plain(g.types):
            raise NotOfferedError("DistEdgeDataLoader is offered for graphs with one node type and one edge type")
        self._edge_type = g.types.edge_type(None)
        self._eids = integers("eids", eids).reshape(-1)
        self._ends = np.stack(g.ends(self._edge_type, self._eids))
        self._sampler, self._negatives, self._exclude = graph_sampler, negative_sampler, _EXCLUDE[exclude]
        self._options = loader_options("DistEdgeDataLoader", options)
        self._seed = drawing_seed()
        super().__init__(g, len(self._opened(g, {})))

    def open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> DagLoader:
        """See ``DistBatches.open``."""
        return self._opened(self.g, tables)

    def _opened(self, g: DistGraph, tables: dict[str, list[str]]) -> LinkNeighborLoader:
        negatives = None if self._negatives is None else NegativeSampling("triplet", self._negatives.k)
        return LinkNeighborLoader(
            g.cluster, self._sampler.hops(g.types), self._ends, neg_sampling=negatives, exclude_edges=self._exclude,
            tables=tables, rank=0, world_size=1, home=g.home, seed=self._seed, **self._sampler.options, **self._options,
        )  # fmt: skip

    def made(self, batch: Any) -> tuple[Any, ...]:
        """See ``DistBatches.made``."""
        import dgl

        (node_type,) = self.g.types.schema.node_types
        inputs = tensor(batch.n_id(node_type))
        self.g.recent.remember(inputs, node_type, batch, self._wanted, whole=True)
        count = batch.num_sampled_nodes()[0]
        links = batch.links()
        if self._negatives is None:
            source, target = links["edge_label_index"]
        else:
            source, target = links["src_index"], links["dst_pos_index"]
        pairs = dgl.graph((tensor(source), tensor(target)), num_nodes=count)
        pairs.ndata[dgl.NID], pairs.edata[dgl.EID] = inputs[:count], tensor(self._eids[batch.input_id])
        blocks = blocks_of(batch, self.g.types)
        if self._negatives is None:
            return inputs, pairs, blocks
        others = links["dst_neg_index"].reshape(len(source), -1)
        negatives = dgl.graph((tensor(np.repeat(source, others.shape[1])), tensor(others.reshape(-1))), num_nodes=count)
        negatives.ndata[dgl.NID] = inputs[:count]
        return inputs, pairs, negatives, blocks
