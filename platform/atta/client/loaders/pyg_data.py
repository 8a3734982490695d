"""Turns a mini-batch into PyG's ``Data`` or ``HeteroData``."""

from __future__ import annotations

import warnings
from collections.abc import Container
from typing import Any, cast

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from atta.client.loaders.sampled import SampledBatch
from atta.partition.names import split_edge_type

warnings.filterwarnings("ignore", "There exist type names in the 'HeteroData' object", UserWarning)
"""Names of types are the users' own: PyG warns of "__" in them at every batch."""
_PLACES = {"src_index": 0, "dst_pos_index": 2, "dst_neg_index": 2}
"""Ends of triplets. PyG keeps them with the node types of the seed edges; these are the places in the edge type."""
_OWN = frozenset({
    "batch", "batch_size", "e_id", "edge_index", "edge_label", "edge_label_index", "edge_label_time", "edge_norm",
    "input_id", "input_type", "n_id", "node_norm", "num_nodes", "num_sampled_edges", "num_sampled_nodes", "ptr",
    "root_n_id", "seed_time", *_PLACES,
})  # fmt: skip
"""What PyG's loaders say of a batch under these names, whether this batch has it or not. No table comes as one."""


def tensor_name(table: str, taken: Container[str] = ()) -> str:
    """The name of a table's tensor: its own, or ``table_<name>`` where a batch has something else under it."""
    while table in _OWN or table in taken:
        table = f"table_{table}"
    return table


def to_pyg(batch: SampledBatch, *, plain: bool) -> Any:
    """See ``MiniBatch.to_pyg``. ``HeteroData`` has every type of the graph: a model's layers go over all types."""
    schema, labels = batch.schema, cast(Any, batch.origin.labels)
    single = len(schema.node_types) == len(schema.edge_types) == 1 if plain else not schema.typed
    data = Data() if single else HeteroData()

    def store(owner: str | tuple[str, str, str]) -> Any:
        return data if single else data[owner]

    for node_type in schema.node_types:
        _fill_nodes(store(node_type), batch, node_type)
    for edge_type in schema.edge_types:
        _fill_edges(store(split_edge_type(edge_type)), batch, edge_type)
    seeds = store(split_edge_type(labels.edge_type) if labels else batch.origin.seed_type)
    _fill_seeds(seeds, batch)
    for node_type in batch.origin.seed_firsts or ():
        of_type = batch.seeds_of(node_type)
        store(node_type).input_id, store(node_type).batch_size = _tensor(of_type), len(of_type)
    if batch.origin.norms is not None:
        _fill_norms(store(batch.node_types[0]), store(split_edge_type(batch.edge_types[0])), batch)
    for name, array in batch.links().items() if labels else ():
        place = store(split_edge_type(labels.edge_type)[_PLACES[name]]) if name in _PLACES else seeds
        place[name] = _tensor(array)
        if name in _PLACES and labels.time is not None:
            place.seed_time = _tensor(labels.time[batch.input_id])
    if not single:
        data.num_sampled_nodes = {t: batch.num_sampled_nodes(t)[: batch.hops_known + 1] for t in schema.node_types}
        if batch.origin.by_hop:
            known = {e: batch.num_sampled_edges(e)[: batch.hops_known] for e in schema.edge_types}
            data.num_sampled_edges = {split_edge_type(e): sizes for e, sizes in known.items()}
    for name, tensor in _of_operators(batch, set(data.keys()) if single else set()).items():
        setattr(data, name, tensor)
    return data


def _fill_seeds(store: Any, batch: SampledBatch) -> None:
    store.input_id, store.batch_size = _tensor(batch.input_id), batch.batch_size
    if batch.origin.whole and batch.tree_of_seed(batch.origin.seed_type) is not None:
        store.root_n_id = torch.arange(batch.batch_size)
    if batch.seed_time is not None:
        store.seed_time = _tensor(batch.seed_time)


def _fill_norms(nodes: Any, edges: Any, batch: SampledBatch) -> None:
    for store, name, norm in ((nodes, "node_norm", batch.node_norm), (edges, "edge_norm", batch.edge_norm)):
        if norm is not None:
            store[name] = _tensor(norm)


def _fill_nodes(store: Any, batch: SampledBatch, node_type: str) -> None:
    for name, rows in batch.tables[node_type].items():
        store[tensor_name(name)] = _tensor(rows)
    known = batch.num_known(node_type)
    n_id, tree = batch.n_id(node_type)[:known], batch.tree_of_seed(node_type)
    store.n_id, store.num_nodes = _tensor(n_id), len(n_id)
    if tree is not None:
        store.batch = _tensor(tree[:known])
    store.num_sampled_nodes = batch.num_sampled_nodes(node_type)[: batch.hops_known + 1]


def _fill_edges(store: Any, batch: SampledBatch, edge_type: str) -> None:
    sizes = batch.num_sampled_edges(edge_type)[: batch.hops_known]
    known = slice(sum(sizes) if batch.aggregates else None)
    store.edge_index, ids = _tensor(batch.edge_index(edge_type)[:, known]), batch.e_id(edge_type)
    if ids is not None:
        store.e_id = _tensor(ids[known])
    if (weight := batch.edge_weight(edge_type)) is not None:
        store.edge_weight = _tensor(weight[known])
    for name, rows in batch.edge_tables(edge_type).items():
        store[tensor_name(name if name.startswith("edge") else f"edge_{name}", store)] = _tensor(rows[known])
    for name, rows in batch.aggregates.get(edge_type, {}).items():
        store["aggregated" if name == "x" else f"aggregated_{name}"] = _tensor(rows)
    if batch.origin.by_hop:
        store.num_sampled_edges = sizes


def _of_operators(batch: SampledBatch, taken: set[str]) -> dict[str, torch.Tensor]:
    """``extra`` and ``pairs``, under names that are not taken."""
    found: dict[str, torch.Tensor] = {}
    for kind, arrays in (("extra", batch.extra), ("pairs", batch.pairs)):
        for name, array in arrays.items():
            found[f"{kind}_{name}" if name in taken else name] = _tensor(array)
    return found


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)
