"""``DistGraph``: what a script asks of the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from atta.client.loaders.neighbor import vertex_ids
from atta.client.tables.rows import table_rows
from atta.compat import refuse
from atta.compat.dgl.distributed.book import GraphPartitionBook, PartitionPolicy, tensor
from atta.compat.dgl.distributed.edges import EdgeEnds, edge_column, edge_subgraph, known_edges, out_degrees
from atta.compat.dgl.distributed.recent import BatchRows
from atta.compat.dgl.distributed.tensor import DistRows, EdgeRows, Frame, NodeMask, NodeRows, pieces
from atta.compat.dgl.job import barrier, present
from atta.samplers.arguments import integers

ALL = "__ALL__"


class DistGraph:
    """The graph of the daemons. Its vertices and edges go by the users' ids, which DGL numbers from 0 in each type."""

    def __init__(self, graph_name: str, gpb: Any = None, part_config: str | Path | None = None) -> None:
        """Open the graph; ``graph_name`` and ``gpb`` mean nothing here. ``part_config``: without daemons in
        ``initialize``, what ``dataset_of`` takes; daemons are started on this machine."""
        self.graph_name, self._job = graph_name, present()
        self.cluster = self._job.open(part_config)
        self._book = GraphPartitionBook(self.cluster, self._job)
        self.types = self._book.types
        self.recent = BatchRows()
        schema = self.cluster.schema
        self._nodes = {t: Frame("ndata", self.types.ndata(t), partial(self._ntensor, t)) for t in schema.node_types}
        tables = schema.edge_tables
        self._edges = {e: Frame("edata", [*tables[e]], partial(self._etensor, e)) for e in schema.edge_types}
        self._ends: dict[str, EdgeEnds] = {}
        self._out_degrees: dict[str, np.ndarray] = {}

    # -- types and counts ----------------------------------------------------------------------------------------------

    @property
    def ntypes(self) -> list[str]:
        """Node types."""
        return self.types.ntypes()

    @property
    def etypes(self) -> list[str]:
        """Relations of the edge types."""
        return [relation for _, relation, _ in self.canonical_etypes]

    @property
    def canonical_etypes(self) -> list[tuple[str, str, str]]:
        """Edge types as triples."""
        return self.types.canonical_etypes()

    def to_canonical_etype(self, etype: Any) -> tuple[str, str, str]:
        """The triple of a relation."""
        return self.types.canonical(self.types.edge_type(etype))

    def get_ntype_id(self, ntype: str) -> int:
        """The number of a node type."""
        return self.cluster.schema.node_types.index(self.types.node_type(ntype))

    def get_etype_id(self, etype: Any) -> int:
        """The number of an edge type."""
        return self.cluster.schema.edge_types.index(self.types.edge_type(etype))

    def num_nodes(self, ntype: str | None = None) -> int:
        """Number of vertices of a type; None: of all types."""
        counts = self.cluster.schema.node_counts
        return sum(counts.values()) if ntype is None else counts[self.types.node_type(ntype)]

    def num_edges(self, etype: Any = None) -> int:
        """Number of edges of a type; None: of all types."""
        counts = self.cluster.schema.edge_counts
        return sum(counts.values()) if etype is None else counts[self.types.edge_type(etype)]

    number_of_nodes, number_of_edges = num_nodes, num_edges

    @property
    def idtype(self) -> Any:
        """Of ids: ``torch.int64``."""
        return tensor(np.empty(0, np.int64)).dtype

    @property
    def device(self) -> Any:
        """Where sampled graphs are: the CPU."""
        return tensor(np.empty(0, np.int64)).device

    @property
    def local_partition(self) -> None:
        """The partition in this process' memory: None, as in DGL where the partition is on another machine."""
        return None

    # -- tensors -------------------------------------------------------------------------------------------------------

    @property
    def ndata(self) -> Frame:
        """Tensors of the only node type."""
        return self._nodes[self.types.node_type(None)]

    @property
    def edata(self) -> Frame:
        """Tensors of the only edge type."""
        return self._edges[self.types.edge_type(None)]

    @property
    def nodes(self) -> _Frames:
        """``g.nodes[ntype].data``."""
        return _Frames(lambda ntype: self._nodes[self.types.node_type(ntype)])

    @property
    def edges(self) -> _Frames:
        """``g.edges[etype].data``."""
        return _Frames(lambda etype: self._edges[self.types.edge_type(etype)])

    def node_attr_schemes(self) -> dict[str, Scheme]:
        """Shape of a row and dtype of each of ``ndata``."""
        return _schemes(self.ndata)

    def edge_attr_schemes(self) -> dict[str, Scheme]:
        """Shape of a row and dtype of each of ``edata``."""
        return _schemes(self.edata)

    # -- place ---------------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        """The number of this trainer."""
        return self._job.rank

    def barrier(self) -> None:
        """Wait for the other trainers."""
        barrier()

    @property
    def _client(self) -> DistGraph:
        """DGL's published example without labels waits by ``g._client.barrier()``."""
        return self

    def get_partition_book(self) -> GraphPartitionBook:
        """Which daemon owns what."""
        return self._book

    def get_node_partition_policy(self, ntype: str) -> PartitionPolicy:
        """For a ``DistTensor`` with a row per vertex of a type."""
        return self._book.nodes(self.types.node_type(ntype))

    def get_edge_partition_policy(self, etype: Any) -> PartitionPolicy:
        """For a ``DistTensor`` with a row per edge of a type."""
        return self._book.edges(self.types.edge_type(etype))

    @property
    def home(self) -> int:
        """The partition of the dataset whose daemon is nearest to this trainer."""
        return self.cluster.parts[self.cluster.home_daemon(self._job.rank, self._job.world)].start

    # -- edges ---------------------------------------------------------------------------------------------------------

    def in_degrees(self, v: Any = ALL, etype: Any = None) -> Any:
        """Number of in-edges of each of ``v`` (int64 [n]; default: all vertices), or an int for one vertex."""
        edge_type = self.types.edge_type(etype)
        count = self.cluster.schema.node_counts[self.cluster.schema.endpoints(edge_type)[1]]
        ids = np.arange(count) if isinstance(v, str) and v == ALL else np.atleast_1d(integers("v", v))
        unique, inverse = np.unique(ids, return_inverse=True)
        degrees: np.ndarray = np.zeros(len(unique), np.int64)
        for piece in pieces(len(unique)):
            found = np.searchsorted(unique[piece], known_edges(self.cluster, edge_type, unique[piece]).dst)
            degrees[piece] = np.bincount(found, minlength=piece.stop - piece.start)
        return int(degrees[0]) if np.ndim(v) == 0 and not isinstance(v, str) else tensor(degrees[inverse])

    def out_degrees(self, u: Any = ALL, etype: Any = None) -> Any:
        """Number of out-edges of each of ``u``, as ``in_degrees``. The first call of a type reads all its edges."""
        edge_type = self.types.edge_type(etype)
        if edge_type not in self._out_degrees:
            self._out_degrees[edge_type] = out_degrees(self.cluster, edge_type)
        degrees = self._out_degrees[edge_type]
        if isinstance(u, str) and u == ALL:
            return tensor(degrees.copy())
        source = self.cluster.schema.endpoints(edge_type)[0]
        ids = np.atleast_1d(integers("u", u))
        self._book.nodes(source).order(ids)  # raises for a vertex that does not exist
        return int(degrees[ids[0]]) if np.ndim(u) == 0 else tensor(degrees[ids])

    def find_edges(self, edges: Any, etype: Any = None) -> tuple[Any, Any]:
        """Sources and destinations of edges, int64 [n] each. Those of this trainer's part are read at the first call,
        and all edges when others are asked for."""
        src, dst = self.ends(self.types.edge_type(etype), integers("edges", edges).reshape(-1))
        return tensor(src), tensor(dst)

    def ends(self, edge_type: str, e_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As ``find_edges``, of a type by the dataset's name."""
        if edge_type not in self._ends:
            target = self.cluster.schema.endpoints(edge_type)[1]
            mine = partial(self._book.nodes(target).members, self._book.partid)
            self._ends[edge_type] = EdgeEnds(self.cluster, edge_type, mine)
        return self._ends[edge_type].find(e_id)

    def edge_subgraph(self, edges: Any, relabel_nodes: bool = True, store_ids: bool = True) -> Any:
        """A ``DGLGraph`` with the edges of these ids (``edges.edge_subgraph``)."""
        return edge_subgraph(self, edges, relabel_nodes=relabel_nodes, store_ids=store_ids)

    def __getattr__(self, name: str) -> Any:
        raise refuse("DistGraph", name, [n for n in dir(type(self)) if not n.startswith("_")])

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _ntensor(self, node_type: str, name: str) -> DistRows | None:
        policy = self._book.nodes(node_type)
        if (table := self.types.table(node_type, name)) is not None:
            return NodeRows(name, policy, table, self.recent, partial(table_rows, self.cluster))
        split = self.types.split(node_type, name)
        if split is None:
            return None
        return NodeMask(name, policy, split, partial(vertex_ids, self.cluster, node_type, split))

    def _etensor(self, edge_type: str, name: str) -> DistRows | None:
        if name not in self.cluster.schema.edge_tables[edge_type]:
            return None
        return EdgeRows(name, self._book.edges(edge_type), partial(edge_column, self.cluster, edge_type, name))


class _Frames:
    """``g.nodes`` and ``g.edges``: what they hold by type."""

    def __init__(self, frame: Callable[[Any], Frame]) -> None:
        self._frame = frame

    def __getitem__(self, name: Any) -> SimpleNamespace:
        return SimpleNamespace(data=self._frame(name))


class Scheme(NamedTuple):
    """Shape of a row, and torch's dtype."""

    shape: tuple[int, ...]
    dtype: Any


def _schemes(frame: Frame) -> dict[str, Scheme]:
    return {name: Scheme(rows.shape[1:], rows.dtype) for name, rows in frame.items()}
