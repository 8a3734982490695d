"""``MiniBatch``: what a loader gives, turned into objects of PyG, DGL or networkx on request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.client.loaders.sampled import SampledBatch
from atta.errors import ConfigError
from atta.observe import html
from atta.observe.packages import need
from atta.partition.names import split_edge_type

if TYPE_CHECKING:
    import networkx as nx


class MiniBatch(SampledBatch):
    """The sampled subgraph of some seeds, with the table rows of its vertices.

    Vertices are numbered per node type in the order in which they were reached: seeds first, then hop by hop. The
    arrays lie in memory shared with the daemon and stay valid as long as any of them is referenced."""

    def to_pyg(self, *, plain: bool = False) -> Any:
        """The batch as PyG's NeighborLoader delivers it: ``HeteroData``, or ``Data`` if the graph's only types are those of
        ``Data``, ``node`` and ``node__to__node``. ``plain``: ``Data`` for any graph with one node and one edge type.

        It has every fetched table under its name (``x``, ``y``, ...), ``edge_index``, ``n_id``, ``e_id``, ``input_id``,
        ``batch_size``, ``num_sampled_nodes``, ``num_sampled_edges``, ``edge_weight`` if the edges have weights, and
        ``seed_time`` if there was an ``input_time``. Table rows share the batch's memory. A table that is called like
        one of these others comes as ``table_<name>``. ``HeteroData`` has every node type and edge type of the graph;
        types that the batch does not reach have 0 rows. Arrays of ``extra`` and ``pairs`` have their own names
        (``data.walks``, ``data.positive``), or ``extra_<name>`` and ``pairs_<name>`` if a table has that name.

        A loader that aggregates gives the batch without its last hop, and ``aggregated`` (of tables other than ``x``:
        ``aggregated_<name>``) where edges are: what the first layer makes of the rows of in-neighbours. Raises
        ConfigError: PyG is missing."""
        try:
            from atta.client.loaders.pyg_data import to_pyg
        except ModuleNotFoundError:
            need("to_pyg", "torch", "torch_geometric")
            raise

        return to_pyg(self, plain=plain)

    def to_dgl(self) -> list[Any]:
        """The batch as DGL blocks, input side first (extra ``atta[dgl]``; homogeneous graphs).

        With ``frontier="all"`` the blocks equal those of DGL's NeighborSampler: each hop draws anew for every known
        vertex. With ``"new"`` a vertex' edges are drawn once, and every block has the edges of all its destinations. A
        network over these blocks computes what PyG's layers compute on ``to_pyg()``. With fan-outs of -1 both are whole
        neighbourhoods. Weights of edges are ``edata["edge_weight"]``: those of the block's draws alone. Raises
        ConfigError: DGL is missing, the graph has several types, or an operator has sampled the batch as a whole,
        without hops."""
        try:
            import dgl  # noqa: F401 - imported before the module that needs it, for a clear error
        except ImportError as error:
            raise ConfigError("to_dgl needs DGL: install atta[dgl]") from error
        from atta.client.loaders.dgl import to_blocks

        return to_blocks(self)

    def to_networkx(self, tables: Iterable[str] = ()) -> Any:
        """The batch as a ``networkx.MultiDiGraph`` for drawing it; the rows of ``tables`` become attributes of vertices."""
        return to_networkx(self, tables)

    def __repr__(self) -> str:
        return f"MiniBatch({self.batch_size} seeds, {self.num_nodes} nodes, {self.num_edges} edges)"

    def _repr_html_(self) -> str:
        types = self.node_types
        first = dict(zip(types, np.cumsum([0, *(len(self.n_id(t)) for t in types)]).tolist(), strict=False))
        ends = [(split_edge_type(e), self.edge_index(e)) for e in self.edge_types]
        edges = [np.stack([row + first[s], col + first[t]]) for (s, _, t), (row, col) in ends]
        hops = [np.array(_hops(self.num_sampled_nodes(t), len(self.n_id(t))), np.int64) for t in types]
        kinds = np.repeat(np.arange(len(types)), [len(self.n_id(t)) for t in types])
        ids = np.concatenate([self.n_id(t) for t in types])
        joined = np.concatenate([np.empty((2, 0), np.int64), *edges], axis=1)
        rows = [(t, len(self.n_id(t)), ", ".join(self.tables[t])) for t in types]
        rows += [(e, len(self.edge_index(e)[0]), ", ".join(self.edge_tables(e))) for e in self.edge_types]
        drawn = html.subgraph(ids, np.concatenate(hops), kinds, types, joined)
        return html.table(repr(self), rows, ("type", "count", "tables")) + drawn


def to_networkx(batch: SampledBatch, tables: Iterable[str] = ()) -> nx.MultiDiGraph[Any]:
    """Return the sampled subgraph.

    A vertex is its user id, or ``(type, id)`` if the batch has several node types. If trees are disjoint, the tree is a
    last entry. Vertices come in the batch's order. Their attributes are ``node_type``, ``hop`` (0: seeds) and the rows
    of ``tables`` that were fetched for them. Edges have ``edge_type``, the rows of fetched edge tables and, unless the
    loader leaves ids out, ``e_id``, which is also their key."""
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
