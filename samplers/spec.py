"""The logical sampling DAG: build a ``DagSpec`` message, check one, resolve it to a ``Plan`` (ByteGNN §4.2).

A client describes the operators of one mini-batch once (``neighbor_spec``, ``link_spec``), the daemon checks what arrives
(``check_spec``) and from then on works with the frozen ``Plan``; ``atta.samplers.dag`` instantiates it for every batch.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atta.errors import ConfigError, UnknownNameError
from atta.protos.v1 import dag_pb2

__all__ = ["Kind", "Plan", "PlanOp", "SchemaLike", "SpecLimits", "check_spec", "link_spec", "neighbor_spec"]

SPEC_VERSION = 1
EdgeType = str | tuple[str, str, str]
FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]


class Kind(enum.Enum):
    """What an operator or a physical task does; the first five are the operators of ByteGNN, the rest exist as tasks only."""

    SEED = "seed"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEIGHBORHOOD = "neighborhood"
    FEATURE = "feature"
    JOIN = "join"
    END = "end"


class SchemaLike(Protocol):
    """What the specification needs of a dataset's schema."""

    @property
    def node_types(self) -> Sequence[str]:
        """Names of the node types."""

    @property
    def edge_types(self) -> Sequence[str]:
        """Names of the edge types, ``"src__rel__dst"``."""

    @property
    def node_tables(self) -> Mapping[str, Iterable[str]]:
        """Table names by node type."""

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        """Node types of source and destination of an edge type."""


@dataclass(frozen=True)
class SpecLimits:
    """Bounds on what a client may ask for; a daemon checks them before it does any work."""

    operators: int = 64
    hops: int = 16
    fan_out: int = 100_000  # neighbours per vertex and edge type
    negatives: int = 10_000  # vertices per seed
    name_bytes: int = 256  # length of an operator id


@dataclass(frozen=True)
class PlanOp:
    """One resolved operator. Fields that do not belong to its kind keep their defaults."""

    id: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    children: tuple[str, ...] = ()  # in topological order
    node_type: str = ""  # SEED
    edge_type: str = ""  # POSITIVE, NEGATIVE
    count: int = 0  # vertices per seed: POSITIVE 1, NEGATIVE as asked
    hop: int = 0  # NEIGHBORHOOD: 1 = neighbours of the seeds
    fan_outs: tuple[tuple[str, int], ...] = ()  # NEIGHBORHOOD: (edge type, count), -1 = all in-neighbours, never 0
    replace: bool = False  # NEIGHBORHOOD
    frontier_all: bool = False  # NEIGHBORHOOD: expand every vertex known so far
    tables: tuple[tuple[str, str], ...] = ()  # FEATURE: (node type, table)


@dataclass(frozen=True)
class Plan:
    """A checked specification: operators in a topological order that depends on the message alone.

    ``ops[0]`` is the seed operator. ``hops`` is the number of neighbourhood operators.
    """

    ops: tuple[PlanOp, ...]
    hops: int
    _by_id: dict[str, PlanOp] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {op.id: op for op in self.ops})

    @property
    def seed(self) -> PlanOp:
        """The seed operator."""
        return self.ops[0]

    def op(self, name: str) -> PlanOp:
        """The operator with this id; KeyError when there is none."""
        return self._by_id[name]

    @property
    def neighborhoods(self) -> tuple[PlanOp, ...]:
        """The neighbourhood operators, hop 1 first."""
        return tuple(op for op in self.ops if op.kind is Kind.NEIGHBORHOOD)

    @property
    def edge_types(self) -> tuple[str, ...]:
        """Every edge type that some hop samples, in order of first use."""
        return tuple(dict.fromkeys(name for op in self.ops for name, _ in op.fan_outs))

    @property
    def tables(self) -> tuple[tuple[str, str], ...]:
        """Every (node type, table) that some feature operator fetches, in order of first use."""
        return tuple(dict.fromkeys(ref for op in self.ops for ref in op.tables))


def neighbor_spec(
    schema: SchemaLike,
    *,
    num_neighbors: FanOuts,
    seed_type: str,
    tables: Mapping[str, Sequence[str]] | None = None,
    replace: bool = False,
    frontier: str = "new",
) -> dag_pb2.DagSpec:
    """Supervised DAG: seed, then per hop the neighbourhood and the features of what it added."""
    raise NotImplementedError


def link_spec(
    schema: SchemaLike,
    *,
    edge_type: EdgeType,
    num_neighbors: FanOuts,
    negatives: int = 1,
    tables: Mapping[str, Sequence[str]] | None = None,
    replace: bool = False,
    frontier: str = "new",
) -> dag_pb2.DagSpec:
    """Unsupervised DAG of ByteGNN: seed, positive and negative branches that share one node space."""
    raise NotImplementedError


def check_spec(spec: dag_pb2.DagSpec, schema: SchemaLike, limits: SpecLimits = SpecLimits()) -> Plan:
    """Check every field of a specification that came over the wire and resolve it."""
    raise NotImplementedError
