"""``sample_neighbors`` and ``in_subgraph``: sampled graphs over all vertices, in DGL's class."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from atta.client.loaders.neighbor import NeighborLoader
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.job import drawing_seed
from atta.compat.dgl.offered import NotOfferedError
from atta.observe.extras import load
from atta.samplers.arguments import integers, whole

_calls = count()


def sample_neighbors(  # noqa: PLR0917 - as in DGL
    g: Any,
    nodes: Any,
    fanout: int | Mapping[Any, int],
    edge_dir: str = "in",
    prob: str | None = None,
    replace: bool = False,
) -> Any:
    """A ``DGLGraph`` over all vertices of ``g`` with some in-edges of ``nodes``; ``edata[dgl.EID]`` has their ids.

    Args:
        g: the graph.
        nodes: ids, or ``{node type: ids}``; repeated ids count once.
        fanout: in-edges of each vertex, of each edge type; -1: all. A mapping gives them by edge type.
        edge_dir: ``"in"``.
        prob: an edge table; edges are drawn by its numbers, and never those of 0 or False.
        replace: draw with replacement.

    Every call draws anew; ``torch.manual_seed`` before the first one repeats them.

    Raises:
        UnknownNameError: out-edges, or no such edge table. ConfigError: DGL is missing, or a vertex does not exist.
    """
    dgl = load("sample_neighbors", "dgl", "torch")
    if edge_dir != "in":
        raise NotOfferedError(f"sample_neighbors does not offer edge_dir={edge_dir!r}: edges are in-edges")
    types, schema = g.types, g.cluster.schema
    if isinstance(fanout, Mapping):
        fan_outs = {types.edge_type(etype): whole("fanout", n, -1) for etype, n in fanout.items()}
    else:
        fan_outs = dict.fromkeys(schema.edge_types, whole("fanout", fanout, -1))
    given = nodes if isinstance(nodes, Mapping) else {None: nodes}
    found: dict[str, list[np.ndarray]] = {edge_type: [np.empty((3, 0), np.int64)] for edge_type in schema.edge_types}
    for ntype, ids in given.items():
        seeds = (types.node_type(ntype), np.unique(integers("nodes", ids)))
        if not len(seeds[1]):
            continue
        hops = {e: [fan_outs.get(e, 0) if schema.endpoints(e)[1] == seeds[0] else 0] for e in schema.edge_types}
        loader = NeighborLoader(
            g.cluster, hops, seeds, batch_size=len(seeds[1]), tables={}, replace=replace, weight_attr=prob, rank=0,
            world_size=1, home=g.home, seed=drawing_seed(),
        )  # fmt: skip
        (batch,) = loader.resume(next(_calls), 0)
        for edge_type, pieces in found.items():
            source, target = schema.endpoints(edge_type)
            row, col = batch.edge_index(edge_type)
            pieces.append(np.stack([batch.n_id(source)[row], batch.n_id(target)[col], batch.e_id(edge_type)]))
    edges = {types.canonical(edge_type): np.concatenate(pieces, axis=1) for edge_type, pieces in found.items()}
    made = dgl.heterograph(
        {etype: (tensor(src), tensor(dst)) for etype, (src, dst, _) in edges.items()},
        num_nodes_dict={types.ntype(t): n for t, n in schema.node_counts.items()},
    )
    for etype, (_, _, e_id) in edges.items():
        made.edges[etype].data[dgl.EID] = tensor(e_id)
    return made


def in_subgraph(g: Any, nodes: Any) -> Any:
    """A ``DGLGraph`` over all vertices of ``g`` with all in-edges of ``nodes``; see ``sample_neighbors``."""
    return sample_neighbors(g, nodes, -1)


def edge_subgraph(g: Any, edges: Any, *, relabel_nodes: bool = True, store_ids: bool = True) -> Any:
    """A ``DGLGraph`` with the edges of these ids; ``edata[dgl.EID]`` has them.

    Args:
        g: the graph.
        edges: ids, or ``{edge type: ids}``.
        relabel_nodes: keep the ends of the edges only, whose ids are then in ``ndata[dgl.NID]``; False: keep all
            vertices under their ids.
        store_ids: True, as in DGL.

    Raises:
        ConfigError: DGL is missing, or an edge does not exist. UnknownNameError: graphs without ids.
    """
    dgl = load("edge_subgraph", "dgl", "torch")
    if not store_ids:
        raise NotOfferedError("edge_subgraph does not offer store_ids=False: DGL ignores it, too")
    types, given = g.types, edges if isinstance(edges, Mapping) else {None: edges}
    chosen = {types.edge_type(etype): integers("edges", ids).reshape(-1) for etype, ids in given.items()}
    made = dgl.heterograph(
        {types.canonical(e): tuple(tensor(end) for end in g.ends(e, ids)) for e, ids in chosen.items()},
        num_nodes_dict={types.ntype(t): n for t, n in types.schema.node_counts.items()},
    )
    for edge_type, ids in chosen.items():
        made.edges[types.canonical(edge_type)].data[dgl.EID] = tensor(ids)
    return dgl.compact_graphs(made) if relabel_nodes else made
