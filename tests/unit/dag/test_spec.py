"""Building and checking DAG specifications."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError, UnknownNameError
from atta.protos.v1 import dag_pb2
from atta.samplers.dag.check import SPEC_VERSION, check_spec
from atta.samplers.dag.plan import Kind, Plan, SpecLimits
from atta.samplers.dag.spec import Hops, batch_spec, budget_spec, neighbor_spec, pair_spec
from atta.samplers.methods import Method
from tests.unit.dag.schemas import CITES, HAS, PLAIN, TYPED, WRITES


def plain(hops: int = 2) -> dag_pb2.DagSpec:
    return neighbor_spec(PLAIN, hops=Hops([10] * hops), seed_type="node")


def ids(plan: Plan) -> list[str]:
    return [op.id for op in plan.ops]


def test_neighbor_spec_is_a_chain_with_features_beside_it() -> None:
    plan = check_spec(neighbor_spec(PLAIN, hops=Hops([15, 10, 5]), seed_type="node"), PLAIN)
    assert ids(plan) == ["seed", "feature0", "nbr1", "feature1", "nbr2", "feature2", "nbr3", "feature3"]
    assert plan.hops == 3
    assert [op.fan_outs for op in plan.neighborhoods] == [((PLAIN.edge_types[0], n),) for n in (15, 10, 5)]
    assert plan.op("nbr2").inputs == ("nbr1",)
    assert plan.op("nbr1").children == ("feature1", "nbr2")
    assert plan.tables == (("node", "x"), ("node", "y"))
    assert plan.seed.kind is Kind.SEED
    assert plan.seed.node_type == "node"


def test_pair_spec_expands_all_three_branches_together() -> None:
    plan = check_spec(pair_spec(PLAIN, edge_type="node__to__node", hops=Hops([4, 3]), negatives=5), PLAIN)
    assert plan.op("nbr1").inputs == ("seed", "positive", "negative")
    assert plan.op("nbr2").inputs == ("nbr1",)
    assert (plan.op("positive").count, plan.op("negative").count) == (1, 5)
    fed = sorted(op.inputs[0] for op in plan.ops if op.kind is Kind.FEATURE)
    assert fed == ["nbr1", "nbr2", "negative", "positive", "seed"]
    without = check_spec(pair_spec(PLAIN, edge_type="node__to__node", hops=Hops([4]), negatives=0), PLAIN)
    assert without.op("nbr1").inputs == ("seed", "positive")


def test_fan_outs_per_edge_type_zero_skips_and_triples_work() -> None:
    counts = {("paper", "cites", "paper"): [5, 0], WRITES: [0, 7], HAS: [-1, -1]}
    plan = check_spec(neighbor_spec(TYPED, hops=Hops(counts), seed_type="paper"), TYPED)
    assert [dict(op.fan_outs) for op in plan.neighborhoods] == [{CITES: 5, HAS: -1}, {WRITES: 7, HAS: -1}]
    # Features are fetched only for the types that an operator can add. In hop 1 (cites, has) these are papers alone.
    assert plan.op("feature1").tables == (("paper", "x"), ("paper", "y"))
    assert plan.op("feature2").tables == (("author", "x"), ("paper", "x"), ("paper", "y"))


@pytest.mark.parametrize(
    ("hops", "options", "operators", "tables"),
    [
        ([3], {"tables": {"paper": ["y"]}}, ["seed", "feature0", "nbr1", "feature1"], ["y"]),
        ([3], {"tables": {}}, ["seed", "nbr1"], []),
        ([3, 3], {"tables": {}, "seed_tables": ["y"]}, ["seed", "feature0", "nbr1", "nbr2"], ["y"]),
        ([], {}, ["seed", "feature0"], ["x", "y"]),
    ],
)
def test_tables_can_be_chosen(hops: list[int], options: Any, operators: list[str], tables: list[str]) -> None:
    plan = check_spec(neighbor_spec(TYPED, hops=Hops(hops), seed_type="paper", **options), TYPED)
    assert (ids(plan), plan.tables) == (operators, tuple(("paper", name) for name in tables))


def test_tables_of_the_seeds_alone() -> None:
    plan = check_spec(neighbor_spec(TYPED, seed_tables=["y"], hops=Hops([3, 3]), seed_type="paper"), TYPED)
    assert plan.tables_of_seeds == {("paper", "y")}
    assert [plan.op(f"feature{i}").tables[-1] for i in range(3)] == [("paper", "y"), ("paper", "x"), ("paper", "x")]


def test_options_of_hops() -> None:
    spec = neighbor_spec(PLAIN, hops=Hops([2], replace=True, frontier="all"), seed_type="node")
    op = check_spec(spec, PLAIN).op("nbr1")
    assert (op.replace, op.frontier_all) == (True, True)
    assert len({check_spec(plain(hops), PLAIN) for hops in (2, 2, 3)}) == 2, "plans are equal values"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"hops": Hops([5, -2])}, ConfigError, "hop 2: fan-out -2"),
        ({"hops": Hops([2.5])}, ConfigError, "not an integer"),
        ({"hops": Hops([True])}, ConfigError, "not an integer"),
        ({"hops": Hops([10**9])}, ConfigError, "must lie in"),
        ({"hops": Hops({CITES: [5], WRITES: [5, 5], HAS: [1]})}, ConfigError, "different lengths"),
        ({"hops": Hops({CITES: [5]})}, ConfigError, "no fan-outs for edge type"),
        ({"hops": Hops({"paper__cites__papers": [5]})}, UnknownNameError, "did you mean 'paper__cites__paper'"),
        ({"seed_type": "papr"}, UnknownNameError, "did you mean 'paper'"),
        ({"tables": {"papr": ["x"]}}, UnknownNameError, "did you mean 'paper'"),
        ({"tables": {"paper": ["z"]}}, UnknownNameError, "table"),
        ({"tables": {"paper": 5}}, ConfigError, "a name or a list of names"),
        ({"tables": {"paper": [5]}}, ConfigError, "5 is not a name"),
        ({"seed_tables": ["z"]}, UnknownNameError, "table"),
        ({"hops": Hops([5], frontier="some")}, ConfigError, "'new' or 'all'"),
        ({"hops": Hops([1] * 129)}, ConfigError, "129 hops"),
    ],
)
def test_builder_names_the_fault(options: dict[str, object], error: type[Exception], words: str) -> None:
    arguments: dict[str, object] = {"hops": Hops([5]), "seed_type": "paper"} | options
    with pytest.raises(error, match=words):
        neighbor_spec(TYPED, **arguments)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"edge_type": "node__to__node", "negatives": -1}, ConfigError, "negatives -1"),
        ({"edge_type": "node__too__node"}, UnknownNameError, "edge type"),
    ],
)
def test_link_builder_names_the_fault(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        pair_spec(PLAIN, hops=Hops([1]), **options)


Ops = dict[str, dag_pb2.Operator]
FAULTS: list[tuple[Callable[[dag_pb2.DagSpec, Ops], object], str]] = [
    (lambda spec, ops: setattr(spec, "version", 4), "version 4"),
    (lambda spec, ops: spec.operators.append(ops["nbr1"]), "'nbr1': the id is used twice"),
    (lambda spec, ops: setattr(ops["nbr1"], "id", ""), "1..128 characters"),
    (lambda spec, ops: setattr(ops["nbr1"], "id", "n" * 1000), "1..128 characters"),
    (lambda spec, ops: spec.operators.add(id="odd", inputs=["seed"]), "'odd': it has no kind"),
    (lambda spec, ops: spec.operators.remove(ops["seed"]), "0 seed operators"),
    (lambda spec, ops: setattr(spec.operators.add(id="seed2").seed, "node_type", "paper"), "2 seed operators"),
    (lambda spec, ops: ops["seed"].inputs.append("nbr1"), "'seed': a seed operator has no inputs"),
    (lambda spec, ops: inputs(ops["nbr2"], "nbr9"), "unknown .*'nbr2'.*'nbr9'"),
    (lambda spec, ops: ops["nbr1"].inputs.append("seed"), "'nbr1': it names an input twice"),
    (lambda spec, ops: inputs(ops["nbr1"]), "'nbr1': it has no inputs"),
    (lambda spec, ops: ops["nbr1"].inputs.append("feature0"), "'nbr1': input 'feature0' is a feature operator"),
    (lambda spec, ops: ops["feature0"].inputs.append("nbr1"), "'feature0': it has 2 inputs"),
    (lambda spec, ops: inputs(ops["positive"], "nbr1"), "'positive': input 'nbr1' is a neighborhood operator"),
    (lambda spec, ops: setattr(ops["nbr2"].neighborhood, "hop", 3), "'nbr2': hop 3 where hop 2 is due"),
    (lambda spec, ops: setattr(ops["nbr2"].neighborhood, "hop", 1), "hop 1 where hop 2 is due"),
    (lambda spec, ops: setattr(ops["nbr1"].neighborhood, "hop", 0), "'nbr1'"),
    (lambda spec, ops: inputs(ops["nbr2"], "seed"), "'nbr2': input 'seed' is not of hop 1"),
    (lambda spec, ops: inputs(ops["nbr1"], "nbr1"), "'nbr1'.*cycle|'feature1'.*cycle"),
    (
        lambda spec, ops: fan_out(ops, edge_type="paper__cite__paper"),
        "unknown .*'nbr1'.*did you mean 'paper__cites__paper'",
    ),
    (lambda spec, ops: ops["nbr1"].neighborhood.fan_outs.add(edge_type=CITES, count=1), "'nbr1': two fan-outs"),
    (lambda spec, ops: fan_out(ops, count=-5), "'nbr1': fan-out -5"),
    (lambda spec, ops: setattr(ops["nbr1"].neighborhood, "frontier", 7), "'nbr1': unknown frontier 7"),
    (lambda spec, ops: setattr(ops["negative"].negative, "count", 0), "'negative': count 0"),
    (lambda spec, ops: setattr(ops["negative"].negative, "edge_type", HAS), f"'negative': .* '{HAS}' ends at 'topic'"),
    (lambda spec, ops: setattr(ops["feature1"].feature.tables[0], "name", "z"), "unknown .*'feature1'.*'z'"),
    (lambda spec, ops: setattr(tables(ops)[0], "node_type", "planet"), "unknown .*'feature1'.*'planet'"),
    (lambda spec, ops: ops["feature1"].feature.ClearField("tables"), "'feature1': it fetches no table"),
    (lambda spec, ops: tables(ops).add(node_type="paper", name="x"), "'feature1': it fetches a table twice"),
    (lambda spec, ops: tables(ops).pop(1), "'nbr1': adds 'paper' vertices; nothing fetches their '[xy]'"),
    (lambda spec, ops: spec.operators.remove(ops["feature1"]), "'nbr1': adds '(author|paper)' .* nothing fetches"),
    (lambda spec, ops: again(spec), "'nbr1': table 'x' of 'paper' is fetched for it 2 times"),
]


def tables(ops: Ops) -> Any:
    return ops["feature1"].feature.tables


def again(spec: dag_pb2.DagSpec) -> None:
    spec.operators.add(id="again", inputs=["nbr1"]).feature.tables.add(node_type="paper", name="x")


def inputs(op: dag_pb2.Operator, *names: str) -> None:
    op.inputs[:] = names


def fan_out(ops: Ops, **values: Any) -> None:
    for name, value in values.items():
        setattr(ops["nbr1"].neighborhood.fan_outs[0], name, value)


@pytest.mark.parametrize(("change", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_check_names_operator_and_cause(change: Any, words: str) -> None:
    spec = pair_spec(TYPED, edge_type=CITES, hops=Hops([3, 3]))
    change(spec, {op.id: op for op in spec.operators})
    with pytest.raises(ConfigError, match=words):
        check_spec(spec, TYPED)


def test_limits_are_the_daemons_choice() -> None:
    spec = plain(hops=3)
    with pytest.raises(ConfigError, match="8 operators, at most 7"):
        check_spec(spec, PLAIN, SpecLimits(operators=7))
    with pytest.raises(ConfigError, match="3 hops, at most 2"):
        check_spec(spec, PLAIN, SpecLimits(hops=2))
    with pytest.raises(ConfigError, match=r"fan-out 10 .* must lie in -1\.\.9"):
        check_spec(spec, PLAIN, SpecLimits(fan_out=9))


@given(order=st.permutations(range(10)), hops=st.integers(0, 2), link=st.booleans())
def test_order_is_topological_whatever_the_message_order(order: list[int], hops: int, link: bool) -> None:
    spec = pair_spec(PLAIN, edge_type=PLAIN.edge_types[0], hops=Hops([2] * hops)) if link else plain(hops)
    shuffled = dag_pb2.DagSpec(version=SPEC_VERSION)
    for index in sorted(range(len(spec.operators)), key=lambda i: order[i]):
        shuffled.operators.add().CopyFrom(spec.operators[index])
    plan = check_spec(shuffled, PLAIN)
    graph = nx.DiGraph()
    graph.add_nodes_from(ids(plan))
    graph.add_edges_from((source, op.id) for op in plan.ops for source in op.inputs)
    assert nx.is_directed_acyclic_graph(graph)
    place = {name: index for index, name in enumerate(ids(plan))}
    assert all(place[a] < place[b] for a, b in graph.edges)
    assert {(op.id, child) for op in plan.ops for child in op.children} == set(graph.edges)
    assert sorted(place) == sorted(op.id for op in spec.operators)


@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_random_bytes_never_do_more_than_raise(data: bytes) -> None:
    spec = dag_pb2.DagSpec()
    try:
        spec.ParseFromString(data)
    except Exception:
        return
    spec.version = SPEC_VERSION
    with pytest.raises(ConfigError):  # a valid one would need names from the schema
        check_spec(spec, TYPED)


def test_weighted_hops_need_weights() -> None:
    with pytest.raises(ConfigError, match="has no weights"):
        neighbor_spec(PLAIN, hops=Hops([3], method=Method.WEIGHTED), seed_type="node")
    weighted = dataclasses.replace(PLAIN, edge_tables={"node__to__node": ("weight",)})
    plan = check_spec(neighbor_spec(weighted, hops=Hops([3], method=Method.WEIGHTED), seed_type="node"), weighted)
    assert [op.method for op in plan.neighborhoods] == [Method.WEIGHTED]


WEIGHED = dataclasses.replace(PLAIN, edge_tables={"node__to__node": ("weight", "note")})
MADE: dict[str, Callable[[], dag_pb2.DagSpec]] = {
    "within": lambda: neighbor_spec(WEIGHED, Hops([3, 2], within=True), seed_type="node"),
    "budget": lambda: budget_spec(TYPED, [4, 3], seed_type="paper"),
    "rows": lambda: batch_spec(WEIGHED, "induced", {}, edge_tables=["note"]),
    "by": lambda: neighbor_spec(WEIGHED, Hops([3], method=Method.WEIGHTED, by="note"), seed_type="node"),
    "others": lambda: neighbor_spec(TYPED, Hops([3]), seed_type="paper", other_types=["topic"]),
}


def hops(spec: dag_pb2.DagSpec) -> list[Any]:
    return [op.neighborhood for op in spec.operators if op.HasField("neighborhood")]


def _set(op: int, **values: Any) -> Callable[[dag_pb2.DagSpec], None]:
    def change(spec: dag_pb2.DagSpec) -> None:
        for name, value in values.items():
            setattr(hops(spec)[op], name, value)

    return change


@pytest.mark.parametrize(
    ("made", "change", "words"),
    [
        ("within", _set(0, use=dag_pb2.WITHIN, frontier=dag_pb2.FRONTIER_ALL), "are the last that it gets"),
        ("within", _set(-1, frontier=dag_pb2.FRONTIER_NEW), "'within': its edges are those of all vertices"),
        ("within", _set(-1, use=9), "unknown use of edges 9"),
        ("within", _set(0, use=dag_pb2.ROWS, frontier=dag_pb2.FRONTIER_ALL), "copied once, after a batch operator"),
        ("within", _set(0, table="note"), "'uniform' draws by no edge table"),
        ("budget", lambda spec: spec.operators.pop(), "every hop has one, and then come the edges"),
        ("budget", _set(0, use=dag_pb2.JOIN), "a budget of 'author' that is none"),
        ("budget", lambda spec: setattr(spec, "disjoint", True), "so trees are not disjoint"),
        ("rows", _set(0, use=dag_pb2.WITHIN), "no hops or links beside it"),
        ("rows", lambda spec: spec.edge_tables.pop(), "a hop that copies their rows, and else none"),
        ("rows", lambda spec: setattr(hops(spec)[-1].fan_outs[0], "count", 3), "all its edges are read"),
        ("by", _set(0, table="notes"), "has no edge table 'notes' to draw by"),
        ("others", lambda spec: setattr(spec.operators[0].seed, "links", CITES), "seeds of several types"),
    ],
)
def test_uses_of_edges_that_make_no_sense(made: str, change: Callable[[dag_pb2.DagSpec], None], words: str) -> None:
    spec, schema = MADE[made](), TYPED if made in ("budget", "others") else WEIGHED
    check_spec(spec, schema)
    change(spec)
    with pytest.raises(ConfigError, match=words):
        check_spec(spec, schema)
