"""``DistEdgeDataLoader``: batches of edges with negative pairs, and the blocks that their ends need."""

from __future__ import annotations

from typing import Any

import numpy as np

from atta.client.loaders.dag import DagLoader
from atta.client.loaders.dgl import pair_graph
from atta.client.loaders.link import LinkNeighborLoader, NegativeSampling
from atta.compat.dgl.dataloading.batches import (
    DistBatches,
    batch_count,
    check_device,
    loader_options,
    one_type,
    probably_wanted,
)
from atta.compat.dgl.dataloading.blocks import blocks_of, by_type
from atta.compat.dgl.dataloading.negative_sampler import Uniform
from atta.compat.dgl.dataloading.sampler import NeighborSampler
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.distributed.graph import DistGraph
from atta.compat.dgl.distributed.names import TypeBook
from atta.compat.dgl.distributed.recent import BatchTables, Wanted
from atta.compat.dgl.job import drawing_seed
from atta.compat.dgl.offered import NotOfferedError
from atta.errors import ConfigError
from atta.samplers.arguments import integers

_EXCLUDE = {None: None, "self": "self", "reverse_id": "reverse", "reverse_types": "reverse"}


class DistEdgeDataLoader(DistBatches):
    """Gives ``(input_nodes, pair_graph, blocks)`` for each batch of this trainer's edges, or ``(input_nodes, pair_graph,
    negative_graph, blocks)`` with a negative sampler.

    Both graphs have the same vertices: the destinations of the last block. In graphs of several types they have the
    seeds' edge type alone. With several node types ``input_nodes`` is a mapping from types to ids. A share without edges
    has no batches.
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
            eids: ids of this trainer's edges, or ``{edge type: ids}`` with one type.
            graph_sampler: of this package's ``dataloading``.
            device: the CPU.
            negative_sampler: of ``dataloading.negative_sampler``; None: no negative pairs.
            exclude: ``"self"`` leaves a batch's edges out of its blocks, with those that are parallel to them,
                ``"reverse_id"`` also the edges of their type from their destinations to their sources,
                ``"reverse_types"`` those of another type. None leaves nothing out.
            reverse_eids: means nothing here: reverse edges are found by their ends.
            reverse_etypes: with ``"reverse_types"``: ``{edge type: type of its reverses}``.
            **options: ``batch_size`` (1), ``shuffle`` (False), ``drop_last`` (False). Others of DGL mean nothing here.

        Raises:
            UnknownNameError: another sampler, or another way to exclude.
            ConfigError: DGL is missing, an edge does not exist, several types have edges, or ``reverse_etypes`` lacks
                the type or has one between other node types.
        """
        check_device("DistEdgeDataLoader", device)
        for given, kind in ((graph_sampler, NeighborSampler), (negative_sampler, Uniform | None)):
            if not isinstance(given, kind):
                raise NotOfferedError(
                    f"DistEdgeDataLoader does not offer {type(given).__name__}: daemons sample, so take one of "
                    "atta.compat.dgl.dataloading"
                )
        if exclude not in _EXCLUDE:
            known = ", ".join(map(repr, _EXCLUDE))
            raise NotOfferedError(f"DistEdgeDataLoader does not offer exclude={exclude!r}; it offers: {known}")
        self._edge_type, chosen = one_type(eids, "eids", g.types.edge_type)
        self._eids = integers("eids", chosen).reshape(-1)
        self._reverse = _reverse_type(g.types, self._edge_type, exclude, reverse_etypes)
        self._ends = np.stack(g.ends(self._edge_type, self._eids))
        self._sampler, self._negatives, self._exclude = graph_sampler, negative_sampler, _EXCLUDE[exclude]
        self._options = loader_options("DistEdgeDataLoader", options)
        self._seed = drawing_seed()
        trains = bool(self._options.get("shuffle"))
        wanted = probably_wanted(g, ()) if trains else Wanted()
        length = len(self._batches_with(g, {})) if batch_count(len(self._eids), self._options) else 0
        super().__init__(g, length, wanted, trains=trains)

    def open(self, tables: dict[str, list[str]], seed_tables: list[str]) -> DagLoader:
        return self._batches_with(self.g, tables)

    def _batches_with(self, g: DistGraph, tables: dict[str, list[str]]) -> LinkNeighborLoader:
        negatives = None if self._negatives is None else NegativeSampling("triplet", self._negatives.k)
        return LinkNeighborLoader(
            g.cluster, self._sampler.hops(g.types), (self._edge_type, self._ends), neg_sampling=negatives,
            exclude_edges=self._exclude, reverse_type=self._reverse, tables=tables, rank=0, world_size=1, home=g.home,
            seed=self._seed, **self._sampler.options, **self._options,
        )  # fmt: skip

    def made(self, batch: Any) -> tuple[Any, ...]:
        import dgl

        types = self.g.types
        known = {t: tensor(batch.n_id(t)) for t in types.schema.node_types}
        self._prefetch(known)
        tables = BatchTables(batch, self._wanted)
        for node_type, ids in known.items():
            self.g.recent.remember(ids, node_type, tables, whole=True)
        seeds = {types.ntype(t): ids[: batch.num_sampled_nodes(t)[0]] for t, ids in known.items()}
        etype, links = types.canonical(self._edge_type), batch.links()

        def pairs(source: np.ndarray, target: np.ndarray, e_id: Any = None) -> Any:
            if len(types.schema.node_types) == len(types.schema.edge_types) == 1:
                return pair_graph(source, target, next(iter(seeds.values())), e_id, etype[:2])
            counts = {ntype: len(ids) for ntype, ids in seeds.items()}
            made = dgl.heterograph({etype: (tensor(source), tensor(target))}, num_nodes_dict=counts)
            for ntype, ids in seeds.items():
                made.nodes[ntype].data[dgl.NID] = ids
            if e_id is not None:
                made.edges[etype].data[dgl.EID] = e_id
            return made

        source, target = (
            links["edge_label_index"] if self._negatives is None else (links["src_index"], links["dst_pos_index"])
        )
        positives, blocks = pairs(source, target, tensor(self._eids[batch.input_id])), blocks_of(batch, types)
        if self._negatives is None:
            return by_type(known, types), positives, blocks
        others = links["dst_neg_index"].reshape(len(source), -1)
        return by_type(known, types), positives, pairs(np.repeat(source, others.shape[1]), others.reshape(-1)), blocks


def _reverse_type(types: TypeBook, edge_type: str, exclude: str | None, reverse_etypes: Any) -> str | None:
    """The edge type of the reverses to leave out; raises ConfigError."""
    source, target = types.schema.endpoints(edge_type)
    if exclude == "reverse_id":
        if source != target:
            raise ConfigError(f"exclude='reverse_id': {edge_type} has no reverse edges of its own type")
        return edge_type
    if exclude != "reverse_types":
        return None
    given = {types.edge_type(etype): types.edge_type(other) for etype, other in dict(reverse_etypes or {}).items()}
    found = given.get(edge_type)
    if found is None or types.schema.endpoints(found) != (target, source):
        raise ConfigError(
            f"reverse_etypes: name the type of the reverses of {edge_type}, from {target} to {source}, not {found}"
        )
    return found
