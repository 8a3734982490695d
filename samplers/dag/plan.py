"""A checked sampling DAG (ByteGNN §4.2), which ``check_spec`` makes from a ``DagSpec`` message, and how an operator of
a message becomes one of the plan. ``atta.samplers.dag.instance`` makes one instance of a plan per batch."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from functools import cached_property

from atta.errors import ConfigError, known_name
from atta.partition.schema import Schema
from atta.protos.v1 import dag_pb2
from atta.samplers.arguments import check_fan_out, whole
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy
from atta.samplers.methods import Method
from atta.samplers.operators import make_operator
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


class Reduce(enum.IntEnum):
    """What becomes of the rows of the sources of a vertex' edges; the values are those of the message."""

    NONE = 0
    SUM = 1
    """Their sum, each row times the weight of its edge if edges have weights."""
    MEAN = 2
    """The sum by the number of edges; 0 without edges."""
    GCN = 3
    """What PyG's ``GCNConv`` passes on: the sum if edges have weights, else the one with those that its ``gcn_norm`` gives
    the edges of the batch."""


@dataclass(frozen=True)
class SpecLimits:
    """Bounds on what a client may ask for. A daemon checks them before it does any work."""

    operators: int = 512
    hops: int = 128  # deep models have one hop per layer; GraNNDis trains 112 layers
    fan_out: int = 100_000  # neighbours per vertex and edge type
    negatives: int = 10_000  # vertices per seed
    budget: int = 1 << 24  # vertices per node type and hop
    dependency: int = 1 << 20  # batches
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
    reduce: Reduce = Reduce.NONE  # FEATURE: the rows are summed, and do not come
    negatives: NegativeLinks | None = None  # NEGATIVE if the seeds are edges
    options: str = ""  # BATCH: the options that its operator was made from
    operator: Operator | None = field(default=None, compare=False)  # BATCH


@dataclass(frozen=True)
class Plan:
    """A checked specification. Its operators are in a topological order that depends on the message alone. ``ops[0]``
    is the seed operator. ``hops`` is the number of operators that sample edges. ``disjoint``: every seed grows a tree
    of its own. ``edge_tables``: each (edge type, table) whose rows come with the sampled edges. ``edge_weights``: of
    the edge types whose edges are weighed. ``dependency``: in so many batches each vertex draws its in-edges anew
    once."""

    ops: tuple[PlanOp, ...]
    hops: int
    disjoint: bool = False
    edge_tables: tuple[tuple[str, str], ...] = ()
    edge_weights: tuple[EdgeWeights, ...] = ()
    dependency: int = 1
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
        """Every edge type that some hop samples, by name: the vertices of a hop are numbered in this order."""
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
        """Every (node type, table) of which some feature operator brings rows, in order of first use."""
        return tuple(dict.fromkeys(ref for op in self.ops if not op.reduce for ref in op.tables))

    @cached_property
    def summed(self) -> PlanOp | None:
        """The feature operator whose rows are summed."""
        return next((op for op in self.ops if op.reduce), None)

    def sums(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """Every (edge type, table) of whose sources there are sums, for the targets."""
        if self.summed is None:
            return ()
        known = [ref for ref in self.tables if schema.node_tables[ref[0]][ref[1]].dtype == "<f4"]
        tables = dict.fromkeys([*self.summed.tables, *(ref for ref in known if ref not in self.tables_of_seeds)])
        return tuple((e, name) for e in self.edge_types for t, name in tables if t == schema.endpoints(e)[0])

    @cached_property
    def tables_of_seeds(self) -> frozenset[tuple[str, str]]:
        """The entries of ``tables`` that are fetched for the seeds alone."""
        later = {ref for op in self.ops if op.inputs != (self.seed.id,) for ref in op.tables}
        return frozenset(self.tables) - later


STRATEGIES = {
    NegativeStrategy.UNIFORM: dag_pb2.NegativeLinks.UNIFORM,
    NegativeStrategy.DEGREE: dag_pb2.NegativeLinks.DEGREE,
    NegativeStrategy.IN_BATCH: dag_pb2.NegativeLinks.IN_BATCH,
    NegativeStrategy.EXACT: dag_pb2.NegativeLinks.EXACT,
}
FRONTIERS = {"new": dag_pb2.FRONTIER_NEW, "all": dag_pb2.FRONTIER_ALL}


def resolve(message: dag_pb2.Operator, schema: Schema, limits: SpecLimits) -> PlanOp:
    """Check and resolve one operator without its neighbours in the DAG."""
    name = message.id
    if not name or len(name) > limits.name_length:
        raise ConfigError(f"operator {name[:32]!r}: the id must have 1..{limits.name_length} characters")
    which = message.WhichOneof("kind")
    if which is None:
        raise ConfigError(f"operator {name!r}: it has no kind, or one that this daemon does not know")
    op = PlanOp(name, Kind(which), tuple(message.inputs))
    match which:
        case "seed":
            seed = message.seed
            _check_node_types(name, schema, seed.node_type, *seed.others)
            if seed.links:
                _check_edge_type(name, seed.links, schema)
            others = tuple(dict.fromkeys(seed.others))
            return replace(op, node_type=seed.node_type, edge_type=seed.links, others=others)
        case "positive":
            _check_edge_type(name, message.positive.edge_type, schema)
            return replace(op, edge_type=message.positive.edge_type, count=1)
        case "negative":
            _check_edge_type(name, message.negative.edge_type, schema)
            return _resolve_negative(op, message.negative, limits)
        case "neighborhood":
            return _resolve_neighborhood(op, message.neighborhood, schema, limits)
        case "batch":
            return _resolve_batch(op, message.batch, schema)
    return _resolve_feature(op, message.feature, schema)


def _resolve_negative(op: PlanOp, message: dag_pb2.NegativeOp, limits: SpecLimits) -> PlanOp:
    if not message.HasField("links"):
        count = whole(f"operator {op.id!r}: count", message.count, 1, limits.negatives)
        return replace(op, edge_type=message.edge_type, count=count)
    links = message.links
    if not 0 < links.amount <= limits.negatives:
        raise ConfigError(
            f"operator {op.id!r}: amount is {links.amount:g}, must lie above 0 and be at most {limits.negatives}"
        )
    strategies = {number: strategy for strategy, number in STRATEGIES.items()}
    if links.strategy not in strategies:
        raise ConfigError(f"operator {op.id!r}: unknown strategy {links.strategy}")
    negatives = NegativeLinks(links.triplet, links.amount, strategies[links.strategy])
    return replace(op, edge_type=message.edge_type, count=1, negatives=negatives)


def _resolve_batch(op: PlanOp, message: dag_pb2.BatchOp, schema: Schema) -> PlanOp:
    _check_edge_type(op.id, message.edge_type, schema)
    source, target = schema.endpoints(message.edge_type)
    if source != target:
        raise ConfigError(f"operator {op.id!r}: edge type {message.edge_type!r} does not stay within one node type")
    made = make_operator(message.name, message.options)
    return replace(op, edge_type=message.edge_type, options=f"{message.name} {message.options}", operator=made)


def _resolve_neighborhood(op: PlanOp, message: dag_pb2.NeighborhoodOp, schema: Schema, limits: SpecLimits) -> PlanOp:
    fan_outs: dict[str, int] = {}
    for fan_out in message.fan_outs:
        _check_edge_type(op.id, fan_out.edge_type, schema)
        if fan_out.edge_type in fan_outs:
            raise ConfigError(f"operator {op.id!r}: two fan-outs for edge type {fan_out.edge_type!r}")
        check_fan_out(f"operator {op.id!r}", fan_out.edge_type, fan_out.count, limits.fan_out)
        fan_outs[fan_out.edge_type] = fan_out.count
    method = Method.sent(message.method, message.method_name)
    if message.table and not method.needs_table:
        raise ConfigError(f"operator {op.id!r}: method {method.value!r} draws by no edge table of the user's choice")
    if method.needs_table and method.table is not None:
        for name in fan_outs:
            if (message.table or method.table) not in schema.edge_tables.get(name, ()):
                wanted = f"edge table {message.table!r}" if message.table else f"{method.table}s"
                raise ConfigError(f"operator {op.id!r}: edge type {name!r} has no {wanted} to draw by")
    if message.replace and not method.may_replace:
        raise ConfigError(f"operator {op.id!r}: method {method.value!r} draws no edge twice, so it cannot replace")
    if message.frontier not in FRONTIERS.values():
        raise ConfigError(f"operator {op.id!r}: unknown frontier {message.frontier}")
    if message.use not in {*EdgeUse}:
        raise ConfigError(f"operator {op.id!r}: unknown use of edges {message.use}")
    return replace(
        op,
        use=EdgeUse(message.use),
        budgets=_budgets(op, message, schema, limits),
        hop=message.hop,
        fan_outs=tuple((name, count) for name, count in fan_outs.items() if count != 0),
        replace=message.replace,
        method=method,
        by=message.table,
        frontier_all=message.frontier == dag_pb2.FRONTIER_ALL,
    )


def _budgets(
    op: PlanOp, message: dag_pb2.NeighborhoodOp, schema: Schema, limits: SpecLimits
) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for budget in message.budgets:
        _check_node_types(op.id, schema, budget.node_type)
        if int(message.use) != EdgeUse.BUDGET or budget.node_type in found:
            raise ConfigError(f"operator {op.id!r}: a budget of {budget.node_type!r} that is none, or the second one")
        found[budget.node_type] = whole(f"operator {op.id!r}: budget", budget.count, 0, limits.budget)
    return tuple((name, count) for name, count in found.items() if count)


def _resolve_feature(op: PlanOp, message: dag_pb2.FeatureOp, schema: Schema) -> PlanOp:
    refs = [(ref.node_type, ref.name) for ref in message.tables]
    if not refs:
        raise ConfigError(f"operator {op.id!r}: it fetches no table")
    for node_type, table in refs:
        _check_node_types(op.id, schema, node_type)
        known = list(schema.node_tables.get(node_type, ()))
        known_name(f"table (operator {op.id!r}, node type {node_type!r})", table, known)
    if len(set(refs)) < len(refs):
        raise ConfigError(f"operator {op.id!r}: it fetches a table twice")
    if message.reduce not in {*Reduce}:
        raise ConfigError(f"operator {op.id!r}: unknown reduction {message.reduce}")
    if message.reduce:
        for node_type, table in refs:
            if (dtype := schema.node_tables[node_type][table].dtype) != "<f4":
                raise ConfigError(
                    f"aggregate: table {table!r} of {node_type!r} has rows of {dtype}, sums are of float32 (<f4)"
                )
    return replace(op, tables=tuple(refs), reduce=Reduce(message.reduce))


def _check_node_types(op: str, schema: Schema, *names: str) -> None:
    for name in names:
        known_name(f"node type (operator {op!r})", name, schema.node_types)


def _check_edge_type(op: str, name: str, schema: Schema) -> None:
    known_name(f"edge type (operator {op!r})", name, schema.edge_types)
