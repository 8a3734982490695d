"""A cluster behind PyG's own loaders: ``BaseSampler``, ``FeatureStore`` and ``GraphStore`` as remote backends.

    features, graph, sampler = atta.client.loaders.pyg.backends(cluster, num_neighbors=[15, 10])
    loader = NodeLoader((features, graph), node_sampler=sampler, input_nodes=ids, batch_size=1024)

A batch is one session with a daemon. Its rows come with the sampled vertices and are kept until the loader asks the
feature store for them. Daemons work ahead only for Atta's own loaders, which are therefore faster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from atta.client.cluster import Cluster
from atta.client.loaders.link import LinkNeighborLoader, NegativeSampling
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader, in_edges, vertex_ids
from atta.client.loaders.pyg_data import tensor_name
from atta.client.loaders.seeds import as_ids
from atta.client.tables.rows import table_rows
from atta.errors import ConfigError
from atta.partition.names import split_edge_type


def backends(
    cluster: Cluster, num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]], **options: Any
) -> tuple[AttaFeatureStore, AttaGraphStore, AttaSampler]:
    """The three objects that PyG's ``NodeLoader`` and ``LinkLoader`` take; arguments as for ``AttaSampler``."""
    features = AttaFeatureStore(cluster)
    return features, AttaGraphStore(cluster), AttaSampler(cluster, num_neighbors, features=features, **options)


class AttaFeatureStore(FeatureStore):  # type: ignore[misc]
    """Node tables of a cluster, read-only, under the names that ``to_pyg`` gives them. Rows of the batch that was sampled
    last are kept.

    An index is user ids or one of them. A slice or a mask chooses among all vertices, by ascending user id."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.__dict__["_cluster"] = cluster  # FeatureStore takes attributes for tensors
        self.__dict__["_recent"] = {}

    def remember(self, batch: MiniBatch, n_id: Mapping[str, torch.Tensor]) -> None:
        """Keep the rows of ``batch`` until the next one. ``n_id``: the tensors by which they will be asked for."""
        self.__dict__["_recent"] = {t: (ids, batch.tables[t]) for t, ids in n_id.items()}

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Every node table."""
        tables = self._cluster.schema.node_tables
        return [TensorAttr(group_name=t, attr_name=tensor_name(name)) for t, names in tables.items() for name in names]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        node_type = self._node_type(attr)
        ids, tables = self._recent.get(node_type, (None, {}))
        name = self._table(node_type, attr)
        if name in tables and attr.index is not None and attr.index is ids:
            return torch.from_numpy(tables[name])
        rows = torch.from_numpy(table_rows(self._cluster, node_type, name, self._ids(node_type, attr.index)))
        return rows[0] if _is_number(attr.index) else rows

    def _ids(self, node_type: str, index: Any) -> np.ndarray | None:
        """The user ids that an index names; None: all."""
        if index is None or (isinstance(index, slice) and index == slice(None)):
            return None
        if isinstance(index, slice):
            return np.asarray(vertex_ids(self._cluster, node_type)[index])
        if "bool" not in str(getattr(index, "dtype", "")):
            return as_ids("index", [index] if _is_number(index) else index)
        chosen, count = np.asarray(index), self._cluster.schema.in_use(node_type)
        if chosen.shape != (count,):
            raise ConfigError(f"index: a mask of shape {list(chosen.shape)} for {count} vertices of {node_type!r}")
        return np.asarray(vertex_ids(self._cluster, node_type)[chosen])

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        node_type = self._node_type(attr)
        schema = self._cluster.schema
        return schema.in_use(node_type), *schema.table(node_type, self._table(node_type, attr)).row_shape

    def _table(self, node_type: str, attr: TensorAttr) -> str:
        """The table of a tensor; raises UnknownNameError."""
        tables = self._cluster.schema.node_tables[node_type]
        found = next((name for name in tables if attr.attr_name == tensor_name(name)), attr.attr_name)
        self._cluster.schema.table(node_type, found)
        return str(found)

    def _node_type(self, attr: TensorAttr) -> str:
        schema = self._cluster.schema
        name = attr.group_name if isinstance(attr.group_name, str) else schema.node_types[0]
        return str(schema.check_node_type(name))

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise ConfigError("the tables of a cluster are read-only")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise ConfigError("the tables of a cluster are read-only")


class AttaGraphStore(GraphStore):  # type: ignore[misc]
    """Edge types of a cluster, read-only. An edge index is fetched as a whole, in the users' order of edges."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.__dict__["_cluster"] = cluster

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Every edge type, in COO layout."""
        schema = self._cluster.schema
        return [
            EdgeAttr(
                split_edge_type(name), EdgeLayout.COO, size=tuple(schema.in_use(t) for t in schema.endpoints(name))
            )
            for name in schema.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        schema = self._cluster.schema
        name = schema.find_edge_type(edge_attr.edge_type)
        if edge_attr.layout != EdgeLayout.COO:
            return None
        source, target = schema.endpoints(name)
        ends = np.empty((2, schema.edge_counts[name]), dtype=np.int64)
        for batch in in_edges(self._cluster, name, None):
            row, col = batch.edge_index(name)
            e_id = batch.e_id(name)
            ends[0, e_id] = batch.n_id(source)[row]
            ends[1, e_id] = batch.n_id(target)[col]
        return torch.from_numpy(ends[0]), torch.from_numpy(ends[1])

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise ConfigError("the edges of a cluster are read-only")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise ConfigError("the edges of a cluster are read-only")


class AttaSampler(BaseSampler):  # type: ignore[misc]
    """Samples the batches that a PyG loader asks for. Call n of a sampler draws with epoch n, so that calls differ."""

    def __init__(
        self,
        cluster: Cluster,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        *,
        features: AttaFeatureStore | None = None,
        tables: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        """``features`` gets the rows of ``tables`` (default: all). ``options``: as for ``atta.NeighborLoader``. Raises
        ConfigError: ``edge_tables``, weights of edges or sums are asked for, which PyG's loaders would leave out."""
        if options.get("edge_tables"):
            raise ConfigError(
                f"edge_tables {options['edge_tables']!r}: PyG's loaders ask a FeatureStore for rows of vertices only; take "
                "atta.NeighborLoader for rows of edges"
            )
        if options.get("edge_norm") or options.get("unbiased"):
            raise ConfigError("edge_norm, unbiased: PyG's loaders leave weights of edges out; take atta.NeighborLoader")
        if options.get("aggregate"):
            raise ConfigError("aggregate: PyG's loaders ask for every row; take atta.NeighborLoader")
        self._cluster, self._num_neighbors, self._options = cluster, num_neighbors, options
        self._features, self._calls, self._pid = features, 0, os.getpid()
        self._tables = tables if features is not None else {}

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """A batch with the given vertices (user ids) as seeds."""
        node_type = index.input_type or self._only_type()
        loader = NeighborLoader(
            self._cluster, self._num_neighbors, (node_type, index.node.numpy()), input_time=_numpy(index.time),
            **self._settings(len(index.node)),
        )  # fmt: skip
        batch = self._one(loader)
        # A seed that occurs twice counts once, so PyG's metadata must follow the first vertices.
        kept = torch.from_numpy(batch.input_id)
        input_id = kept if index.input_id is None else index.input_id[kept]
        metadata = input_id, None if index.time is None else index.time[kept]
        return self._output(batch, metadata, named=index.input_type is not None)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """A batch with the given edges (user ids) as seeds, and their negatives."""
        if neg_sampling is not None and (neg_sampling.src_weight is not None or neg_sampling.dst_weight is not None):
            raise ConfigError(
                "neg_sampling: weights of vertices are not supported, see the strategies of atta.NegativeSampling"
            )
        ends = np.stack([index.row.numpy(), index.col.numpy()])
        edges = ends if index.input_type is None else (tuple(index.input_type), ends)
        loader = LinkNeighborLoader(
            self._cluster, self._num_neighbors, edges, edge_label_time=_numpy(index.time),
            neg_sampling=NegativeSampling.of(neg_sampling), **self._settings(ends.shape[1]),
        )  # fmt: skip
        batch = self._one(loader)
        named = index.input_type is not None
        found = {name: torch.from_numpy(array) for name, array in batch.links().items()}
        if neg_sampling is not None and neg_sampling.is_triplet():
            triple = (found["src_index"], found["dst_pos_index"], found["dst_neg_index"])
            return self._output(batch, (index.input_id, *triple, index.time), named=named)
        label = index.label
        if neg_sampling is not None:
            positive = torch.ones(ends.shape[1]) if label is None else label
            missing = found["edge_label_index"].shape[1] - ends.shape[1]
            label = torch.cat([positive, positive.new_zeros((missing, *positive.shape[1:]))])
        return self._output(batch, (index.input_id, found["edge_label_index"], label, index.time), named=named)

    def _only_type(self) -> str:
        types = self._cluster.schema.node_types
        if len(types) > 1:
            raise ConfigError(f"input_nodes: name a node type, as in ({types[0]!r}, ids); there are {', '.join(types)}")
        return types[0]

    def _settings(self, seeds: int) -> dict[str, Any]:
        if os.getpid() != self._pid:
            raise ConfigError("num_workers: must be 0, connections do not survive a fork (the daemons do the sampling)")
        return {"batch_size": max(1, seeds), "tables": self._tables, "rank": 0, "world_size": 1, **self._options}

    def _one(self, loader: Any) -> MiniBatch:
        loader.set_epoch(self._calls)
        self._calls += 1
        (batch,) = loader
        return batch  # type: ignore[no-any-return]

    def _output(
        self, batch: MiniBatch, metadata: tuple[Any, ...], *, named: bool
    ) -> SamplerOutput | HeteroSamplerOutput:
        """``named``: the seeds' type was named, as in ``HeteroData``."""
        schema = self._cluster.schema
        n_id = {t: torch.from_numpy(batch.n_id(t)) for t in schema.node_types}
        if self._features is not None:
            self._features.remember(batch, n_id)
        edges = {name: split_edge_type(name) for name in schema.edge_types}
        ends = {name: torch.from_numpy(batch.edge_index(name)) for name in edges}
        ids = {name: _tensor(batch.e_id(name)) for name in edges}
        trees = {t: torch.from_numpy(found) for t in n_id if (found := batch.tree_of_seed(t)) is not None}
        by_hop = batch.origin.by_hop
        if len(n_id) == len(edges) == 1 and not (named and schema.typed):
            (node_type,), (name,) = n_id, edges
            row, col = ends[name]
            return SamplerOutput(
                n_id[node_type], row, col, ids[name], trees.get(node_type), batch.num_sampled_nodes(),
                batch.num_sampled_edges() if by_hop else None, metadata=metadata,
            )  # fmt: skip
        return HeteroSamplerOutput(
            n_id, {edges[name]: pair[0] for name, pair in ends.items()},
            {edges[name]: pair[1] for name, pair in ends.items()}, {edges[name]: found for name, found in ids.items()},
            trees or None, {t: batch.num_sampled_nodes(t) for t in n_id},
            {edges[name]: batch.num_sampled_edges(name) for name in edges} if by_hop else None, metadata=metadata,
        )  # fmt: skip


def _is_number(index: Any) -> bool:
    return np.ndim(index) == 0 and not isinstance(index, slice) and index is not None


def _numpy(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)
