"""The partition book: DGL's names of types and tensors, and which daemon owns which vertices and edges. Parts are the
daemons, as DGL's are its servers."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from atta.client.cluster import Cluster
from atta.compat.dgl.job import Job
from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.spec import MutableSpec
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.names import split_edge_type, table_word
from atta.partition.schema import Schema
from atta.samplers.arguments import integers, whole
from atta.samplers.seed_plan import home_of

_LEASE_S = 60.0
_KEPT = 1 << 22
"""Most vertices of a type whose places a trainer keeps, 8 bytes each."""
_POLICY = re.compile(r"(node|edge)(?:[:~](.+))?")


def tensor(array: np.ndarray) -> Any:
    """``array`` as a torch tensor over the same memory."""
    import torch

    return torch.from_numpy(np.require(array, requirements="W"))


_TABLES = {"feat": "x", "features": "x", "label": "y", "labels": "y"}
_MASK = "_mask"


class TypeBook:
    """Types by DGL's names: ``_N`` and ``_E`` where there is one plain type, otherwise the dataset's own names."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._plain_nodes = schema.node_types == (NODE_TYPE,)
        self._plain_edges = self._plain_nodes and schema.edge_types == (EDGE_TYPE,)

    def ntypes(self) -> list[str]:
        """Node types, in the order of their numbers."""
        return [self.ntype(t) for t in self.schema.node_types]

    def canonical_etypes(self) -> list[tuple[str, str, str]]:
        """Edge types, in the order of their numbers."""
        return [self.canonical(e) for e in self.schema.edge_types]

    def ntype(self, node_type: str) -> str:
        """DGL's name of a node type."""
        return "_N" if self._plain_nodes else node_type

    def canonical(self, edge_type: str) -> tuple[str, str, str]:
        """DGL's triple of an edge type."""
        source, relation, target = split_edge_type(edge_type)
        return self.ntype(source), "_E" if self._plain_edges else relation, self.ntype(target)

    def node_type(self, ntype: str | None) -> str:
        """The node type of DGL's name; None: the only one. Raises ConfigError and UnknownNameError."""
        known = self.schema.node_types
        if ntype is None or (ntype == "_N" and len(known) == 1):
            if len(known) > 1:
                raise ConfigError(f"name a node type: {', '.join(known)}")
            return known[0]
        return self.schema.check_node_type(ntype)

    def edge_type(self, etype: Any) -> str:
        """The edge type of DGL's name, triple or relation; None: the only one. Raises ConfigError and UnknownNameError."""
        known = self.schema.edge_types
        if etype is None or (etype == "_E" and len(known) == 1):
            if len(known) != 1:
                raise ConfigError(f"name an edge type: {', '.join(known)}")
            return known[0]
        if isinstance(etype, str):
            found = [e for e in known if etype in (e, split_edge_type(e)[1], ":".join(self.canonical(e)))]
        else:
            found = [e for e in known if tuple(etype) in (self.canonical(e), split_edge_type(e))]
        if len(found) > 1:
            raise ConfigError(f"etype {etype!r}: several edge types have this relation: {', '.join(found)}")
        if not found:
            raise UnknownNameError.of("edge type", etype, known)
        return found[0]

    def table(self, node_type: str, name: str) -> str | None:
        """The node table that holds the tensor ``name``; None: there is none."""
        tables = self.schema.node_tables[node_type]
        found = name if name in tables else _TABLES.get(name)
        return found if found in tables else None

    def split(self, node_type: str, name: str) -> str | None:
        """The split that the mask ``name`` marks; None: there is none."""
        split = name.removesuffix(_MASK)
        return split if name.endswith(_MASK) and split in self.schema.splits[node_type] else None

    def ndata(self, node_type: str) -> list[str]:
        """Names of the tensors of a node type."""
        schema = self.schema
        return [*schema.node_tables[node_type], *(f"{split}{_MASK}" for split in schema.splits[node_type])]


class PartitionPolicy:
    """Which vertices or edges a tensor has a row for, and which part has each. Numbers of a part need not be consecutive: DGL
    renumbers a graph when it is partitioned, Atta does not.

    Attributes:
        policy_str: DGL's name, ``"node:TYPE"`` or ``"edge:TYPE"``.
        kind, type_name: ``"nodes"`` or ``"edges"``, and the dataset's name of the type.
        rows: the policy of the daemons' tables, such as ``"nodes:paper"``.
    """

    def __init__(self, policy_str: str, partition_book: GraphPartitionBook) -> None:
        """``policy_str``: ``"node"`` or ``"edge"`` for the only type, or with a type behind a colon or a tilde."""
        found, types = _POLICY.fullmatch(policy_str), partition_book.types
        if found is None:
            raise ConfigError(f"PartitionPolicy {policy_str!r}: write node, edge, node:TYPE or edge:TYPE")
        kind, name = found.groups()
        self.partition_book, self.kind = partition_book, f"{kind}s"
        if kind == "node":
            self.type_name = types.node_type(name)
            shown, counts = types.ntype(self.type_name), types.schema.node_counts
        else:
            self.type_name = types.edge_type(name)
            shown, counts = ":".join(types.canonical(self.type_name)), types.schema.edge_counts
        self.policy_str, self.rows = f"{kind}:{shown}", f"{self.kind}:{self.type_name}"
        self._count = counts[self.type_name]

    @property
    def part_id(self) -> int:
        """The part of this trainer."""
        return self.partition_book.partid

    def get_size(self) -> int:
        """Number of rows."""
        return self._count

    def get_part_size(self) -> int:
        """Number of rows of this trainer's part."""
        return int(np.diff(self.bounds)[self.part_id])

    def to_partid(self, ids: Any) -> Any:
        """The part of each id, int64 [n]."""
        return tensor(np.asarray(np.searchsorted(self.bounds[1:], self.order(ids), side="right")))

    def to_local(self, ids: Any) -> Any:
        """The number of each id among those of its part, int64 [n]."""
        order = self.order(ids)
        return tensor(order - self.bounds[np.searchsorted(self.bounds[1:], order, side="right")])

    def members(self, part: int) -> np.ndarray:
        """int64: the ids of a part, ascending. Looks every id of the type up."""
        part = whole("partid", part, 0, self.partition_book.num_partitions() - 1)
        return np.flatnonzero(self.to_partid(np.arange(self._count)).numpy() == part)

    def order(self, ids: Any) -> np.ndarray:
        """int64 [n]: the place of each id in the order of the parts. Raises ConfigError for one that does not exist."""
        given, places = integers("ids", ids), self.places
        if places is not None and (not len(given) or (given.min() >= 0 and given.max() < len(places))):
            found: np.ndarray = places[given]
            return found
        try:
            return self.partition_book.tables.locate(self.rows, given)
        except ConfigError as error:
            last = self._count - 1
            hint = f"; DGL numbers the nodes of a type from 0 to {last}" if self.kind == "nodes" else ""
            raise ConfigError(f"{error}{hint}") from None

    @cached_property
    def places(self) -> np.ndarray | None:
        """``order`` of all vertices of a type, so that no request is needed for some of them; None: of edges, of too many
        vertices, or where ids are other numbers than 0, 1, 2, ..."""
        if self.kind == "edges" or self._count > _KEPT:
            return None
        try:
            return self.partition_book.tables.locate(self.rows, np.arange(self._count))
        except ConfigError:
            return None

    @cached_property
    def bounds(self) -> np.ndarray:
        """int64 [parts + 1]: where the parts begin in ``order``, then the end."""
        # Daemons tell where their rows begin when a table is created. This one has a byte a row, and goes by itself.
        name = f"dgl.book.{self.kind}.{table_word(self.type_name)}"
        spec = MutableSpec(name, self._count, "|b1", policy=self.rows, lease_s=_LEASE_S)
        return np.append(self.partition_book.tables.create(spec).first_rows, self._count)


class GraphPartitionBook:
    """Which part has a vertex or an edge."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self.tables, self.job, self.types = cluster.tables, job, TypeBook(cluster.schema)
        self._parts = len(cluster.parts)
        self.partid = home_of(job.rank, job.world, self._parts)
        """The part of this trainer."""
        self._policies: dict[str, PartitionPolicy] = {}

    def nodes(self, node_type: str) -> PartitionPolicy:
        """The policy of a node type by the dataset's name."""
        return self._policy(f"node:{self.types.ntype(node_type)}")

    def edges(self, edge_type: str) -> PartitionPolicy:
        """The policy of an edge type by the dataset's name."""
        return self._policy(f"edge:{':'.join(self.types.canonical(edge_type))}")

    def _policy(self, name: str) -> PartitionPolicy:
        if name not in self._policies:
            self._policies[name] = PartitionPolicy(name, self)
        return self._policies[name]

    def num_partitions(self) -> int:
        """Number of daemons."""
        return self._parts

    def nid2partid(self, nids: Any, ntype: str | None = None) -> Any:
        """The part of each vertex, int64 [n]."""
        return self.nodes(self.types.node_type(ntype)).to_partid(nids)

    def eid2partid(self, eids: Any, etype: Any = None) -> Any:
        """The part of each edge, int64 [n]: that of its destination."""
        return self.edges(self.types.edge_type(etype)).to_partid(eids)

    def partid2nids(self, partid: int, ntype: str | None = None) -> Any:
        """The vertices of a part, int64, ascending."""
        return tensor(self.nodes(self.types.node_type(ntype)).members(partid))

    def partid2eids(self, partid: int, etype: Any = None) -> Any:
        """The edges of a part, int64, ascending."""
        return tensor(self.edges(self.types.edge_type(etype)).members(partid))

    def trainers(self, part: int) -> list[int]:
        """The ranks whose vertices a part holds: its own, or, with fewer trainers than parts, that of its range."""
        world = self.job.world
        own = [rank for rank in range(world) if home_of(rank, world, self._parts) == part]
        return own or [part * world // self._parts]
