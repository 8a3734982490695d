"""The partition book: DGL's names of types and tensors, and which daemon owns which vertices and edges. Parts are the
daemons, as DGL's are its servers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.compat.dgl.job import Job
from atta.errors import ConfigError, UnknownNameError
from atta.kvstore.spec import MutableSpec
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.names import table_word
from atta.partition.schema import Schema, split_edge_type
from atta.samplers.arguments import integers, whole
from atta.samplers.seed_plan import home_of

if TYPE_CHECKING:
    from atta.client.cluster import Cluster

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
    """Which vertices or edges a tensor has a row for.

    Attributes:
        policy_str: DGL's name, ``"node:TYPE"`` or ``"edge:TYPE"``.
        kind, type_name: ``"nodes"`` or ``"edges"``, and the dataset's name of the type.
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
            shown = types.ntype(self.type_name)
        else:
            self.type_name = types.edge_type(name)
            shown = ":".join(types.canonical(self.type_name))
        self.policy_str = f"{kind}:{shown}"

    @classmethod
    def of(cls, book: GraphPartitionBook, kind: str, type_name: str) -> PartitionPolicy:
        """By the dataset's name of the type; ``kind``: ``"nodes"`` or ``"edges"``."""
        shown = book.types.ntype(type_name) if kind == "nodes" else ":".join(book.types.canonical(type_name))
        return cls(f"{kind.removesuffix('s')}:{shown}", book)

    @property
    def rows(self) -> str:
        """The policy of the daemons' tables, such as ``"nodes:paper"``."""
        return f"{self.kind}:{self.type_name}"

    @property
    def part_id(self) -> int:
        """The part of this trainer."""
        return self.partition_book.partid

    def get_size(self) -> int:
        """Number of rows."""
        return self.partition_book.count(self.rows)

    def get_part_size(self) -> int:
        """Number of rows of this trainer's part."""
        return int(np.diff(self.partition_book.bounds(self.rows))[self.part_id])

    def to_partid(self, ids: Any) -> Any:
        """The part of each id, int64 [n]."""
        return tensor(self.partition_book.part_of(self.rows, ids))

    def to_local(self, ids: Any) -> Any:
        """The number of each id among those of its part, int64 [n]."""
        order, bounds = self.partition_book.order(self.rows, ids), self.partition_book.bounds(self.rows)
        return tensor(order - bounds[np.searchsorted(bounds[1:], order, side="right")])


class GraphPartitionBook:
    """Which part has a vertex or an edge. Numbers of a part need not be consecutive: DGL renumbers a graph when it is
    partitioned, Atta does not."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster, self.job, self.types = cluster, job, TypeBook(cluster.schema)
        self.partid = home_of(job.rank, job.world, self.num_partitions())
        """The part of this trainer."""
        self.bounds = lru_cache(maxsize=None)(self._bounds)
        self.places = lru_cache(maxsize=None)(self._places)

    def num_partitions(self) -> int:
        """Number of daemons."""
        return len(self._cluster.parts)

    def nid2partid(self, nids: Any, ntype: str | None = None) -> Any:
        """The part of each vertex, int64 [n]."""
        return tensor(self.part_of(f"nodes:{self.types.node_type(ntype)}", nids))

    def eid2partid(self, eids: Any, etype: Any = None) -> Any:
        """The part of each edge, int64 [n]: that of its destination."""
        return tensor(self.part_of(f"edges:{self.types.edge_type(etype)}", eids))

    def partid2nids(self, partid: int, ntype: str | None = None) -> Any:
        """The vertices of a part, int64, ascending."""
        return tensor(self.of_part(f"nodes:{self.types.node_type(ntype)}", partid))

    def partid2eids(self, partid: int, etype: Any = None) -> Any:
        """The edges of a part, int64, ascending."""
        return tensor(self.of_part(f"edges:{self.types.edge_type(etype)}", partid))

    def trainers(self, part: int) -> list[int]:
        """The ranks whose vertices a part holds: its own, or, with fewer trainers than parts, that of its range."""
        world, parts = self.job.world, self.num_partitions()
        own = [rank for rank in range(world) if home_of(rank, world, parts) == part]
        return own or [part * world // parts]

    def order(self, policy: str, ids: Any) -> np.ndarray:
        """int64 [n]: the place of each id in the order of the parts. Raises ConfigError for one that does not exist."""
        given = integers("ids", ids)
        places = self.places(policy)
        if places is not None and (not len(given) or (given.min() >= 0 and given.max() < len(places))):
            found: np.ndarray = places[given]
            return found
        try:
            return self._cluster.tables.locate(policy, given)
        except ConfigError as error:
            kind = policy.partition(":")[0]
            hint = f"; DGL numbers the {kind} of a type from 0 to {self.count(policy) - 1}" if kind == "nodes" else ""
            raise ConfigError(f"{error}{hint}") from None

    def part_of(self, policy: str, ids: Any) -> np.ndarray:
        """int64 [n]: the part of each id."""
        return np.asarray(np.searchsorted(self.bounds(policy)[1:], self.order(policy, ids), side="right"))

    def of_part(self, policy: str, part: int) -> np.ndarray:
        """int64: the ids of a part, ascending. Looks every id of the type up."""
        part = whole("partid", part, 0, self.num_partitions() - 1)
        everything = np.arange(int(self.bounds(policy)[-1]))
        found: np.ndarray = everything[self.part_of(policy, everything) == part]
        return found

    def count(self, policy: str) -> int:
        """Number of vertices or edges of a type."""
        kind, _, name = policy.partition(":")
        schema = self.types.schema
        return (schema.node_counts if kind == "nodes" else schema.edge_counts)[name]

    def _places(self, policy: str) -> np.ndarray | None:
        """``order`` of all vertices of a type, so that no request is needed for some of them; None: of edges, of too many
        vertices, or where ids are other numbers than 0, 1, 2, ...
        """
        count = self.count(policy)
        if not policy.startswith("nodes:") or count > _KEPT:
            return None
        try:
            return self._cluster.tables.locate(policy, np.arange(count))
        except ConfigError:
            return None

    def _bounds(self, policy: str) -> np.ndarray:
        """int64 [parts + 1]: where the parts begin in ``order``, then the end."""
        kind, _, name = policy.partition(":")
        count = self.count(policy)
        # Daemons tell where their rows begin when a table is created. This one has a byte a row, and goes by itself.
        spec = MutableSpec(f"dgl.book.{kind}.{table_word(name)}", count, "|b1", policy=policy, lease_s=_LEASE_S)
        return np.append(self._cluster.tables.create(spec).first_rows, count)
