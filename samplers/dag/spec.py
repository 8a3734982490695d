"""Build the logical sampling DAG of a mini-batch as a ``DagSpec`` message (ByteGNN §4.2). The daemon checks the message
(``check_spec``) and works with the frozen ``Plan`` from then on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atta.errors import ConfigError, known_name
from atta.partition.names import join_edge_type
from atta.partition.schema import Schema
from atta.protos.v1 import dag_pb2
from atta.samplers.arguments import check_fan_out, fan_outs_of, names, whole
from atta.samplers.batch.negatives import NegativeLinks
from atta.samplers.dag.check import SPEC_VERSION, check_spec
from atta.samplers.dag.plan import FRONTIERS, STRATEGIES, EdgeWeights, Kind, Plan, PlanOp, Reduce, SpecLimits
from atta.samplers.methods import Method

__all__ = ["Kind", "Plan", "PlanOp", "SpecLimits", "check_spec"]

VOTERS = 50
"""At most this many in-neighbours share the vote of a vertex, as in PyG."""

EdgeType = str | tuple[str, str, str]
FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Hops:
    """How neighbourhoods are sampled, hop by hop.

    Attributes:
        num_neighbors: fan-outs from the seeds outward, one per hop; -1 takes all in-neighbours, 0 skips the edge type
            in that hop. A mapping has them for every edge type (``"src__rel__dst"`` or the triple).
        method: how edges are drawn; a temporal method implies ``disjoint``. ``by``: the edge table that a weighted method
            reads; empty: ``weight``.
        frontier: ``"new"`` expands the vertices that the previous hop reached first (PyG), ``"all"`` every known vertex
            (DGL).
        disjoint: every seed grows a tree of its own.
        edge_tables: tables of edge types whose rows come with the sampled edges.
        within: all edges among the sampled vertices take the place of the drawn ones.
        weights: of the edge types whose edges are weighed.
        dependency: in so many batches each vertex draws its in-edges anew once; 1: each batch does.
        reduce: what becomes of the last hop's rows of float32 tables; its rows of others do not come then."""

    num_neighbors: FanOuts
    replace: bool = False
    method: Method = Method.UNIFORM
    frontier: str = "new"
    disjoint: bool = False
    edge_tables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    within: bool = False
    by: str = ""
    weights: Sequence[EdgeWeights] = ()
    dependency: int = 1
    reduce: Reduce = Reduce.NONE


def neighbor_spec(
    schema: Schema,
    hops: Hops,
    *,
    seed_type: str,
    other_types: Sequence[str] = (),
    tables: Mapping[str, Sequence[str]] | None = None,
    seed_tables: Sequence[str] = (),
) -> dag_pb2.DagSpec:
    """Build the supervised DAG: the seeds, then for each hop the neighbourhood and the features of its new vertices.

    tables: tables to fetch, by node type; None: all tables of the schema. seed_tables: tables of ``seed_type`` that are
    fetched for the seeds alone. other_types: further node types of seeds.

    Operators: ``seed``, ``feature0``, then ``nbr1``, ``feature1``, ... Feature operators without tables are left out.
    Raises ConfigError and UnknownNameError."""
    spec = _new_spec(hops)
    seed = spec.operators.add(id="seed").seed
    seed.node_type = seed_type
    seed.others.extend(other_types)
    wanted = _wanted_tables(schema, tables)
    of_seeds = _wanted_tables(schema, {seed_type: seed_tables})[seed_type]
    later = {**wanted, seed_type: [name for name in wanted.get(seed_type, ()) if name not in of_seeds]}
    first = {**later, seed_type: [*later[seed_type], *of_seeds]}
    _add_feature(spec, "feature0", "seed", {seed_type, *other_types}, first)
    _add_hops(spec, schema, ["seed"], hops, later)
    check_spec(spec, schema)
    return spec


def budget_spec(
    schema: Schema,
    num_samples: Sequence[int] | Mapping[str, Sequence[int]],
    *,
    seed_type: str,
    tables: Mapping[str, Sequence[str]] | None = None,
    edge_tables: Mapping[str, Sequence[str]] | None = None,
) -> dag_pb2.DagSpec:
    """Build HGT's DAG (PyG's ``HGTSampler``): in each hop the vertices that joined last give their in-neighbours votes,
    of each edge type one that at most ``VOTERS`` in-neighbours share, and ``num_samples`` vertices of each node type
    join, drawn by the squares of their votes. Then come the edges among the vertices, at most ``VOTERS`` per vertex and
    type. num_samples: by hop for every node type, or by node type and hop. Raises ConfigError and UnknownNameError."""
    given = num_samples if isinstance(num_samples, Mapping) else dict.fromkeys(schema.node_types, num_samples)
    counts = {t: fan_outs_of(given.get(t, ())) for t in schema.node_types}
    for node_type in given:
        known_name("node type (num_samples)", node_type, counts)
    if missing := [t for t in counts if t not in given]:
        raise ConfigError(f"num_samples has no numbers for node type {missing[0]!r} (give 0s to leave it out)")
    if len({len(of_type) for of_type in counts.values()}) != 1:
        raise ConfigError("num_samples has lists of different lengths: one number per hop is needed")
    spec = _new_spec(Hops([], edge_tables=edge_tables or {}))
    spec.operators.add(id="seed").seed.node_type = seed_type
    wanted = _wanted_tables(schema, tables)
    _add_feature(spec, "feature0", "seed", {seed_type}, wanted)
    last = "seed"
    for hop in range(1, 1 + len(counts[seed_type])):
        op = spec.operators.add(id=f"nbr{hop}", inputs=[last])
        op.neighborhood.hop, op.neighborhood.use, last = hop, dag_pb2.BUDGET, op.id
        for edge_type in schema.edge_types:
            op.neighborhood.fan_outs.add(edge_type=edge_type, count=VOTERS)
        drawn = {t: whole(f"num_samples of {t!r}", n[hop - 1], 0, SpecLimits.budget) for t, n in counts.items()}
        for node_type, count in drawn.items():
            op.neighborhood.budgets.add(node_type=node_type, count=count)
        _add_feature(spec, f"feature{hop}", op.id, {t for t, count in drawn.items() if count}, wanted)
    _add_within(spec, schema, last, Method.UNIFORM, VOTERS)
    check_spec(spec, schema)
    return spec


def batch_spec(
    schema: Schema,
    name: str,
    options: Mapping[str, object],
    *,
    edge_type: EdgeType | None = None,
    tables: Mapping[str, Sequence[str]] | None = None,
    edge_tables: Sequence[str] = (),
) -> dag_pb2.DagSpec:
    """Build the DAG of a sampler of whole batches: the seeds, the operator ``name`` with its ``options``, features.
    edge_type: the edges that the operator sees; may be left out if there is only one type. edge_tables: its tables
    whose rows come with the edges. Operators of the DAG: ``seed``, ``feature0``, ``sample``, ``feature1``, and ``rows``
    with edge tables. Raises ConfigError and UnknownNameError. ``name`` is looked up where the DAG runs."""
    if edge_type is None and len(schema.edge_types) != 1:
        raise ConfigError(f"edge_type: name one of {', '.join(schema.edge_types)}")
    edges = schema.edge_types[0] if edge_type is None else _known_edge_type(schema, edge_type)
    node_type = schema.endpoints(edges)[1]
    spec = _new_spec(Hops([], edge_tables={edges: edge_tables} if edge_tables else {}))
    spec.operators.add(id="seed").seed.node_type = node_type
    sample = spec.operators.add(id="sample", inputs=["seed"]).batch
    sample.name, sample.options, sample.edge_type = name, _as_json(name, options), edges
    wanted = _wanted_tables(schema, tables)
    _add_feature(spec, "feature0", "seed", {node_type}, wanted)
    _add_feature(spec, "feature1", "sample", {node_type}, wanted)
    if spec.edge_tables:
        rows = spec.operators.add(id="rows", inputs=["sample"]).neighborhood
        rows.hop, rows.use, rows.frontier = 1, dag_pb2.ROWS, dag_pb2.FRONTIER_ALL
        rows.fan_outs.add(edge_type=edges, count=-1)
    return spec


def _as_json(operator: str, options: Mapping[str, object]) -> str:
    """Options as a JSON object; numbers and arrays of numpy become plain numbers and lists."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"operator {operator!r}: options {options!r} must be a mapping from names to values")

    def plain(value: Any) -> object:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise ConfigError(f"operator {operator!r}: {value!r} is not a number, string or list of them")

    try:
        return json.dumps({str(option): value for option, value in options.items()}, default=plain, allow_nan=False)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"operator {operator!r}: its options {dict(options)} hold a number that is none") from None


def pair_spec(
    schema: Schema,
    hops: Hops,
    *,
    edge_type: EdgeType,
    negatives: int = 1,
    tables: Mapping[str, Sequence[str]] | None = None,
) -> dag_pb2.DagSpec:
    """Build ByteGNN's unsupervised DAG: one positive and ``negatives`` negative partners per seed, and hops over all
    three. The seeds are destinations of ``edge_type``, their partners are sources. The branches share one node space: a
    vertex is sampled once for all of them. A seed without such a partner has itself, or -1 if it is of another type than
    they are. Operators: ``seed``, ``positive``, ``negative`` (unless there are none),
    ``nbr{h}`` and one ``feature...`` for each. Other arguments and errors are those of ``neighbor_spec``."""
    name = _known_edge_type(schema, edge_type)
    whole("negatives", negatives, 0, SpecLimits.negatives)
    source, target = schema.endpoints(name)
    wanted = _wanted_tables(schema, tables)
    spec = _new_spec(hops)
    spec.operators.add(id="seed").seed.node_type = target
    spec.operators.add(id="positive", inputs=["seed"]).positive.edge_type = name
    _add_feature(spec, "feature0", "seed", {target}, wanted)
    _add_feature(spec, "feature_positive", "positive", {source}, wanted)
    branches = ["seed", "positive"]
    if negatives:
        negative = spec.operators.add(id="negative", inputs=["seed"]).negative
        negative.edge_type, negative.count = name, negatives
        _add_feature(spec, "feature_negative", "negative", {source}, wanted)
        branches.append("negative")
    _add_hops(spec, schema, branches, hops, wanted)
    check_spec(spec, schema)
    return spec


def link_spec(
    schema: Schema,
    hops: Hops,
    *,
    edge_type: EdgeType,
    negatives: NegativeLinks | None = None,
    tables: Mapping[str, Sequence[str]] | None = None,
) -> dag_pb2.DagSpec:
    """Build the DAG whose seeds are edges of ``edge_type``. It has both ends of each seed, the ends of negative
    samples, and hops over all these vertices. Other arguments and errors are those of ``neighbor_spec``. Operators:
    ``seed``, ``negative``, ``nbr{h}`` and one ``feature...`` for each."""
    name = _known_edge_type(schema, edge_type)
    source, target = schema.endpoints(name)
    wanted, inputs = _wanted_tables(schema, tables), ["seed"]
    spec = _new_spec(hops)
    seed = spec.operators.add(id="seed").seed
    seed.node_type, seed.links = target, name
    _add_feature(spec, "feature0", "seed", {source, target}, wanted)
    if negatives is not None:
        message = spec.operators.add(id="negative", inputs=["seed"]).negative
        message.edge_type = name
        message.links.triplet, message.links.amount = negatives.triplet, negatives.amount
        message.links.strategy = STRATEGIES[negatives.strategy]
        _add_feature(spec, "feature_negative", "negative", {source, target}, wanted)
        inputs.append("negative")
    _add_hops(spec, schema, inputs, hops, wanted)
    check_spec(spec, schema)
    return spec


def _new_spec(hops: Hops) -> dag_pb2.DagSpec:
    spec = dag_pb2.DagSpec(version=SPEC_VERSION, disjoint=hops.disjoint or hops.method.temporal)
    for edge_type, tables in hops.edge_tables.items():
        edges = _edge_type_name(edge_type)
        for name in names(f"tables of edge type {edges!r}", tables):
            spec.edge_tables.add(edge_type=edges, name=name)
    spec.edge_weights.extend(weights.message() for weights in hops.weights)
    if (batches := whole("dependency", hops.dependency, 1, SpecLimits.dependency)) > 1:
        spec.dependency = batches
    return spec


def _known_edge_type(schema: Schema, edge_type: EdgeType) -> str:
    name = _edge_type_name(edge_type)
    return known_name("edge type", name, schema.edge_types)


def _add_hops(
    spec: dag_pb2.DagSpec, schema: Schema, inputs: list[str], hops: Hops, wanted: Mapping[str, Sequence[str]]
) -> None:
    if hops.frontier not in [*FRONTIERS]:
        raise ConfigError(f"frontier is {hops.frontier!r}, must be 'new' or 'all'")
    by_hop = _by_hop(schema, hops.num_neighbors)
    if hops.reduce and not (by_hop and by_hop[-1]):
        raise ConfigError("aggregate: num_neighbors must have a last hop whose fan-outs are not 0")
    for hop, fan_outs in enumerate(by_hop, start=1):
        op = spec.operators.add(id=f"nbr{hop}", inputs=inputs)
        op.neighborhood.hop = hop
        op.neighborhood.replace = hops.replace
        op.neighborhood.method, op.neighborhood.method_name = hops.method.number, hops.method.sent_name
        op.neighborhood.table = hops.by
        op.neighborhood.frontier = FRONTIERS[hops.frontier]
        for name, count in fan_outs.items():
            op.neighborhood.fan_outs.add(edge_type=name, count=count)
        sources = {schema.endpoints(name)[0] for name in fan_outs}
        if hops.reduce and hop == len(by_hop):
            _add_sums(spec, schema, f"feature{hop}", op.id, sources, wanted, hops.reduce)
        else:
            _add_feature(spec, f"feature{hop}", op.id, sources, wanted)
        inputs = [op.id]
    if hops.within:
        if len(inputs) > 1:
            raise ConfigError("edges among the sampled vertices: num_neighbors must have a hop")
        _add_within(spec, schema, inputs[0], hops.method if hops.method.temporal else Method.UNIFORM, -1)


def _add_within(spec: dag_pb2.DagSpec, schema: Schema, last: str, method: Method, fan_out: int) -> None:
    """Add the operator that takes the edges among all vertices, of every edge type that may have some."""
    reached: set[str] = set()
    for op in spec.operators:
        pair = op.seed.links or op.positive.edge_type or op.negative.edge_type
        reached |= {op.seed.node_type, *op.seed.others} | ({*schema.endpoints(pair)} if pair else set())
        reached |= {schema.endpoints(f.edge_type)[0] for f in op.neighborhood.fan_outs}
    message = spec.operators.add(id="within", inputs=[last]).neighborhood
    message.hop = 1 + sum(op.HasField("neighborhood") for op in spec.operators[:-1])
    message.use, message.frontier, message.method = dag_pb2.WITHIN, dag_pb2.FRONTIER_ALL, method.number
    for edge_type in schema.edge_types:
        if reached.issuperset(schema.endpoints(edge_type)):
            message.fan_outs.add(edge_type=edge_type, count=fan_out)


def _add_sums(  # noqa: PLR0917 - as _add_feature
    spec: dag_pb2.DagSpec, schema: Schema, name: str, source: str, node_types: set[str],
    wanted: Mapping[str, Sequence[str]], reduce: Reduce,
) -> None:  # fmt: skip
    """Add a feature operator that sums the wanted tables of float32. Raises ConfigError: there is none."""
    floats = {
        t: [table for table in tables if schema.node_tables[t][table].dtype == "<f4"] for t, tables in wanted.items()
    }
    if not any(floats.get(t) for t in node_types):
        raise ConfigError("aggregate: no table of float32 is fetched for the vertices of the last hop")
    _add_feature(spec, name, source, node_types, floats)
    spec.operators[-1].feature.MergeFrom(dag_pb2.FeatureOp(reduce=reduce.name))


def _add_feature(
    spec: dag_pb2.DagSpec, name: str, source: str, node_types: set[str], wanted: Mapping[str, Sequence[str]]
) -> None:
    """Add a feature operator with the wanted tables of the types that ``source`` can add, if there are any."""
    refs = [
        dag_pb2.TableRef(node_type=t, name=name) for t, tables in wanted.items() if t in node_types for name in tables
    ]
    if refs:
        spec.operators.add(id=name, inputs=[source]).feature.tables.extend(refs)


def _wanted_tables(schema: Schema, tables: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    if tables is None:
        return {node_type: list(schema.node_tables.get(node_type, ())) for node_type in schema.node_types}
    for node_type in tables:
        known_name("node type", node_type, schema.node_types)
    return {t: list(dict.fromkeys(names(f"tables of node type {t!r}", given))) for t, given in tables.items()}


def _by_hop(schema: Schema, num_neighbors: FanOuts) -> list[dict[str, int]]:
    if isinstance(num_neighbors, Mapping):
        given = {_known_edge_type(schema, name): fan_outs_of(counts) for name, counts in num_neighbors.items()}
    else:
        given = {name: fan_outs_of(num_neighbors) for name in schema.edge_types}
    if missing := [name for name in schema.edge_types if name not in given]:
        raise ConfigError(f"num_neighbors has no fan-outs for edge type {missing[0]!r} (give 0s to skip it)")
    hops = {len(counts) for counts in given.values()}
    if len(hops) > 1:
        raise ConfigError(f"num_neighbors has lists of different lengths {sorted(hops)}: one fan-out per hop is needed")
    fan_outs = {
        name: [check_fan_out(f"num_neighbors, hop {i}", name, n, SpecLimits.fan_out) for i, n in enumerate(counts, 1)]
        for name, counts in given.items()
    }
    return [
        {name: fan_outs[name][hop] for name in schema.edge_types if fan_outs[name][hop]}
        for hop in range(max(hops, default=0))
    ]


def _edge_type_name(edge_type: EdgeType) -> str:
    try:
        return edge_type if isinstance(edge_type, str) else join_edge_type(*edge_type)
    except TypeError:
        raise ConfigError(f"edge type {edge_type!r}: must be 'src__rel__dst' or a triple of names") from None
