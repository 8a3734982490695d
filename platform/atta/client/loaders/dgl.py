"""Makes DGL's blocks and graphs from local ids, without the checks of ``dgl.create_block`` and ``dgl.graph``: they read
every edge again, and take longer than all else that a trainer does to get a batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np

from atta.client.loaders.sampled import Origin, SampledBatch
from atta.errors import ConfigError
from atta.samplers import kernels

Relation = tuple[str, str, str]
"""(Source type, edge type, target type)."""
_FORMATS = ["coo", "csr", "csc"]
"""In which DGL may keep a graph's edges."""


_PLAIN: Relation = ("_N", "_E", "_N")


def to_blocks(batch: SampledBatch, relation: Relation = _PLAIN) -> list[Any]:
    """The blocks of ``MiniBatch.to_dgl``; ``relation``: their names of the only types. The block of hop h leads from
    the vertices known after the hop to those known before it. If the hop draws only for vertices that the hop before
    has reached, the edges of the other vertices are those of the block before."""
    import torch

    schema, origin = batch.schema, batch.origin
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise ConfigError("to_dgl: blocks are of graphs with one node type and one edge type; to_pyg knows several")
    if origin.whole:
        raise ConfigError(
            "to_dgl: an operator has sampled this batch as a whole, so that it has no hops to make blocks of; "
            "dgl.graph(tuple(batch.edge_index())) is its graph"
        )
    if not origin.by_hop:
        raise ConfigError("to_dgl: blocks are made of the edges of each hop: take subgraph_type='directional'")
    row, col = batch.edge_index()
    nodes = np.cumsum(batch.num_sampled_nodes())
    edges = np.concatenate([[0], np.cumsum(batch.num_sampled_edges())])
    ids, e_id = torch.from_numpy(batch.n_id()), batch.e_id()
    weight, times = batch.edge_weight(), [_expanded(nodes, origin, hop) for hop in range(len(edges) - 1)]
    blocks: list[Any] = []
    first = 0
    for hop in range(batch.hops_known):
        if origin.redrawn[hop : hop + 1] == (True,):
            first = hop
        part = slice(edges[first], edges[hop + 1])
        known, before = int(nodes[hop + 1]), int(nodes[hop])
        edge_ids = None if e_id is None else torch.from_numpy(e_id[part])
        blocks.insert(0, block(row[part], col[part], ids[:known], ids[:before], edge_ids, relation))
        if weight is not None:  # that of one among the draws of all hops; here are those of some
            share = np.sum(times, axis=0) / np.maximum(1, np.sum(times[first : hop + 1], axis=0))
            blocks[0].edata["edge_weight"] = torch.from_numpy(weight[part] * share.astype(np.float32)[col[part]])
    return blocks


def _expanded(nodes: np.ndarray, origin: Origin, hop: int) -> np.ndarray:
    """int64 [vertices]: 1 for those whose edges a hop has drawn. ``nodes``: how many were known before each hop."""
    found = np.zeros(nodes[-1], np.int64)
    first = nodes[hop - 1] if hop and not origin.redrawn[hop] else 0
    found[first : nodes[hop]] = origin.drawing[hop]
    return found


def block(  # noqa: PLR0917 - ends, ids, names
    row: np.ndarray, col: np.ndarray, sources: Any, targets: Any, e_id: Any = None, relation: Relation = _PLAIN
) -> Any:
    """As ``typed_block``, with one node type and one edge type."""
    source, _, target = relation
    return typed_block({relation: (row, col)}, {source: sources}, {target: targets}, {relation: e_id})


def typed_block(
    edges: Mapping[Relation, tuple[np.ndarray, np.ndarray]],
    sources: Mapping[str, Any],
    targets: Mapping[str, Any],
    e_ids: Mapping[Relation, Any],
) -> Any:
    """A ``DGLBlock`` with several types: those of ``dgl.create_block``, in its order.

    Args:
        edges: int64 [edges], local ids of both ends, not checked, by (source type, edge type, target type).
        sources, targets: int64 tensors [vertices], user ids on both sides by type, which become ``dgl.NID``.
        e_ids: int64 tensors [edges], which become ``dgl.EID``; None: there are none.
    """
    from dgl import heterograph_index
    from dgl.heterograph import DGLBlock
    from dgl.utils import toindex

    left, right, relations = sorted(sources), sorted(targets), sorted(edges)
    parts = [_block_edges(len(sources[r[0]]), len(targets[r[2]]), *edges[r]) for r in relations]
    ends = tuple((left.index(source), len(left) + right.index(target)) for source, _, target in relations)
    ids = [sources[t] for t in left] + [targets[t] for t in right]
    counts = [len(some) for some in ids]
    index = heterograph_index.create_heterograph_from_relations(_types(len(ids), ends), parts, toindex(counts, "int64"))
    index.get_relation_graph = parts.__getitem__  # these very objects, as they have our ``reverse``
    names = [name for _, name, _ in relations]
    return DGLBlock(index, (left, right), names, [*map(_nodes, ids)], [_edge_frame(e_ids[r]) for r in relations])


def pair_graph(
    source: np.ndarray, target: np.ndarray, ids: Any, e_id: Any = None, names: tuple[str, str] = ("_N", "_E")
) -> Any:
    """A homogeneous ``DGLGraph``. ``source``, ``target``: int64 [pairs], places in ``ids``, not checked. ``ids``,
    ``e_id``: int64 tensors, which become ``dgl.NID`` and ``dgl.EID``."""
    from dgl.heterograph import DGLGraph

    index = _edges(1, len(ids), len(ids), source, target)
    return DGLGraph(index, [names[0]], [names[1]], [_nodes(ids)], [_edge_frame(e_id)])


def _block_edges(num_src: int, num_dst: int, row: np.ndarray, col: np.ndarray) -> Any:
    """The edges of a block, by target if they are sorted so, as layers need them, and by source for the way back, which
    took DGL 6 to 12 % of a trainer's time to sort."""
    indptr = kernels.bounds_by_target(col, num_dst)
    if indptr is None:
        return _edges(2, num_src, num_dst, row, col)

    @cache
    def reverse() -> Any:
        return _by_target(num_dst, num_src, *kernels.by_source(indptr, row, num_src))

    # Without ids of edges, which would be their places, DGL 1.1.3 refuses to add up rows of edges.
    made = _by_target(num_src, num_dst, indptr, row, np.arange(len(row)))
    made.reverse = reverse
    return made


def _by_target(num_src: int, num_dst: int, *csc: np.ndarray) -> Any:
    """The edges of a block. ``csc``: their bounds by target, their sources, and their ids."""
    import torch
    from dgl import heterograph_index

    arrays = [torch.from_numpy(array) for array in csc]
    return heterograph_index.create_unitgraph_from_csr(2, num_src, num_dst, *arrays, _FORMATS, True)


def _edges(node_types: int, num_src: int, num_dst: int, row: np.ndarray, col: np.ndarray) -> Any:
    import torch
    from dgl import heterograph_index

    return heterograph_index.create_unitgraph_from_coo(
        node_types, num_src, num_dst, torch.from_numpy(row), torch.from_numpy(col), _FORMATS, False, False
    )


@lru_cache(maxsize=64)
def _types(count: int, ends: tuple[tuple[int, int], ...]) -> Any:
    """The graph of a block's types: edge types lead from source types to target types."""
    from dgl import graph_index

    return graph_index.from_coo(count, [source for source, _ in ends], [target for _, target in ends], True)


def _nodes(ids: Any) -> Any:
    import dgl
    from dgl.frame import Frame

    return Frame({dgl.NID: ids})


def _edge_frame(e_id: Any) -> Any:
    """None: DGL makes an empty one."""
    import dgl
    from dgl.frame import Frame

    return None if e_id is None else Frame({dgl.EID: e_id})
