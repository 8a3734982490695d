"""Which trainer computes which vertex of a server's subgraph, and what trainers read and send.

No processes, no torch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train.cooperative import Place, TrainingGraph, WorkerView, split_vertices, worker_view
from atta.train.cooperative.groups import machines_per_server
from atta.train.cooperative.halo import by_owner, rows_of
from atta.train.cooperative.shares import boundary_sizes
from tests.unit.train.graphs import training_graph


def subgraph(vertices: int, edges: np.ndarray, rng: np.random.Generator) -> TrainingGraph:
    ids = rng.permutation(1000 + vertices)[:vertices].astype(np.int64)
    features = rng.standard_normal((vertices, 3)).astype(np.float32)
    return training_graph(edges, vertices, rng, global_ids=ids, features=features)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[TrainingGraph, int, int]:
    vertices, trainers, seed = draw(st.integers(0, 90)), draw(st.integers(1, 5)), draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    count = draw(st.integers(0, 6 * vertices))
    edges = (rng.random((2, count)) ** draw(st.sampled_from([1, 3])) * vertices).astype(np.int64)
    return subgraph(vertices, edges, rng), trainers, seed


def communities(rng: np.random.Generator) -> TrainingGraph:
    target = (rng.random(24_000) ** 2 * 2000).astype(np.int64)
    near = (target // 100) * 100 + rng.integers(0, 100, len(target))
    source = np.where(rng.random(len(target)) < 0.9, near, rng.integers(0, 2000, len(target)))
    return subgraph(2000, rng.permutation(2000)[np.stack([source, target])], rng)


@pytest.mark.parametrize("trainers", [2, 3, 4, 8])
def test_shares_are_even_and_boundaries_small(rng: np.random.Generator, trainers: int) -> None:
    graph = communities(rng)
    owner = split_vertices(graph, trainers)
    vertices = np.bincount(owner, minlength=trainers)
    edges = np.bincount(owner[graph.edges[1]], minlength=trainers)
    boundary = boundary_sizes(graph.edges, owner, trainers)
    # A share that is full of edges takes no more vertices: one graph of 400 then has 517 of 500 in each other share.
    assert vertices.max() <= 1.04 * vertices.mean() + 1
    assert edges.max() <= 1.09 * edges.mean() + 1
    assert boundary.max() <= 1.6 * boundary.mean()
    arbitrary = boundary_sizes(graph.edges, rng.permutation(owner), trainers)
    assert boundary.max() < 0.75 * arbitrary.max()
    tries = [split_vertices(graph, trainers, tries=n) for n in ((1, 2, 4) if trainers == 4 else ())]
    busiest = [boundary_sizes(graph.edges, found, trainers).max() for found in tries]
    assert busiest == sorted(busiest, reverse=True)


def crossing(graph: TrainingGraph, machine: np.ndarray) -> int:
    """Rows that the busiest machine reads from others, or that others read from it.

    Each counts once per reading machine.
    """
    ends = zip(*graph.edges.tolist(), strict=True)
    read = {(s, machine[d]) for s, d in ends if machine[s] != machine[d]}
    return max(Counter(m for s, reader in read for m in (reader, machine[s])).values())


@pytest.mark.parametrize(
    ("trainers", "machines"),
    [pytest.param(4, 2, marks=pytest.mark.slow), pytest.param(8, 2, marks=pytest.mark.slow), (6, 3), (2, 2)],
)
def test_machines_are_divided_first(rng: np.random.Generator, trainers: int, machines: int) -> None:
    graph = communities(rng)
    owner = split_vertices(graph, trainers, machines)
    vertices = np.bincount(owner, minlength=trainers)
    edges = np.bincount(owner[graph.edges[1]], minlength=trainers)
    # Both divisions, among machines and among trainers, round up to whole vertices.
    assert vertices.max() <= 1.031 * vertices.mean() + 2
    assert edges.max() <= 1.12 * edges.mean() + 2  # METIS may miss its second aim, in either division
    machine = owner * machines // trainers
    crossed = crossing(graph, machine)
    assert crossed <= crossing(graph, split_vertices(graph, trainers) * machines // trainers)
    assert crossed < 0.75 * crossing(graph, rng.permutation(machine))
    within = boundary_sizes(graph.edges, owner, trainers)
    assert within.max() < 0.8 * boundary_sizes(graph.edges, rng.permutation(owner), trainers).max()


@given(graphs(), st.integers(1, 3))
@settings(max_examples=30)
def test_any_graph_is_divided_and_always_alike(drawn: tuple[TrainingGraph, int, int], machines: int) -> None:
    graph, each, seed = drawn
    owner = split_vertices(graph, each * machines, machines, seed=seed)
    assert np.array_equal(owner, split_vertices(graph, each * machines, machines, seed=seed))
    assert owner.shape == (len(graph),)
    assert owner.dtype == np.int32
    assert set(owner.tolist()) <= set(range(each * machines))
    if len(graph):
        # METIS aims at a surplus of 3 % and may miss it by a vertex or two in either step where parts are small.
        assert np.bincount(owner).max() <= 1.031 * len(graph) / (each * machines) + 4


@given(graphs(), st.booleans(), st.booleans())
@settings(max_examples=50)
def test_views_fit_together(drawn: tuple[TrainingGraph, int, int], split: bool, halo: bool) -> None:
    graph, trainers, seed = drawn
    arbitrary = np.random.default_rng(seed).integers(-1 if halo else 0, trainers, len(graph))
    owner = split_vertices(graph, trainers) if split else arbitrary
    views = [worker_view(graph, owner, t, trainers) for t in range(trainers)]
    edges = [(s, d) for s, d in graph.edges.T.tolist() if owner[d] >= 0]

    assert sorted(v for view in views for v in view.own.tolist()) == np.flatnonzero(owner >= 0).tolist()
    found: list[tuple[int, int]] = []
    for t, view in enumerate(views):
        rows = [*view.own.tolist(), *view.remote.tolist(), *view.halo.tolist()]
        assert view.rows == len(rows)
        found += [(rows[s], rows[d]) for s, d in view.edge_index.T.tolist()]
        assert (view.edge_index[1] < len(view.own)).all()
        assert (np.diff(view.edge_index[1]) >= 0).all()
        assert set(view.own.tolist()) == {v for v in range(len(graph)) if owner[v] == t}
        assert sorted(view.remote.tolist()) == sorted(
            {s for s, d in edges if owner[d] == t and owner[s] not in (t, -1)}
        )
        assert view.halo.tolist() == sorted({s for s, d in edges if owner[d] == t and owner[s] == -1})
        readers = {d for s, d in edges if owner[d] == t and owner[s] != t}
        assert set(view.own[view.interior :].tolist()) == readers
        check_rows(graph, view)
    assert sorted(found) == sorted((s, d) for s, d in edges)

    for t, sender in enumerate(views):
        assert sender.receive_counts[t] == sender.send_counts[t] == 0
        for r, reader in enumerate(views):
            sent = sender.own[np.split(sender.send_rows, np.cumsum(sender.send_counts)[:-1])[r]]
            received = np.split(reader.remote, np.cumsum(reader.receive_counts)[:-1])[t]
            assert sent.tolist() == received.tolist()
    sizes = [int(view.receive_counts.sum() + view.send_counts.sum()) for view in views]
    if (owner >= 0).all():
        assert boundary_sizes(graph.edges, owner, trainers).tolist() == sizes


def check_rows(graph: TrainingGraph, view: WorkerView) -> None:
    assert np.array_equal(view.features, graph.features[view.own])
    rows = np.concatenate([view.own, view.remote, view.halo])
    assert np.array_equal(view.halo_features, graph.features[view.halo])
    assert np.array_equal(view.global_ids, graph.global_ids[rows])
    assert np.array_equal(view.labels, graph.labels[view.own])
    assert np.array_equal(view.in_degrees, graph.in_degrees[rows])
    assert view.targets.tolist() == [i for i, v in enumerate(view.own.tolist()) if graph.loss_mask[v]]


@given(st.integers(1, 12), st.integers(1, 12))
def test_ranks_form_servers(servers: int, trainers: int) -> None:
    places = [Place(rank, servers * trainers, trainers) for rank in range(servers * trainers)]
    assert [(p.server, p.local_rank) for p in places] == [(s, t) for s in range(servers) for t in range(trainers)]
    for place in places:
        assert place.servers == servers
        members = place.members(place.server)
        assert members[place.local_rank] == place.rank
        assert members[0] == place.leader
    assert sorted(r for s in range(servers) for r in places[0].members(s)) == list(range(servers * trainers))


def test_servers_are_whole_machines_or_machines_whole_servers() -> None:
    for wrong in ((0, 4, 3), (4, 4, 2), (-1, 4, 2), (0, 4, 0), (0, 0, 1), (0, 6, 3, 2), (0, 4, 2, 0), (0, 4, 2, 4)):
        with pytest.raises(ConfigError):
            Place(*wrong)
    assert [machines_per_server(size, 4) for size in (1, 2, 4, 8, 12)] == [1, 1, 1, 2, 3]
    for size in (3, 5, 6, 10):
        with pytest.raises(ConfigError, match=f"--trainers-per-server {size}: a machine has 4 trainers"):
            machines_per_server(size, 4)


def test_wrong_subgraphs_and_owners_are_refused(rng: np.random.Generator) -> None:
    graph = subgraph(4, np.array([[0, 1, 2], [1, 2, 3]]), rng)
    for name, array, cause in (
        ("labels", np.zeros(3, np.int64), "has shape"),
        ("in_degrees", np.zeros(4, np.float32), "has type float32"),
        ("features", np.zeros((4, 2), np.int64), "has type int64"),
        ("features", np.zeros((3, 2), np.float32), "has shape"),
        ("edges", np.array([[0], [4]]), "name vertices 0 to 4, there are 4"),
        ("edges", np.zeros(4, np.int64), "has shape"),
    ):
        with pytest.raises(ConfigError, match=f"{name}: {cause}"):
            replace(graph, **{name: array})
    with pytest.raises(ConfigError, match="loss_mask: marks 2 vertices outside the inner set"):
        replace(graph, loss_mask=np.ones(4, np.bool_), distance=np.array([0, 1, 1, 0]))
    for owner, trainer in ((np.zeros(3, int), 0), (np.full(4, 2), 0), (np.full(4, -2), 0), (np.zeros(4, int), 2)):
        with pytest.raises(ConfigError):
            worker_view(graph, owner, trainer, 2)
    for trainers, machines, tries, words in (
        (0, 1, 1, ""),
        (2, 1, 0, ""),
        (2, 0, 1, ""),
        (3, 2, 1, "3 trainers: cannot"),
    ):
        with pytest.raises(ConfigError, match=words):
            split_vertices(graph, trainers, machines, tries=tries)


def test_exact_layers_is_the_distance_of_the_first_missing_edge(rng: np.random.Generator) -> None:
    # 3 -> 2 -> 1 -> 0, and a loop, which does not count
    chain = subgraph(4, np.array([[1, 2, 3, 0], [0, 1, 2, 0]]), rng)
    chain = replace(chain, loss_mask=np.array([True, False, False, False]), distance=np.arange(4))
    assert chain.exact_layers() is None
    for missing in range(4):
        lacking = chain.in_degrees.copy()
        lacking[missing] += 1
        assert replace(chain, in_degrees=lacking).exact_layers() == missing


@given(st.sets(st.integers(-(2**62), 2**62), max_size=30), st.lists(st.integers(-5, 5), max_size=10), st.randoms())
def test_the_rows_of_some_ids(ids: set[int], more: list[int], random: Any) -> None:
    own = random.sample(sorted(ids), len(ids))
    asked = random.sample([*own, *more], len(own) + len(more))
    expected = [own.index(v) if v in own else -1 for v in asked]
    assert rows_of(np.array(own, np.int64), np.array(asked, np.int64)).tolist() == expected


@given(graphs())
@settings(max_examples=30)
def test_halo_rows_in_the_order_of_their_owners(drawn: tuple[TrainingGraph, int, int]) -> None:
    graph, trainers, seed = drawn
    rng = np.random.default_rng(seed)
    view = worker_view(graph, rng.integers(-1, trainers, len(graph)), 0, trainers)
    owner = rng.integers(0, 3, len(view.halo))
    found = by_owner(view, owner)
    check_rows(graph, found)
    assert found.halo.tolist() == [v for o in range(3) for v, at in zip(view.halo, owner, strict=True) if at == o]
    before, after = ([*v.own.tolist(), *v.remote.tolist(), *v.halo.tolist()] for v in (view, found))
    pairs = [[(rows[s], rows[d]) for s, d in v.edge_index.T.tolist()] for rows, v in ((before, view), (after, found))]
    assert pairs[0] == pairs[1]
