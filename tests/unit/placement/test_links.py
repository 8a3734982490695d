"""Link batches with negatives are the same on any number of partitions as on one, in any order of tasks."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.client.loaders.link import reverse_type_of
from atta.client.loaders.seeds import link_seeds
from atta.daemon.services.opening import choose_seeds
from atta.errors import ConfigError
from atta.partition.graph import Graph, GraphWriter
from atta.samplers.batch.items import BatchSeeds, StreamPosition
from atta.samplers.batch.layout import BatchArrays
from atta.samplers.batch.negatives import NegativeLinks, NegativeStrategy
from atta.samplers.dag.spec import Hops, check_spec, link_spec, pair_spec
from atta.samplers.methods import Method
from tests.unit.placement.harness import Placed, Typed
from tests.unit.placement.strategies import assigned, graphs


@pytest.mark.parametrize(
    ("edge_type", "reverse"),
    [
        ("user__buys__item", "item__rev_buys__user"),
        ("user__views__item", "item__rev_views__user"),
        ("item__rev_views__user", "user__views__item"),
        ("user__knows__user", "user__rev_knows__user"),
        ("user__rev_knows__user", "user__knows__user"),
        ("item__like__item", "item__like__item"),
    ],
)
def test_reverses_are_known_by_their_name(edge_type: str, reverse: str, tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "g") as out:
        for name in ("user", "item"):
            out.add_nodes(name, 2)
        for name in ("user__buys__item", "user__views__item", "user__knows__user"):
            out.add_edges(name, [0], [1])
            out.open_reverses(name).append([1], [0])
        out.add_edges("item__like__item", [0], [1])
    assert reverse_type_of(Graph.open(tmp_path / "g").schema, edge_type, None) == reverse


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_placement_changes_nothing(data: st.DataObject) -> None:
    draw = data.draw
    graph = draw(graphs())
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    source, _, target = edge_type.split("__")
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 9))
    ends = rng.choice(graph.ids[source], count), rng.choice(graph.ids[target], count)
    if len(graph.edges[edge_type][0]) and draw(st.booleans()):  # existing edges: there is something to leave out
        picks = rng.integers(0, len(graph.edges[edge_type][0]), count)
        ends = graph.edges[edge_type][0][picks], graph.edges[edge_type][1][picks]
    method = draw(st.sampled_from([Method.UNIFORM, Method.WEIGHTED, Method.TEMPORAL]))
    times = rng.integers(0, 45, count) if method.temporal else None
    negatives = None
    if strategy := draw(st.sampled_from([None, *NegativeStrategy])):
        negatives = NegativeLinks(draw(st.booleans()), draw(st.sampled_from([1.0, 2.0])), strategy)
    exclude = ((edge_type, False),) + (((edge_type, True),) if source == target and draw(st.booleans()) else ())
    hops = Hops([draw(st.sampled_from([-1, 1, 3])) for _ in range(draw(st.integers(0, 2)))], method=method)
    at = StreamPosition(*(int(rng.integers(0, 50)) for _ in range(3)))
    pairs = times is None and draw(st.booleans())  # seeds are vertices, with neighbours and strangers as partners

    def run(placed: Placed, home: int, order: random.Random) -> BatchArrays | str:
        dataset = placed.dataset
        if pairs:
            plan = check_spec(pair_spec(dataset.schema, hops, edge_type=edge_type, negatives=2), dataset.schema)
            chosen = BatchSeeds(dataset.to_internal(target, ends[1]), np.arange(count))
            return placed.run(plan, chosen, at, home=home, order=order)
        plan = check_spec(link_spec(dataset.schema, hops, edge_type=edge_type, negatives=negatives), dataset.schema)
        seeds = BatchSeeds(
            dataset.to_internal(target, ends[1]), np.arange(count),
            sources=dataset.to_internal(source, ends[0]), times=times, exclude=exclude,
        )  # fmt: skip
        try:
            return placed.run(plan, seeds, at, home=home, order=order)
        except ConfigError as error:  # there may be no negatives to draw
            return str(error)

    with tempfile.TemporaryDirectory() as folder:
        written = graph.write(Path(folder) / "graph")
        parts = draw(st.integers(2, 4))
        whole = graph.place(written, {t: np.zeros(len(ids), np.int32) for t, ids in graph.ids.items()}, 1)
        cut = graph.place(written, assigned(draw, graph, parts), parts)
        one = run(whole, 0, random.Random(0))
        many = run(cut, draw(st.integers(0, parts - 1)), random.Random(draw(st.integers(0, 2**32))))
    if isinstance(one, str) or isinstance(many, str):
        assert one == many
        assert "negative samples" in one
        return
    assert one.arrays.keys() == many.arrays.keys()
    for name in one.arrays:
        assert np.array_equal(one.filled(name), many.filled(name)), name
    if negatives is not None and not pairs:
        assert sum(one.used[name] for name in one.arrays if "link/neg_" in name) > 0


def test_a_seed_without_a_partner_of_another_type_has_none(tmp_path: Path) -> None:
    ids = {"a": np.array([7, 5]), "b": np.array([3, 1, 4])}
    graph = Typed(ids, {"a__likes__b": (np.array([5, 7]), np.array([1, 1]), {})})
    placed = graph.place(graph.write(tmp_path / "graph"), {"a": np.array([0, 1]), "b": np.array([1, 0, 0])}, 2)
    schema = placed.dataset.schema
    plan = check_spec(pair_spec(schema, Hops([]), edge_type="a__likes__b", negatives=2), schema)
    seeds = BatchSeeds(placed.dataset.to_internal("b", ids["b"]), np.arange(3))
    out = placed.run(plan, seeds, StreamPosition(1, 2, 3), home=0, order=random.Random(0), copied="none")
    positive, negative = out.filled("pairs/positive"), out.filled("pairs/negative")
    assert positive[[0, 2], 0].tolist() == [-1, -1]  # 3 and 4 have no in-neighbour
    assert negative[1].tolist() == [-1, -1]  # 1 has all of them
    assert out.filled("n_id/a")[positive[1, 0]] in (5, 7)
    assert np.isin(out.filled("n_id/a")[negative[[0, 2]]], (5, 7)).all()


def with_reverses(graph: Typed, rng: np.random.Generator) -> Typed:
    edges = dict(graph.edges)
    for edge_type, reverse in (("a__likes__b", "b__in__a"), ("b__to__b", "b__to__b")):
        if edge_type not in edges or not len(edges[edge_type][0]):
            continue
        for name, swap in ((edge_type, False), (reverse, True)):
            of, into = edges[edge_type], edges[name]
            more = rng.integers(0, len(of[0]), 30)
            ends = (of[1][more], of[0][more]) if swap else (of[0][more], of[1][more])
            late = {"time": np.full(len(of[0]), 50), **of[2]}
            tables = {table: np.concatenate([rows, late[table][more]]) for table, rows in into[2].items()}
            edges[name] = (np.concatenate([into[0], ends[0]]), np.concatenate([into[1], ends[1]]), tables)
    return Typed(graph.ids, edges, graph.times)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_seed_edge_and_no_reverse_of_one_is_sampled(data: st.DataObject) -> None:
    """Whole neighbourhoods of one hop are, besides, all other in-edges of the seeds' ends and of the negatives."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    graph = with_reverses(draw(graphs()), rng)
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    source, _, target = edge_type.split("__")
    src, dst, _ = graph.edges[edge_type]
    count = draw(st.integers(1, 9))
    picks = rng.integers(0, len(src), count if len(src) else 0)  # edges, and pairs that need not be any
    ends = np.stack([
        np.concatenate([src[picks], rng.choice(graph.ids[source], 2)]),
        np.concatenate([dst[picks], rng.choice(graph.ids[target], 2)]),
    ])  # fmt: skip
    hops = draw(st.sampled_from([[-1], [-1, -1], [3, 2], [1, 5, 2]]))
    disjoint = draw(st.booleans())
    negatives = NegativeLinks(triplet=draw(st.booleans()), amount=1.0) if draw(st.booleans()) else None
    reversed_too = draw(st.booleans())

    with tempfile.TemporaryDirectory() as folder:
        written, parts = graph.write(Path(folder) / "graph"), draw(st.integers(1, 3))
        placed = graph.place(written, assigned(draw, graph, parts), parts)
        dataset, schema = placed.dataset, placed.dataset.schema
        reverse = reverse_type_of(schema, edge_type, None) if reversed_too else None
        chosen = choose_seeds(dataset, link_seeds(schema, edge_type, ends, None, exclude=True, exclude_reverse=reverse))
        frontier = draw(st.sampled_from(["new", "all"]))
        how = Hops(hops, frontier=frontier, disjoint=disjoint)
        spec = link_spec(schema, how, edge_type=edge_type, negatives=negatives)
        out = placed.run(
            check_spec(spec, schema),
            BatchSeeds(chosen.internal, np.arange(ends.shape[1]), sources=chosen.sources, exclude=chosen.exclude),
            StreamPosition(1, 2, 3), home=draw(st.integers(0, parts - 1)), order=random.Random(draw(st.integers(0, 99))),
        )  # fmt: skip

    pairs = {*zip(*ends.tolist(), strict=True)}
    known = {t: out.filled(f"n_id/{t}") for t in graph.ids if f"n_id/{t}" in out.arrays}
    for name, (sources, targets, _) in graph.edges.items():
        hidden = pairs if name == edge_type else set()
        if reversed_too and name == reverse:
            hidden = hidden | {(t, s) for s, t in pairs}
        e_id = out.filled(f"e_id/{name}") if f"e_id/{name}" in out.arrays else np.empty(0, np.int64)
        found = {*zip(sources[e_id].tolist(), targets[e_id].tolist(), strict=True)}
        assert not found & hidden
        kind = name.split("__")[2]
        if hops == [-1] and kind in known:
            seeds = known[kind][: out.filled(f"hops/{kind}")[:-1].sum()]  # and negatives, without those of the hop
            expected = np.flatnonzero(np.isin(targets, seeds))
            expected = [e for e in expected.tolist() if (sources[e], targets[e]) not in hidden]
            assert sorted({*e_id.tolist()}) == expected
            assert disjoint or len(e_id) == len(expected)
