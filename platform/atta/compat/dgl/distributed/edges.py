"""Edges by their ids, and sampled graphs over all vertices in DGL's class. Daemons find edges by their destinations, so ends
are read in passes over vertices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from atta.client.cluster import Cluster
from atta.client.loaders.neighbor import NeighborLoader, in_edges
from atta.compat import NotOfferedError
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.job import drawing_seed
from atta.errors import ConfigError
from atta.observe.packages import load
from atta.samplers.arguments import integers, whole


class KnownEdges(NamedTuple):
    """Edges with their ids and ends, int64 [E] each."""

    e_id: np.ndarray
    src: np.ndarray
    dst: np.ndarray


def known_edges(cluster: Cluster, edge_type: str, targets: np.ndarray | None) -> KnownEdges:
    """All in-edges of ``targets`` (int64, distinct); None: of every vertex, so all edges of the type."""
    source, target = cluster.schema.endpoints(edge_type)
    pieces: list[tuple[Any, ...]] = [(np.empty(0, np.int64),) * 3]
    for batch in () if targets is not None and not len(targets) else in_edges(cluster, edge_type, targets):
        row, col = batch.edge_index(edge_type)
        pieces.append((batch.e_id(edge_type), batch.n_id(source)[row], batch.n_id(target)[col]))
    return KnownEdges(*map(np.concatenate, zip(*pieces, strict=True)))


def edge_column(cluster: Cluster, edge_type: str, name: str) -> np.ndarray:
    """All rows [E, *row shape] of an edge table by edge id."""
    spec = cluster.schema.edge_tables[edge_type][name]
    out = np.empty((cluster.schema.edge_counts[edge_type], *spec.row_shape), spec.dtype)
    for batch in in_edges(cluster, edge_type, None, edge_tables={edge_type: [name]}):
        out[batch.e_id(edge_type)] = batch.edge_table(name, edge_type)
    return out


def out_degrees(cluster: Cluster, edge_type: str) -> np.ndarray:
    """int64 [vertices of the sources' type]: number of out-edges of each, in a pass over all edges."""
    source = cluster.schema.endpoints(edge_type)[0]
    degrees: np.ndarray = np.zeros(cluster.schema.node_counts[source], np.int64)
    for batch in in_edges(cluster, edge_type, None):
        row, _ = batch.edge_index(edge_type)
        np.add.at(degrees, batch.n_id(source)[row], 1)
    return degrees


class EdgeEnds:
    """Finds the ends of edges. Keeps those of this trainer's part, and all once others were asked for: 24 B each."""

    def __init__(self, cluster: Cluster, edge_type: str, mine: Callable[[], np.ndarray]) -> None:
        """``mine()`` gives the vertices of this trainer's part."""
        self._cluster, self._edge_type, self._mine = cluster, edge_type, mine
        self._known: KnownEdges | None = None
        self._all = False

    def find(self, e_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations, int64 [n] each, of the edges ``e_id``. Raises ConfigError: one does not exist."""
        known = self._known = self._known or self._read(self._mine())
        at, found = _look(known, e_id)
        if not found.all() and not self._all:
            known, self._all = self._read(None), True
            self._known = known
            at, found = _look(known, e_id)
        if not found.all():
            raise ConfigError(f"{e_id[~found][0]} is not an edge of {self._edge_type}")
        return known.src[at], known.dst[at]

    def _read(self, targets: np.ndarray | None) -> KnownEdges:
        """In the order of their ids."""
        edges = known_edges(self._cluster, self._edge_type, targets)
        order = np.argsort(edges.e_id)
        return KnownEdges(*(array[order] for array in edges))


def _look(known: KnownEdges, e_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(known.e_id):
        return np.zeros(len(e_id), np.int64), np.zeros(len(e_id), bool)
    at = np.minimum(np.searchsorted(known.e_id, e_id), len(known.e_id) - 1)
    return at, known.e_id[at] == e_id


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
    """
    load("sample_neighbors", "dgl", "torch")
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
    return _over_all_vertices(g, {edge_type: np.concatenate(pieces, axis=1) for edge_type, pieces in found.items()})


def in_subgraph(g: Any, nodes: Any) -> Any:
    """A ``DGLGraph`` over all vertices of ``g`` with all in-edges of ``nodes``; see ``sample_neighbors``."""
    return sample_neighbors(g, nodes, -1)


def edge_subgraph(g: Any, edges: Any, *, relabel_nodes: bool = True, store_ids: bool = True) -> Any:
    """A ``DGLGraph`` with the edges of these ids, or ``{edge type: ids}``; ``edata[dgl.EID]`` has them.
    ``relabel_nodes``: keep the ends of the edges only, whose ids are then in ``ndata[dgl.NID]``; False: keep all
    vertices under their ids."""
    dgl = load("edge_subgraph", "dgl", "torch")
    if not store_ids:
        raise NotOfferedError("edge_subgraph does not offer store_ids=False: DGL ignores it, too")
    given = edges if isinstance(edges, Mapping) else {None: edges}
    chosen = {g.types.edge_type(etype): integers("edges", ids).reshape(-1) for etype, ids in given.items()}
    made = _over_all_vertices(g, {edge_type: (*g.ends(edge_type, ids), ids) for edge_type, ids in chosen.items()})
    return dgl.compact_graphs(made) if relabel_nodes else made


def _over_all_vertices(g: Any, edges: Mapping[str, Any]) -> Any:
    """A ``DGLGraph`` over all vertices. ``edges``: sources, targets and ids by the dataset's edge type."""
    import dgl

    types = g.types
    ends = {types.canonical(edge_type): (tensor(src), tensor(dst)) for edge_type, (src, dst, _) in edges.items()}
    made = dgl.heterograph(ends, num_nodes_dict={types.ntype(t): n for t, n in types.schema.node_counts.items()})
    for edge_type, (_, _, e_id) in edges.items():
        made.edges[types.canonical(edge_type)].data[dgl.EID] = tensor(e_id)
    return made
