"""Build the logical sampling DAG of a mini-batch as a ``DagSpec`` message (ByteGNN §4.2).

A client describes the operators once, with ``neighbor_spec`` or ``link_spec``; the daemon checks what arrives
(``check_spec``) and from then on works with the frozen ``Plan``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atta.errors import ConfigError, UnknownNameError
from atta.protos.v1 import dag_pb2
from atta.samplers.plan import (
    FRONTIERS,
    SPEC_VERSION,
    Kind,
    Plan,
    PlanOp,
    SchemaLike,
    SpecLimits,
    check_fan_out,
    check_spec,
)

__all__ = ["Kind", "Plan", "PlanOp", "SchemaLike", "SpecLimits", "check_spec", "link_spec", "neighbor_spec"]

EdgeType = str | tuple[str, str, str]
FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]] | Mapping[str, Sequence[int]]


def neighbor_spec(
    schema: SchemaLike,
    *,
    num_neighbors: FanOuts,
    seed_type: str,
    tables: Mapping[str, Sequence[str]] | None = None,
    replace: bool = False,
    weighted: bool = False,
    frontier: str = "new",
) -> dag_pb2.DagSpec:
    """Build the supervised DAG: the seeds, then hop by hop the neighbourhood and the features of what it added.

    num_neighbors: fan-outs from the seeds outward, one per hop; -1 takes all in-neighbours, 0 skips the edge type in
    that hop. A sequence counts for every edge type; a mapping names every edge type (``"src__rel__dst"`` or the triple).
    tables: tables to fetch by node type, None = all of the schema.
    weighted: neighbours are drawn by the weights of their edges (edge table ``weight``), not uniformly.
    frontier: ``"new"`` expands the vertices first reached by the hop before (PyG), ``"all"`` every vertex known (DGL).

    Operators: ``seed``, ``feature0``, then ``nbr1``, ``feature1``, ... Feature operators without tables are left out.
    Raises ConfigError and UnknownNameError.
    """
    spec = dag_pb2.DagSpec(version=SPEC_VERSION)
    spec.operators.add(id="seed").seed.node_type = seed_type
    wanted = _wanted_tables(schema, tables)
    _add_feature(spec, "feature0", "seed", {seed_type}, wanted)
    _add_hops(spec, schema, ["seed"], num_neighbors, wanted, replace=replace, weighted=weighted, frontier=frontier)
    check_spec(spec, schema)
    return spec


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
    """Build the unsupervised DAG: one positive and ``negatives`` negative partners per seed, and hops over all three.

    The seeds are destinations of ``edge_type``, their partners sources. The three branches share one node space: a
    vertex has the same sampled neighbours whichever branch asks, so sampling it once for all of them changes nothing.
    Other arguments and errors as in ``neighbor_spec``. Operators: ``seed``, ``positive``, ``negative``, ``nbr{h}`` and
    one ``feature...`` for each.
    """
    name = _edge_type_name(edge_type)
    if name not in schema.edge_types:
        raise UnknownNameError.of("edge type", name, schema.edge_types)
    if not 1 <= negatives <= SpecLimits.negatives:
        raise ConfigError(f"negatives is {negatives}, must lie in 1..{SpecLimits.negatives}")
    source, target = schema.endpoints(name)
    wanted = _wanted_tables(schema, tables)
    spec = dag_pb2.DagSpec(version=SPEC_VERSION)
    spec.operators.add(id="seed").seed.node_type = target
    spec.operators.add(id="positive", inputs=["seed"]).positive.edge_type = name
    negative = spec.operators.add(id="negative", inputs=["seed"]).negative
    negative.edge_type, negative.count = name, negatives
    _add_feature(spec, "feature0", "seed", {target}, wanted)
    _add_feature(spec, "feature_positive", "positive", {source}, wanted)
    _add_feature(spec, "feature_negative", "negative", {source}, wanted)
    _add_hops(spec, schema, ["seed", "positive", "negative"], num_neighbors, wanted, replace=replace, frontier=frontier)
    check_spec(spec, schema)
    return spec


def _add_hops(
    spec: dag_pb2.DagSpec,
    schema: SchemaLike,
    inputs: list[str],
    num_neighbors: FanOuts,
    wanted: Mapping[str, Sequence[str]],
    *,
    replace: bool,
    weighted: bool = False,
    frontier: str,
) -> None:
    if frontier not in FRONTIERS:
        raise ConfigError(f"frontier is {frontier!r}, must be 'new' or 'all'")
    for hop, fan_outs in enumerate(_by_hop(schema, num_neighbors), start=1):
        op = spec.operators.add(id=f"nbr{hop}", inputs=inputs)
        op.neighborhood.hop = hop
        op.neighborhood.replace = replace
        op.neighborhood.weighted = weighted
        op.neighborhood.frontier = FRONTIERS[frontier]
        for name, count in fan_outs.items():
            op.neighborhood.fan_outs.add(edge_type=name, count=count)
        sources = {schema.endpoints(name)[0] for name in fan_outs}
        _add_feature(spec, f"feature{hop}", op.id, sources, wanted)
        inputs = [op.id]


def _add_feature(
    spec: dag_pb2.DagSpec, name: str, source: str, node_types: set[str], wanted: Mapping[str, Sequence[str]]
) -> None:
    """A feature operator with the wanted tables of the types that ``source`` can add; none when there are no tables."""
    refs = [(node_type, table) for node_type, tables in wanted.items() if node_type in node_types for table in tables]
    if refs:
        op = spec.operators.add(id=name, inputs=[source])
        for node_type, table in refs:
            op.feature.tables.add(node_type=node_type, name=table)


def _wanted_tables(schema: SchemaLike, tables: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    if tables is None:
        return {node_type: list(schema.node_tables.get(node_type, ())) for node_type in schema.node_types}
    for node_type, names in tables.items():
        if node_type not in schema.node_types:
            raise UnknownNameError.of("node type", node_type, schema.node_types)
        if isinstance(names, str):
            raise ConfigError(f"tables[{node_type!r}] is the string {names!r}, must be a list of table names")
    return {node_type: list(dict.fromkeys(names)) for node_type, names in tables.items()}


def _by_hop(schema: SchemaLike, num_neighbors: FanOuts) -> list[dict[str, int]]:
    """Fan-outs per hop and edge type, zeros left out."""
    if isinstance(num_neighbors, Mapping):
        given = {_edge_type_name(name): list(counts) for name, counts in num_neighbors.items()}
    else:
        given = {name: list(num_neighbors) for name in schema.edge_types}
    for name in given:
        if name not in schema.edge_types:
            raise UnknownNameError.of("edge type", name, schema.edge_types)
    if missing := [name for name in schema.edge_types if name not in given]:
        raise ConfigError(f"num_neighbors has no fan-outs for edge type {missing[0]!r} (give 0s to skip it)")
    hops = {len(counts) for counts in given.values()}
    if len(hops) > 1:
        raise ConfigError(f"num_neighbors has lists of different lengths {sorted(hops)}: one fan-out per hop is needed")
    for name, counts in given.items():
        for hop, count in enumerate(counts, start=1):
            check_fan_out(f"num_neighbors, hop {hop}", name, count, SpecLimits.fan_out)
    return [
        {name: int(given[name][hop]) for name in schema.edge_types if given[name][hop] != 0}
        for hop in range(max(hops, default=0))
    ]


def _edge_type_name(edge_type: EdgeType) -> str:
    return edge_type if isinstance(edge_type, str) else "__".join(edge_type)
