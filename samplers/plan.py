"""A checked sampling DAG: the operators of a ``DagSpec`` message, resolved to a frozen ``Plan`` (ByteGNN §4.2).

The daemon trusts nothing that arrives: ``check_spec`` names the operator and the cause of every fault. What passes is a
tree of plain values that ``atta.samplers.dag`` instantiates once per batch.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol

from atta.errors import ConfigError, UnknownNameError
from atta.protos.v1 import dag_pb2
from atta.samplers.methods import Method
from atta.samplers.negatives import NegativeLinks, Strategy
from atta.samplers.operators.base import Operator
from atta.samplers.operators.registry import make_operator

__all__ = ["Kind", "Plan", "PlanOp", "SchemaLike", "SpecLimits", "check_fan_out", "check_spec"]

SPEC_VERSION = 1


class Kind(enum.Enum):
    """What an operator or a physical task does: ByteGNN's five operators, whole batches, and two kinds that exist as
    tasks only."""

    SEED = "seed"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEIGHBORHOOD = "neighborhood"
    FEATURE = "feature"
    BATCH = "batch"
    JOIN = "join"
    END = "end"


METHODS = {
    Method.UNIFORM: dag_pb2.METHOD_UNIFORM,
    Method.WEIGHTED: dag_pb2.METHOD_WEIGHTED,
    Method.TEMPORAL: dag_pb2.METHOD_TEMPORAL,
    Method.LAST: dag_pb2.METHOD_LAST,
    Method.LABOR: dag_pb2.METHOD_LABOR,
}
STRATEGIES = {
    Strategy.UNIFORM: dag_pb2.NegativeLinks.UNIFORM,
    Strategy.DEGREE: dag_pb2.NegativeLinks.DEGREE,
    Strategy.IN_BATCH: dag_pb2.NegativeLinks.IN_BATCH,
    Strategy.EXACT: dag_pb2.NegativeLinks.EXACT,
}
FRONTIERS = {"new": dag_pb2.FRONTIER_NEW, "all": dag_pb2.FRONTIER_ALL}
ALLOWED_INPUTS = {
    Kind.POSITIVE: (Kind.SEED,),
    Kind.NEGATIVE: (Kind.SEED,),
    Kind.NEIGHBORHOOD: (Kind.SEED, Kind.POSITIVE, Kind.NEGATIVE, Kind.NEIGHBORHOOD),
    Kind.FEATURE: (Kind.SEED, Kind.POSITIVE, Kind.NEGATIVE, Kind.NEIGHBORHOOD, Kind.BATCH),
    Kind.BATCH: (Kind.SEED,),
}


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

    @property
    def edge_tables(self) -> Mapping[str, Iterable[str]]:
        """Table names by edge type."""

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        """Node types of source and destination of an edge type."""


@dataclass(frozen=True)
class SpecLimits:
    """Bounds on what a client may ask for; a daemon checks them before it does any work."""

    operators: int = 64
    hops: int = 16
    fan_out: int = 100_000  # neighbours per vertex and edge type
    negatives: int = 10_000  # vertices per seed
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
    edge_type: str = ""  # POSITIVE, NEGATIVE, BATCH; SEED whose seeds are edges
    count: int = 0  # vertices per seed: POSITIVE 1, NEGATIVE as asked
    hop: int = 0  # NEIGHBORHOOD: 1 = neighbours of the seeds
    fan_outs: tuple[tuple[str, int], ...] = ()  # NEIGHBORHOOD: (edge type, count), -1 = all in-neighbours, never 0
    replace: bool = False  # NEIGHBORHOOD
    method: Method = Method.UNIFORM  # NEIGHBORHOOD
    frontier_all: bool = False  # NEIGHBORHOOD: expand every vertex known so far
    tables: tuple[tuple[str, str], ...] = ()  # FEATURE: (node type, table)
    negatives: NegativeLinks | None = None  # NEGATIVE where the seeds are edges
    options: str = ""  # BATCH: what its operator was made from
    operator: Operator | None = field(default=None, compare=False)  # BATCH


@dataclass(frozen=True)
class Plan:
    """A checked specification: operators in a topological order that depends on the message alone.

    ``ops[0]`` is the seed operator. ``hops`` is the number of operators that sample edges. ``disjoint``: every seed grows a tree of
    its own. ``edge_tables``: (edge type, table) whose rows come with the sampled edges.
    """

    ops: tuple[PlanOp, ...]
    hops: int
    disjoint: bool = False
    edge_tables: tuple[tuple[str, str], ...] = ()
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
        """Every edge type that some hop samples, by name: vertices of one hop are numbered in this order."""
        found = [[op.edge_type] if op.kind is Kind.BATCH else [name for name, _ in op.fan_outs] for op in self.ops]
        return tuple(sorted({name for names in found for name in names}))

    @property
    def links(self) -> bool:
        """Whether the seeds are edges."""
        return bool(self.seed.edge_type)

    @property
    def temporal(self) -> bool:
        """Whether seeds have times."""
        return any(op.method.temporal for op in self.ops)

    def tables_of(self, edge_type: str) -> tuple[str, ...]:
        """Names of the tables that come with the edges of one type."""
        return tuple(name for owner, name in self.edge_tables if owner == edge_type)

    @property
    def tables(self) -> tuple[tuple[str, str], ...]:
        """Every (node type, table) that some feature operator fetches, in order of first use."""
        return tuple(dict.fromkeys(ref for op in self.ops for ref in op.tables))


def check_fan_out(where: str, edge_type: str, count: object, bound: int) -> None:
    """Raise ConfigError unless ``count`` is an integer in -1..bound; ``where`` opens the message."""
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise ConfigError(f"{where}: fan-out {count!r} of edge type {edge_type!r} is not an integer")
    if not -1 <= int(count) <= bound:
        raise ConfigError(
            f"{where}: fan-out {count} of edge type {edge_type!r} must lie in -1..{bound} (-1 = all, 0 = skip)"
        )


def check_spec(spec: dag_pb2.DagSpec, schema: SchemaLike, limits: SpecLimits = DEFAULT_LIMITS) -> Plan:
    """Check a specification that came over the wire against the dataset's schema and resolve it.

    Raises UnknownNameError for node types, edge types, tables and inputs that do not exist, ConfigError for everything
    else; the message names the operator and the cause.
    """
    if spec.version != SPEC_VERSION:
        raise ConfigError(f"DAG specification has version {spec.version}, this daemon understands {SPEC_VERSION}")
    if len(spec.operators) > limits.operators:
        raise ConfigError(
            f"DAG specification has {len(spec.operators)} operators, at most {limits.operators} are allowed"
        )
    ops: dict[str, PlanOp] = {}
    for message in spec.operators:
        op = _resolve(message, schema, limits)
        if op.id in ops:
            raise ConfigError(f"operator {op.id!r}: the id is used twice")
        ops[op.id] = op
    seeds = [op.id for op in ops.values() if op.kind is Kind.SEED]
    if len(seeds) != 1:
        raise ConfigError(f"DAG specification has {len(seeds)} seed operators {seeds}, exactly one is needed")
    for op in ops.values():
        _check_inputs(op, ops)
    order = _topological(ops)
    _check_hops(ops, limits)
    _check_pairs(ops, schema)
    _check_features(ops, schema)
    children = {name: tuple(child for child in order if name in ops[child].inputs) for name in order}
    resolved = tuple(dataclasses.replace(ops[name], children=children[name]) for name in order)
    hops = sum(op.kind in (Kind.NEIGHBORHOOD, Kind.BATCH) for op in resolved)
    trees = any(getattr(op.operator, "makes_trees", False) for op in resolved)
    plan = Plan(resolved, hops, spec.disjoint or trees, tuple((ref.edge_type, ref.name) for ref in spec.edge_tables))
    _check_plan(plan, schema)
    return plan


def _resolve(message: dag_pb2.Operator, schema: SchemaLike, limits: SpecLimits) -> PlanOp:
    """One operator by itself: its id, its kind, its own fields."""
    name = message.id
    if not name or len(name) > limits.name_length:
        raise ConfigError(f"operator {name[:32]!r}: the id must have 1..{limits.name_length} characters")
    which = message.WhichOneof("kind")
    if which is None:
        raise ConfigError(f"operator {name!r}: it has no kind, or one that this daemon does not know")
    op = PlanOp(name, Kind(which), tuple(message.inputs))
    if which == "seed":
        _check_node_type(name, message.seed.node_type, schema)
        if message.seed.links:
            _check_edge_type(name, message.seed.links, schema)
        return dataclasses.replace(op, node_type=message.seed.node_type, edge_type=message.seed.links)
    if which == "positive":
        _check_edge_type(name, message.positive.edge_type, schema)
        return dataclasses.replace(op, edge_type=message.positive.edge_type, count=1)
    if which == "negative":
        _check_edge_type(name, message.negative.edge_type, schema)
        if message.negative.HasField("links"):
            return _resolve_negative_links(op, message.negative, limits)
        count = message.negative.count
        if not 1 <= count <= limits.negatives:
            raise ConfigError(f"operator {name!r}: count is {count}, must lie in 1..{limits.negatives}")
        return dataclasses.replace(op, edge_type=message.negative.edge_type, count=count)
    if which == "neighborhood":
        return _resolve_neighborhood(op, message.neighborhood, schema, limits)
    if which == "batch":
        return _resolve_batch(op, message.batch, schema)
    return _resolve_feature(op, message.feature, schema)


def _resolve_negative_links(op: PlanOp, message: dag_pb2.NegativeOp, limits: SpecLimits) -> PlanOp:
    links = message.links
    if not 0 < links.amount <= limits.negatives:
        raise ConfigError(
            f"operator {op.id!r}: amount is {links.amount:g}, must lie above 0 and be at most {limits.negatives}"
        )
    if links.triplet and links.amount != int(links.amount):
        raise ConfigError(f"operator {op.id!r}: amount is {links.amount:g}, triplets need a whole number")
    strategies = {number: strategy for strategy, number in STRATEGIES.items()}
    if links.strategy not in strategies:
        raise ConfigError(f"operator {op.id!r}: unknown strategy {links.strategy}")
    negatives = NegativeLinks(links.triplet, links.amount, strategies[links.strategy])
    return dataclasses.replace(op, edge_type=message.edge_type, count=1, negatives=negatives)


def _resolve_batch(op: PlanOp, message: dag_pb2.BatchOp, schema: SchemaLike) -> PlanOp:
    _check_edge_type(op.id, message.edge_type, schema)
    source, target = schema.endpoints(message.edge_type)
    if source != target:
        raise ConfigError(f"operator {op.id!r}: edge type {message.edge_type!r} does not stay within one node type")
    made = make_operator(message.name, message.options)
    return dataclasses.replace(
        op, edge_type=message.edge_type, options=f"{message.name} {message.options}", operator=made
    )


def _resolve_neighborhood(
    op: PlanOp, message: dag_pb2.NeighborhoodOp, schema: SchemaLike, limits: SpecLimits
) -> PlanOp:
    fan_outs: dict[str, int] = {}
    for fan_out in message.fan_outs:
        _check_edge_type(op.id, fan_out.edge_type, schema)
        if fan_out.edge_type in fan_outs:
            raise ConfigError(f"operator {op.id!r}: two fan-outs for edge type {fan_out.edge_type!r}")
        check_fan_out(f"operator {op.id!r}", fan_out.edge_type, fan_out.count, limits.fan_out)
        fan_outs[fan_out.edge_type] = fan_out.count
    methods = {number: method for method, number in METHODS.items()}
    if message.method not in methods:
        raise ConfigError(f"operator {op.id!r}: unknown method {message.method}")
    method = methods[message.method]
    if method is Method.WEIGHTED:
        for name in fan_outs:
            if "weight" not in schema.edge_tables.get(name, ()):
                raise ConfigError(f"operator {op.id!r}: edge type {name!r} has no weights to draw by")
    if message.replace and method in (Method.LAST, Method.LABOR):
        raise ConfigError(f"operator {op.id!r}: method {method.value!r} draws no edge twice, so it cannot replace")
    if message.frontier not in FRONTIERS.values():
        raise ConfigError(f"operator {op.id!r}: unknown frontier {message.frontier}")
    return dataclasses.replace(
        op,
        hop=message.hop,
        fan_outs=tuple((name, count) for name, count in fan_outs.items() if count != 0),
        replace=message.replace,
        method=method,
        frontier_all=message.frontier == dag_pb2.FRONTIER_ALL,
    )


def _resolve_feature(op: PlanOp, message: dag_pb2.FeatureOp, schema: SchemaLike) -> PlanOp:
    refs = [(ref.node_type, ref.name) for ref in message.tables]
    if not refs:
        raise ConfigError(f"operator {op.id!r}: it fetches no table")
    for node_type, table in refs:
        _check_node_type(op.id, node_type, schema)
        known = list(schema.node_tables.get(node_type, ()))
        if table not in known:
            raise UnknownNameError.of(f"table (operator {op.id!r}, node type {node_type!r})", table, known)
    if len(set(refs)) < len(refs):
        raise ConfigError(f"operator {op.id!r}: it fetches a table twice")
    return dataclasses.replace(op, tables=tuple(refs))


def _check_node_type(op: str, name: str, schema: SchemaLike) -> None:
    if name not in schema.node_types:
        raise UnknownNameError.of(f"node type (operator {op!r})", name, schema.node_types)


def _check_edge_type(op: str, name: str, schema: SchemaLike) -> None:
    if name not in schema.edge_types:
        raise UnknownNameError.of(f"edge type (operator {op!r})", name, schema.edge_types)


def _check_inputs(op: PlanOp, ops: Mapping[str, PlanOp]) -> None:
    """Every input exists, and their number and kinds fit the operator."""
    for source in op.inputs:
        if source not in ops:
            raise UnknownNameError.of(f"input (operator {op.id!r})", source, ops)
    if len(set(op.inputs)) < len(op.inputs):
        raise ConfigError(f"operator {op.id!r}: it names an input twice")
    if op.kind is Kind.SEED:
        if op.inputs:
            raise ConfigError(f"operator {op.id!r}: a seed operator has no inputs")
        return
    allowed = ALLOWED_INPUTS[op.kind]
    for source in op.inputs:
        if ops[source].kind not in allowed:
            names = ", ".join(kind.value for kind in allowed)
            raise ConfigError(
                f"operator {op.id!r}: input {source!r} is a {ops[source].kind.value} operator, allowed: {names}"
            )
    if not op.inputs:
        raise ConfigError(f"operator {op.id!r}: it has no inputs, so the seeds never reach it")
    several = op.kind is Kind.NEIGHBORHOOD and op.hop == 1
    if len(op.inputs) > 1 and not several:
        raise ConfigError(f"operator {op.id!r}: it has {len(op.inputs)} inputs, must have one")


def _topological(ops: Mapping[str, PlanOp]) -> list[str]:
    """Ids in topological order; among several that could come next, the one named first in the message."""
    position = {name: index for index, name in enumerate(ops)}
    names = list(ops)
    missing = {name: len(op.inputs) for name, op in ops.items()}
    ready = [position[name] for name, count in missing.items() if count == 0]
    order: list[str] = []
    while ready:
        done = names[heapq.heappop(ready)]
        order.append(done)
        for name, op in ops.items():
            if done in op.inputs:
                missing[name] -= 1
                if missing[name] == 0:
                    heapq.heappush(ready, position[name])
    if len(order) < len(ops):
        stuck = sorted(set(names) - set(order))
        raise ConfigError(f"operator {stuck[0]!r}: it lies on or behind a cycle ({', '.join(stuck)})")
    return order


def _check_hops(ops: Mapping[str, PlanOp], limits: SpecLimits) -> None:
    """One neighbourhood operator per hop, each fed by the hop before."""
    hops = sorted((op for op in ops.values() if op.kind is Kind.NEIGHBORHOOD), key=lambda op: op.hop)
    if len(hops) > limits.hops:
        raise ConfigError(f"DAG specification has {len(hops)} hops, at most {limits.hops} are allowed")
    for expected, op in enumerate(hops, start=1):
        if op.hop != expected:
            raise ConfigError(
                f"operator {op.id!r}: hop {op.hop} where hop {expected} is due; hops count 1, 2, ... once each"
            )
        for source in op.inputs:
            before = ops[source]
            if (before.hop if before.kind is Kind.NEIGHBORHOOD else 0) != op.hop - 1:
                raise ConfigError(f"operator {op.id!r}: input {source!r} is not of hop {op.hop - 1}")


def _check_pairs(ops: Mapping[str, PlanOp], schema: SchemaLike) -> None:
    """Positive and negative partners are drawn for destinations of their edge type."""
    for op in ops.values():
        if op.kind not in (Kind.POSITIVE, Kind.NEGATIVE):
            continue
        target, seed_type = schema.endpoints(op.edge_type)[1], ops[op.inputs[0]].node_type
        if ops[op.inputs[0]].edge_type or op.negatives is not None:
            _check_links(op, ops[op.inputs[0]])
        elif target != seed_type:
            raise ConfigError(
                f"operator {op.id!r}: edge type {op.edge_type!r} ends at {target!r}, but the seeds are {seed_type!r}"
            )


def _check_links(op: PlanOp, seed: PlanOp) -> None:
    """Where the seeds are edges, negative samples are edges of the same type; nowhere else."""
    if op.negatives is None:
        raise ConfigError(f"operator {op.id!r}: the seeds are edges, it draws partners of vertices")
    if op.edge_type != seed.edge_type:
        raise ConfigError(f"operator {op.id!r}: the seeds are {seed.edge_type or 'vertices'!r}, not {op.edge_type!r}")


def _check_plan(plan: Plan, schema: SchemaLike) -> None:
    """What concerns the specification as a whole."""
    if plan.links and plan.seed.node_type != schema.endpoints(plan.seed.edge_type)[1]:
        raise ConfigError(f"seed operator: edges of type {plan.seed.edge_type!r} do not end at {plan.seed.node_type!r}")
    timed = [e for e in schema.edge_types if "time" in schema.edge_tables.get(e, ())]
    if plan.temporal and not timed:
        raise ConfigError("temporal sampling: no edge type has times (edge table 'time')")
    if plan.temporal and not plan.disjoint:
        raise ConfigError("temporal sampling: every seed has its own time, so trees must be disjoint")
    if plan.disjoint and any(op.kind is Kind.POSITIVE for op in plan.ops):
        raise ConfigError("disjoint trees: not with positive samples of vertices, which belong to no seed of their own")
    if plan.disjoint and any(op.kind is Kind.NEGATIVE and op.negatives is None for op in plan.ops):
        raise ConfigError("disjoint trees: not with negative samples of vertices, which belong to no seed of their own")
    if plan.disjoint and any(op.operator and not getattr(op.operator, "makes_trees", False) for op in plan.ops):
        raise ConfigError("disjoint trees: the batch operator makes none")
    if any(op.kind is Kind.BATCH for op in plan.ops) and (plan.neighborhoods or plan.links or plan.edge_tables):
        raise ConfigError("a batch operator samples everything: no hops, links or edge tables beside it")
    for edge_type, name in plan.edge_tables:
        if edge_type not in schema.edge_types:
            raise UnknownNameError.of("edge type (edge tables)", edge_type, schema.edge_types)
        if name not in (known := list(schema.edge_tables.get(edge_type, ()))):
            raise UnknownNameError.of(f"table of edge type {edge_type!r}", name, known)
    if len(set(plan.edge_tables)) < len(plan.edge_tables):
        raise ConfigError("an edge table is asked for twice")


def _check_features(ops: Mapping[str, PlanOp], schema: SchemaLike) -> None:
    """A table that is fetched at all is fetched once for every operator that can add vertices of its type.

    Otherwise a batch would hold rows that nobody filled.
    """
    fetched = Counter(
        (op.inputs[0], node_type, table)
        for op in ops.values()
        if op.kind is Kind.FEATURE
        for node_type, table in op.tables
    )
    for (source, node_type, table), times in fetched.items():
        if times > 1:
            raise ConfigError(f"operator {source!r}: table {table!r} of {node_type!r} is fetched for it {times} times")
    wanted = {(node_type, table) for _, node_type, table in fetched}
    for op in ops.values():
        for node_type, table in sorted(wanted):
            if node_type in _adds(op, schema) and (op.id, node_type, table) not in fetched:
                raise ConfigError(
                    f"operator {op.id!r}: it adds {node_type!r} vertices, but nothing fetches their {table!r}"
                )


def _adds(op: PlanOp, schema: SchemaLike) -> set[str]:
    """Node types of the vertices that an operator can add to the batch."""
    if op.kind is Kind.SEED:
        return {op.node_type, *(schema.endpoints(op.edge_type) if op.edge_type else ())}
    if op.negatives is not None:
        return set(schema.endpoints(op.edge_type))
    if op.kind is Kind.BATCH:
        return {schema.endpoints(op.edge_type)[0]}
    if op.kind in (Kind.POSITIVE, Kind.NEGATIVE):
        return {schema.endpoints(op.edge_type)[0]}
    return {schema.endpoints(name)[0] for name, _ in op.fan_outs}
