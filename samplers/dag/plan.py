"""A checked sampling DAG (ByteGNN §4.2): ``check_spec`` makes it from a ``DagSpec`` message.

The classes here are frozen values. ``atta.samplers.dag.instance`` makes one instance of a plan per batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from atta.errors import ConfigError
from atta.protos.v1 import dag_pb2
from atta.samplers.batch.negatives import NegativeLinks
from atta.samplers.methods import Method
from atta.samplers.operators.base import Operator
from atta.samplers.shard import TIMELY


class EdgeNorm(enum.Enum):
    """What an edge weighs where all edges come. The value is the user's name of it; the order is that of messages."""

    NONE = "none"
    ROW = "row"
    BOTH = "both"
    GCN = "gcn"


@dataclass(frozen=True)
class EdgeWeights:
    """What the edges of a type weigh. ``unbiased``: a drawn edge weighs as much more as there are edges that were not.
    ``summed``: weights of edges (table ``weight``) take the place of 1, and sums of them that of degrees."""

    edge_type: str
    norm: EdgeNorm
    unbiased: bool
    summed: bool = False

    @classmethod
    def of(cls, message: dag_pb2.EdgeWeights) -> EdgeWeights:
        """Read a message; raises ConfigError for a norm that this release does not know."""
        norms = [*EdgeNorm]
        if not 0 <= message.norm < len(norms):
            raise ConfigError(f"edge_norm: unknown norm {message.norm}")
        return cls(message.edge_type, norms[message.norm], message.unbiased, message.summed)

    def message(self) -> dag_pb2.EdgeWeights:
        """The inverse of ``of``."""
        norm = dag_pb2.EdgeWeights.Norm.Name([*EdgeNorm].index(self.norm))
        return dag_pb2.EdgeWeights(edge_type=self.edge_type, norm=norm, unbiased=self.unbiased, summed=self.summed)

    @property
    def loops(self) -> bool:
        """Whether every vertex that is expanded gets an edge to itself, which takes the place of those that it has."""
        return self.norm is EdgeNorm.GCN


class Kind(enum.Enum):
    """What an operator or a physical task does: ByteGNN's five operators, samplers of whole batches, and two kinds
    (JOIN, END) that only tasks have."""

    SEED = "seed"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEIGHBORHOOD = "neighborhood"
    FEATURE = "feature"
    BATCH = "batch"
    JOIN = "join"
    END = "end"

    __hash__ = object.__hash__  # Enum's own hash runs in Python and is slow: kinds are looked up many times per task


class EdgeUse(enum.IntEnum):
    """What becomes of the edges that a hop draws; the values are those of the message."""

    JOIN = 0
    """They join the batch, with their sources."""
    WITHIN = 1
    """Those among the vertices of the batch take the place of all edges so far."""
    ROWS = 2
    """Rows of edge tables are copied to the edges that the batch operator has chosen."""
    BUDGET = 3
    """They vote for their sources, and some of these join, without edges."""


class SchemaLike(Protocol):
    """The parts of a dataset's schema that a specification is checked against."""

    @property
    def node_types(self) -> Sequence[str]:
        """Names of the node types."""

    @cached_property
    def edge_types(self) -> Sequence[str]:
        """Names of the edge types, ``"src__rel__dst"``."""

    @property
    def node_tables(self) -> Mapping[str, Iterable[str]]:
        """Table names by node type."""

    @property
    def edge_tables(self) -> Mapping[str, Iterable[str]]:
        """Table names by edge type."""

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        """Node types of source and destination of an edge type."""


@dataclass(frozen=True)
class SpecLimits:
    """Bounds on what a client may ask for. A daemon checks them before it does any work."""

    operators: int = 512
    hops: int = 128  # deep models have one hop per layer; GraNNDis trains 112 layers
    fan_out: int = 100_000  # neighbours per vertex and edge type
    negatives: int = 10_000  # vertices per seed
    budget: int = 1 << 24  # vertices per node type and hop
    name_length: int = 128  # characters of an operator id


DEFAULT_LIMITS = SpecLimits()


@dataclass(frozen=True)
class PlanOp:
    """One resolved operator. Fields that do not belong to its kind keep their defaults."""

    id: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    children: tuple[str, ...] = ()  # in topological order
    node_type: str = ""  # SEED
    others: tuple[str, ...] = ()  # SEED: further node types of seeds
    edge_type: str = ""  # POSITIVE, NEGATIVE, BATCH; SEED if the seeds are edges
    count: int = 0  # vertices per seed: POSITIVE 1, NEGATIVE as asked
    hop: int = 0  # NEIGHBORHOOD: 1 = neighbours of the seeds
    fan_outs: tuple[tuple[str, int], ...] = ()  # NEIGHBORHOOD: (edge type, count), -1 = all in-neighbours, never 0
    replace: bool = False  # NEIGHBORHOOD
    method: Method = Method.UNIFORM  # NEIGHBORHOOD
    by: str = ""  # NEIGHBORHOOD: edge table that the method draws by; empty: the one of its usual name
    frontier_all: bool = False  # NEIGHBORHOOD: expand every vertex known so far
    use: EdgeUse = EdgeUse.JOIN  # NEIGHBORHOOD
    budgets: tuple[tuple[str, int], ...] = ()  # NEIGHBORHOOD that votes: (node type, vertices to draw)
    tables: tuple[tuple[str, str], ...] = ()  # FEATURE: (node type, table)
    negatives: NegativeLinks | None = None  # NEGATIVE if the seeds are edges
    options: str = ""  # BATCH: the options that its operator was made from
    operator: Operator | None = field(default=None, compare=False)  # BATCH


@dataclass(frozen=True)
class Plan:
    """A checked specification. Its operators are in a topological order that depends on the message alone.

    ``ops[0]`` is the seed operator. ``hops`` is the number of operators that sample edges. ``disjoint``: every seed
    grows a tree of its own. ``edge_tables``: each (edge type, table) whose rows come with the sampled edges. ``edge_weights``:
    of the edge types whose edges are weighed.
    """

    ops: tuple[PlanOp, ...]
    hops: int
    disjoint: bool = False
    edge_tables: tuple[tuple[str, str], ...] = ()
    edge_weights: tuple[EdgeWeights, ...] = ()
    _by_id: dict[str, PlanOp] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {op.id: op for op in self.ops})

    @property
    def seed(self) -> PlanOp:
        """The seed operator."""
        return self.ops[0]

    def op(self, name: str) -> PlanOp:
        """The operator with this id. Raises KeyError if there is none."""
        return self._by_id[name]

    @cached_property
    def neighborhoods(self) -> tuple[PlanOp, ...]:
        """The neighbourhood operators, hop 1 first."""
        return tuple(op for op in self.ops if op.kind is Kind.NEIGHBORHOOD)

    @cached_property
    def edge_types(self) -> tuple[str, ...]:
        """Every edge type that some hop samples, ordered by name. The vertices of one hop are numbered in this
        order."""
        found = [[op.edge_type] if op.kind is Kind.BATCH else [name for name, _ in op.fan_outs] for op in self.ops]
        return tuple(sorted({name for names in found for name in names}))

    @property
    def links(self) -> bool:
        """Whether the seeds are edges."""
        return bool(self.seed.edge_type)

    @cached_property
    def temporal(self) -> bool:
        """Whether seeds have times."""
        return any(op.method.temporal for op in self.ops)

    def tables_of(self, edge_type: str) -> tuple[str, ...]:
        """Names of the tables that come with the edges of one type."""
        return tuple(name for owner, name in self.edge_tables if owner == edge_type)

    def drawn_tables(self, edge_type: str) -> tuple[str, ...]:
        """Names of the tables whose rows owners send with the edges of one type: also those that weights are made of."""
        weighed = [weights for weights in self.edge_weights if weights.edge_type == edge_type]
        unbiased, rules = any(weights.unbiased for weights in weighed), [op.method.rules for op in self.neighborhoods]
        by_edge = any(w.summed for w in weighed) or (unbiased and any(r.weigh_edges is not None for r in rules))
        timely = unbiased and any(r.temporal and r.weigh_vertices is not None for r in rules)
        found = (*self.tables_of(edge_type), *(("weight",) if by_edge else ()), *((TIMELY,) if timely else ()))
        return tuple(dict.fromkeys(found))

    @cached_property
    def tables(self) -> tuple[tuple[str, str], ...]:
        """Every (node type, table) that some feature operator fetches, in order of first use."""
        return tuple(dict.fromkeys(ref for op in self.ops for ref in op.tables))

    @cached_property
    def tables_of_seeds(self) -> frozenset[tuple[str, str]]:
        """The entries of ``tables`` that are fetched for the seeds alone."""
        later = {ref for op in self.ops if op.inputs != (self.seed.id,) for ref in op.tables}
        return frozenset(self.tables) - later
