"""Check one operator of a ``DagSpec`` message and turn it into a ``PlanOp``: its id, its kind and its own fields."""

from __future__ import annotations

import dataclasses

from atta.errors import ConfigError, UnknownNameError
from atta.protos.v1 import dag_pb2
from atta.samplers.arguments import check_fan_out, whole
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy
from atta.samplers.dag.plan import EdgeUse, Kind, PlanOp, SchemaLike, SpecLimits
from atta.samplers.methods import BY_NUMBER
from atta.samplers.operators.registry import make_operator

STRATEGIES = {
    NegativeStrategy.UNIFORM: dag_pb2.NegativeLinks.UNIFORM,
    NegativeStrategy.DEGREE: dag_pb2.NegativeLinks.DEGREE,
    NegativeStrategy.IN_BATCH: dag_pb2.NegativeLinks.IN_BATCH,
    NegativeStrategy.EXACT: dag_pb2.NegativeLinks.EXACT,
}
FRONTIERS = {"new": dag_pb2.FRONTIER_NEW, "all": dag_pb2.FRONTIER_ALL}


def resolve(message: dag_pb2.Operator, schema: SchemaLike, limits: SpecLimits) -> PlanOp:
    """Check and resolve one operator without its neighbours in the DAG."""
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
        for other in message.seed.others:
            _check_node_type(name, other, schema)
        others = tuple(dict.fromkeys(message.seed.others))
        return dataclasses.replace(op, node_type=message.seed.node_type, edge_type=message.seed.links, others=others)
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
    method = BY_NUMBER.get(message.method)
    if method is None:
        raise ConfigError(f"operator {op.id!r}: unknown method {message.method}")
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
    return dataclasses.replace(
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
    op: PlanOp, message: dag_pb2.NeighborhoodOp, schema: SchemaLike, limits: SpecLimits
) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for budget in message.budgets:
        _check_node_type(op.id, budget.node_type, schema)
        if int(message.use) != EdgeUse.BUDGET or budget.node_type in found:
            raise ConfigError(f"operator {op.id!r}: a budget of {budget.node_type!r} that is none, or the second one")
        found[budget.node_type] = whole(f"operator {op.id!r}: budget", budget.count, 0, limits.budget)
    return tuple((name, count) for name, count in found.items() if count)


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
