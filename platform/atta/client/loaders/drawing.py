"""Turns a mini-batch into a networkx graph, for drawing and inspecting it, not for training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.partition.schema import split_edge_type

if TYPE_CHECKING:
    import networkx as nx

    from atta.client.loaders.sampled import SampledBatch

__all__ = ["to_networkx"]


def to_networkx(batch: SampledBatch, tables: Iterable[str] = ()) -> nx.MultiDiGraph[Any]:
    """Return the sampled subgraph.

    A vertex is its user id, or ``(type, id)`` if the batch has several node types. If trees are disjoint, the tree is a
    last entry. Vertices come in the batch's order. Their attributes are ``node_type``, ``hop`` (0: seeds) and the rows
    of ``tables`` that were fetched for them. Edges have ``edge_type``, the rows of fetched edge tables and, unless the
    loader leaves ids out, ``e_id``, which is also their key.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
    wanted, labels = list(tables), {t: _labels(batch, t) for t in batch.node_types}
    for node_type, names in labels.items():
        hops = _hops(batch.num_sampled_nodes(node_type), len(names))
        columns = {name: batch.table(name, node_type) for name in wanted if name in batch.tables[node_type]}
        for row, label in enumerate(names):
            values = {name: rows[row].tolist() for name, rows in columns.items() if row < len(rows)}
            graph.add_node(label, node_type=node_type, hop=hops[row], **values)
    for edge_type in batch.edge_types:
        source, _, target = split_edge_type(edge_type)
        ids, columns = batch.e_id(edge_type), batch.edge_tables(edge_type)
        for position, (u, v) in enumerate(batch.edge_index(edge_type).T.tolist()):
            values = {name: rows[position].tolist() for name, rows in columns.items()}
            values |= {"edge_type": edge_type} if ids is None else {"edge_type": edge_type, "e_id": int(ids[position])}
            key = position if ids is None else int(ids[position])
            single = len(batch.edge_types) == 1
            graph.add_edge(labels[source][u], labels[target][v], key if single else (edge_type, key), **values)
    return graph


def _labels(batch: SampledBatch, node_type: str) -> list[Any]:
    parts: list[list[Any]] = [batch.n_id(node_type).tolist()]
    if len(batch.node_types) > 1:
        parts.insert(0, [node_type] * len(parts[0]))
    if batch.tree_of_seed(node_type) is not None:
        parts.append(batch.tree(node_type).tolist())
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _hops(sizes: list[int], count: int) -> list[int]:
    """The hop of each vertex. Vertices that no hop has counted belong to the last one."""
    hops = np.repeat(np.arange(len(sizes)), sizes)[:count]
    return [*hops.tolist(), *[max(0, len(sizes) - 1)] * (count - len(hops))]
