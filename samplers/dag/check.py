"""Check whether a ``DagSpec`` message, which the daemon does not trust, describes a DAG that can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from atta.errors import ConfigError, known_name
from atta.partition.schema import Schema
from atta.protos.v1 import dag_pb2
from atta.samplers.dag.plan import (
    DEFAULT_LIMITS,
    EdgeNorm,
    EdgeUse,
    EdgeWeights,
    Kind,
    Plan,
    PlanOp,
    Reduce,
    SpecLimits,
    resolve,
)

SPEC_VERSION = 1
"""The version of specifications that every daemon understands, and the one that may use all fields."""
_GROWING = (Kind.SEED, Kind.POSITIVE, Kind.NEGATIVE, Kind.NEIGHBORHOOD, Kind.BATCH)
_INPUTS = {Kind.NEIGHBORHOOD: _GROWING, Kind.FEATURE: _GROWING}
"""Kinds of inputs; of other operators: the seeds."""
_ALONE = {Kind.POSITIVE, Kind.NEGATIVE, Kind.BATCH}
"""Operators that take seeds of one type."""


def check_spec(spec: dag_pb2.DagSpec, schema: Schema, limits: SpecLimits = DEFAULT_LIMITS) -> Plan:
    """Check a specification that came over the wire against the dataset's schema and resolve it. Raises
    UnknownNameError for node types, edge types, tables and inputs that do not exist, and ConfigError for every other
    fault. The message names the operator and the cause."""
    if spec.version != SPEC_VERSION:
        raise ConfigError(f"DAG specification has version {spec.version}, this daemon understands {SPEC_VERSION}")
    if len(spec.operators) > limits.operators:
        raise ConfigError(f"DAG specification has {len(spec.operators)} operators, at most {limits.operators}")
    if spec.dependency > limits.dependency:
        raise ConfigError(f"dependency: {spec.dependency} batches, at most {limits.dependency} are allowed")
    ops: dict[str, PlanOp] = {}
    for message in spec.operators:
        op = resolve(message, schema, limits)
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
    resolved = tuple(replace(ops[name], children=children[name]) for name in order)
    hops = sum(op.kind in (Kind.NEIGHBORHOOD, Kind.BATCH) for op in resolved)
    trees = any(getattr(op.operator, "makes_trees", False) for op in resolved)
    tables = tuple((ref.edge_type, ref.name) for ref in spec.edge_tables)
    plan = Plan(
        resolved,
        hops,
        spec.disjoint or trees,
        tables,
        tuple(map(EdgeWeights.of, spec.edge_weights)),
        max(1, spec.dependency),
    )
    _check_plan(plan, schema)
    return plan


def _check_inputs(op: PlanOp, ops: Mapping[str, PlanOp]) -> None:
    for source in op.inputs:
        known_name(f"input (operator {op.id!r})", source, ops)
    if len(set(op.inputs)) < len(op.inputs):
        raise ConfigError(f"operator {op.id!r}: it names an input twice")
    if op.kind is Kind.SEED:
        if op.inputs:
            raise ConfigError(f"operator {op.id!r}: a seed operator has no inputs")
        return
    allowed = _INPUTS.get(op.kind, (Kind.SEED,))
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
    """Ids in topological order. If several could come next, the first one in the message does."""
    order: dict[str, None] = {}
    while len(order) < len(ops):
        name = next((n for n, op in ops.items() if n not in order and order.keys() >= {*op.inputs}), None)
        if name is None:
            stuck = sorted(ops.keys() - order.keys())
            raise ConfigError(f"operator {stuck[0]!r}: it lies on or behind a cycle ({', '.join(stuck)})")
        order[name] = None
    return list(order)


def _check_hops(ops: Mapping[str, PlanOp], limits: SpecLimits) -> None:
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


def _check_pairs(ops: Mapping[str, PlanOp], schema: Schema) -> None:
    """Positive and negative samplers get destinations of their edge type as input."""
    for op in ops.values():
        if op.kind not in (Kind.POSITIVE, Kind.NEGATIVE):
            continue
        target, seed = schema.endpoints(op.edge_type)[1], ops[op.inputs[0]]
        links = bool(seed.edge_type) or op.negatives is not None  # then the samples are edges of the seeds' type
        if links and op.negatives is None:
            raise ConfigError(f"operator {op.id!r}: the seeds are edges, it draws partners of vertices")
        if links and op.edge_type != seed.edge_type:
            kind = seed.edge_type or "vertices"
            raise ConfigError(f"operator {op.id!r}: the seeds are {kind!r}, not {op.edge_type!r}")
        if not links and target != seed.node_type:
            raise ConfigError(
                f"operator {op.id!r}: edge type {op.edge_type!r} ends at {target!r}, but the seeds are {seed.node_type!r}"
            )


def _check_plan(plan: Plan, schema: Schema) -> None:
    if plan.links and plan.seed.node_type != schema.endpoints(plan.seed.edge_type)[1]:
        raise ConfigError(f"seed operator: edges of type {plan.seed.edge_type!r} do not end at {plan.seed.node_type!r}")
    tables = [*schema.edge_tables.values(), *schema.node_tables.values()]
    if plan.temporal and not any("time" in of_type for of_type in tables):
        raise ConfigError("temporal sampling: no edge type and no node type has times (table 'time')")
    if plan.temporal and not plan.disjoint:
        raise ConfigError("temporal sampling: every seed has its own time, so trees must be disjoint")
    for op in plan.ops if plan.disjoint else ():
        if op.kind in (Kind.POSITIVE, Kind.NEGATIVE) and op.negatives is None:
            raise ConfigError(
                f"disjoint trees: not with {op.kind.value} samples of vertices, which belong to no seed of their own"
            )
    if plan.disjoint and any(op.operator and not getattr(op.operator, "makes_trees", False) for op in plan.ops):
        raise ConfigError("disjoint trees: the batch operator makes none")
    whole = any(op.kind is Kind.BATCH for op in plan.ops)
    if whole and (plan.links or any(op.use is not EdgeUse.ROWS for op in plan.neighborhoods)):
        raise ConfigError("a batch operator samples everything: no hops or links beside it")
    if whole and bool(plan.edge_tables) != bool(plan.neighborhoods):
        raise ConfigError("a batch operator has edge tables with a hop that copies their rows, and else none")
    _check_uses(plan)
    for edge_type, name in plan.edge_tables:
        known_name("edge type (edge tables)", edge_type, schema.edge_types)
        known_name(f"table of edge type {edge_type!r}", name, schema.edge_tables.get(edge_type, ()))
    if len(set(plan.edge_tables)) < len(plan.edge_tables):
        raise ConfigError("an edge table is asked for twice")
    _check_weights(plan, schema)
    _check_sums(plan, schema)


def _check_sums(plan: Plan, schema: Schema) -> None:
    """Only rows of the last hop are summed: those of other vertices are what a model's own layers need."""
    if (op := plan.summed) is None:
        return
    if (
        sum(bool(other.reduce) for other in plan.ops) > 1
        or not plan.neighborhoods
        or plan.neighborhoods[-1].id != op.inputs[0]
    ):
        raise ConfigError("aggregate: of the rows of the last hop, and of those alone")
    if any(hop.use is not EdgeUse.JOIN for hop in plan.neighborhoods):
        raise ConfigError("aggregate: only along drawn edges (subgraph_type='directional')")
    if op.reduce is Reduce.GCN and any(weights.norm is not EdgeNorm.GCN for weights in plan.edge_weights):
        raise ConfigError(
            "aggregate='gcn': edges that have weights need edge_norm='gcn'; or take 'sum', which adds as they weigh"
        )
    for edge_type, _ in plan.sums(schema) if op.reduce is Reduce.GCN else ():
        source, target = schema.endpoints(edge_type)
        if source != target:
            raise ConfigError(
                f"aggregate='gcn': edges of {edge_type} lead from {source!r} to {target!r}, and a GCN's vertices have edges "
                "to themselves; take 'mean' or 'sum'"
            )


def _check_weights(plan: Plan, schema: Schema) -> None:
    """Edges have weights where degrees of the graph say what they weigh."""
    types = [weights.edge_type for weights in plan.edge_weights]
    if len({*types}) < len(types):
        raise ConfigError("edge_norm: edges of a type are weighed twice")
    for weights in plan.edge_weights:
        known_name("edge type (edge_norm)", weights.edge_type, schema.edge_types)
        source, target = schema.endpoints(weights.edge_type)
        if weights.loops and source != target:
            raise ConfigError(
                f"edge_norm 'gcn': edges of {weights.edge_type} lead from {source!r} to {target!r}, and a GCN's vertices "
                "have edges to themselves; give a norm by edge type, or 'row' or 'both'"
            )
    uses = {op.use for op in plan.neighborhoods}
    if types and (uses & {EdgeUse.BUDGET, EdgeUse.ROWS} or any(op.kind is Kind.BATCH for op in plan.ops)):
        raise ConfigError("edge_norm, unbiased: only where edges are drawn hop by hop, or induced by vertices so drawn")
    for weights in plan.edge_weights:
        if plan.temporal and weights.norm is not EdgeNorm.NONE:
            raise ConfigError(
                f"edge_norm {weights.norm.value!r}: not with times, as degrees count the edges that are hidden from a seed, too; "
                "unbiased=True alone counts those that are not"
            )
        if weights.summed and "weight" not in schema.edge_tables.get(weights.edge_type, ()):
            raise ConfigError(f"norm_attr: edges of {weights.edge_type} have no table 'weight'")
        if weights.summed and weights.norm is EdgeNorm.BOTH:
            raise ConfigError(
                "norm_attr: not with edge_norm 'both', as sums of weights are kept of in-edges and not of out-edges"
            )
    if any(weights.unbiased for weights in plan.edge_weights):
        _check_unbiased(plan)


def _check_unbiased(plan: Plan) -> None:
    for op in plan.neighborhoods:
        if op.use is not EdgeUse.JOIN:
            raise ConfigError("unbiased: only for drawn edges (subgraph_type='directional'), not for induced ones")
        rules = op.method.rules
        if rules.deterministic and any(count >= 0 for _, count in op.fan_outs):
            raise ConfigError(
                f"unbiased: method {op.method.value!r} takes the same edges each time, so no weight of theirs makes up for "
                "the others, which never come"
            )
        if not rules.deterministic and rules.weigh_vertices is None and rules.weigh_edges is None:
            raise ConfigError(f"unbiased: the edges that method {op.method.value!r} takes do not stand for the others")
        if rules.weigh_edges is not None and op.by not in ("", rules.table):
            raise ConfigError(
                f"unbiased: only with weight_attr={rules.table!r}, as sums of {op.by!r} over the edges of a vertex are not kept"
            )


def _check_uses(plan: Plan) -> None:
    """Hops whose edges do not just join, and seeds of several types, come where they make sense."""
    if plan.seed.others and (plan.links or plan.temporal or any(op.kind in _ALONE for op in plan.ops)):
        raise ConfigError("seeds of several types: with hops alone, and without times")
    uses = [op.use for op in plan.neighborhoods]
    if EdgeUse.ROWS in uses and (len(uses) > 1 or not any(op.kind is Kind.BATCH for op in plan.ops)):
        raise ConfigError("rows of edge tables are copied once, after a batch operator")
    drawn = {(name, count) for op in plan.neighborhoods if op.use is EdgeUse.ROWS for name, count in op.fan_outs}
    chosen = {(op.edge_type, -1) for op in plan.ops if op.kind is Kind.BATCH}
    if EdgeUse.ROWS in uses and (drawn != chosen or {name for name, _ in plan.edge_tables} != {e for e, _ in chosen}):
        raise ConfigError("rows of edge tables are those of the batch operator's edge type, and all its edges are read")
    if EdgeUse.WITHIN in uses[:-1]:
        raise ConfigError("edges among the vertices of the batch are the last that it gets")
    if EdgeUse.BUDGET in uses and (uses[-1] is not EdgeUse.WITHIN or {*uses[:-1]} != {EdgeUse.BUDGET}):
        raise ConfigError("budgets: every hop has one, and then come the edges among the vertices of the batch")
    if EdgeUse.BUDGET in uses and plan.disjoint:
        raise ConfigError("budgets: all seeds share them, so trees are not disjoint")
    for op in plan.neighborhoods:
        if op.use in (EdgeUse.WITHIN, EdgeUse.ROWS) and not op.frontier_all:
            raise ConfigError(f"operator {op.id!r}: its edges are those of all vertices, frontier 'all'")


def _check_features(ops: Mapping[str, PlanOp], schema: Schema) -> None:
    """Either every operator that can add vertices of a table's type has its rows fetched, once, or only the seeds do.
    The seeds are the first rows of a table. Otherwise a batch would hold rows that nothing has filled."""
    fetched = Counter(
        (op.inputs[0], node_type, table)
        for op in ops.values()
        if op.kind is Kind.FEATURE
        for node_type, table in op.tables
    )
    for (source, node_type, table), times in fetched.items():
        if times > 1:
            raise ConfigError(f"operator {source!r}: table {table!r} of {node_type!r} is fetched for it {times} times")
    seeds = {op.id for op in ops.values() if op.kind is Kind.SEED}
    summed = {op.inputs[0] for op in ops.values() if op.reduce}
    wanted = {(node_type, table) for source, node_type, table in fetched if source not in seeds | summed}
    for op in ops.values():
        for node_type, table in sorted(wanted):
            if op.id not in summed and node_type in _adds(op, schema) and (op.id, node_type, table) not in fetched:
                raise ConfigError(f"operator {op.id!r}: adds {node_type!r} vertices; nothing fetches their {table!r}")


def _adds(op: PlanOp, schema: Schema) -> set[str]:
    if op.kind is Kind.SEED:
        return {op.node_type, *op.others, *(schema.endpoints(op.edge_type) if op.edge_type else ())}
    if op.negatives is not None:
        return set(schema.endpoints(op.edge_type))
    if op.kind in _ALONE:
        return {schema.endpoints(op.edge_type)[0]}
    if op.use is EdgeUse.BUDGET:
        return {node_type for node_type, _ in op.budgets}
    return {schema.endpoints(name)[0] for name, _ in op.fan_outs} if op.use is EdgeUse.JOIN else set()
