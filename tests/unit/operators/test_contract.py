"""Rules for every operator: it is a function of user ids. Internal ids and the answering side make no difference."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.samplers.operators import OPERATORS, Shadow, make_operator
from atta.samplers.requests import run
from tests.unit.operators.oracles import Graph, PlainAccess, graphs, in_user_ids, random_graph

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("shadow", {"depth": 2, "num_neighbors": 2}),
    ("shadow", {"depth": 3, "num_neighbors": -1}),
    ("saint-nodes", {"budget": 5}),
    ("saint-edges", {"budget": 4}),
    ("saint-walks", {"length": 3}),
    ("induced", {}),
    ("ladies", {"layers": [4, 3]}),
    ("fastgcn", {"layers": [5, 4]}),
    ("walks", {"length": 4}),
    ("walks", {"length": 4, "p": 0.25, "q": 3.0, "restart": 0.2}),
    ("pinsage", {"count": 3}),
    ("pagerank", {"count": 4, "epsilon": 1e-6}),
    ("closure", {"hops": 2}),
    ("closure", {"hops": 1, "rim": False}),
    ("expansion-aware", {"fanout": 2}),
    ("expansion-aware", {"max_hop": 3, "fanout": 1, "select": "degree"}),
]
HARD = [
    *OPTIONS,
    ("shadow", {"depth": 2, "num_neighbors": 3, "replace": True}),
    ("walks", {"length": 3, "p": 1e-9, "q": 1e9}),
]
"""Also those that take many questions."""
SEEDLESS = ("saint-nodes", "saint-edges")
SETTLED = ("induced", "pagerank", "closure", "expansion-aware")
"""Operators whose batch is the same for every batch number."""


def some_seeds(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(graph.nodes)[: rng.integers(0, graph.nodes + 1)]


@pytest.mark.parametrize(("name", "options"), HARD)
@given(graph=graphs(), seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_results_depend_on_user_ids_only(name: str, options: dict[str, Any], graph: Graph, seed: int) -> None:
    operator, rng = OPERATORS[name](**options), np.random.default_rng(seed)
    seeds = some_seeds(graph, rng)
    other, new = graph.relabelled(rng)
    sampled = graph.sample(operator, seeds, seed)
    assert in_user_ids(graph, sampled) == in_user_ids(other, other.sample(operator, new[seeds], seed))
    if options.get("num_neighbors", -1) == -1:  # the oracle does not draw neighbours
        plain = run(operator.run(graph.batch(seeds, seed)), PlainAccess(graph))
        assert in_user_ids(graph, plain) == in_user_ids(graph, sampled)


@pytest.mark.parametrize(("name", "options"), HARD)
def test_every_batch_draws_again(name: str, options: dict[str, Any], seed: int) -> None:
    graph, seeds = random_graph(seed, 300, 4000), np.random.default_rng(seed).permutation(300)[:40]
    first, second = (in_user_ids(graph, graph.sample(OPERATORS[name](**options), seeds, number)) for number in (0, 1))
    assert (first == second) == (name in SETTLED or options.get("num_neighbors") == -1)


@pytest.mark.parametrize(("name", "options"), HARD)
def test_nothing_to_do(name: str, options: dict[str, Any]) -> None:
    operator, none = OPERATORS[name](**options), np.empty(0, dtype=np.int64)
    nowhere = Graph(none, none, none)
    assert len(nowhere.sample(operator, none).vertices) == 0
    edgeless = Graph(none, none, np.arange(5))
    sampled = edgeless.sample(operator, [3, 1])
    assert sampled.vertices.tolist() == [3, 1]
    assert (sampled.edge_ids < 0).all()
    if name not in (*SEEDLESS, "fastgcn"):
        assert len(random_graph(0).sample(operator, none).vertices) == 0


REFUSED: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "shadow": ({}, {"depth": [-1, 1000, True], "num_neighbors": [0, -2, -1.0, 1e30], "replace": [1]}),
    "saint-nodes": ({}, {"budget": [0, "9"]}),
    "saint-edges": ({}, {"budget": [10**12]}),
    "saint-walks": ({}, {"length": [-1, 2.5]}),
    "ladies": ({}, {"layers": [5, "55"]}),
    "fastgcn": ({}, {"layers": [None]}),
    "walks": ({"length": 2}, {"length": [10**5], "p": [0, True], "q": [math.nan, math.inf], "restart": [1, -0.5]}),
    "pinsage": ({"count": 3}, {"count": [0], "walks": [0], "restart": [1.5]}),
    "pagerank": ({"count": 3}, {"count": [-3], "alpha": [0, 1], "epsilon": [0.0, math.nan]}),
    "closure": ({"hops": 1}, {"hops": [-1, 5000, 1.5], "rim": [0]}),
    "expansion-aware": ({}, {"max_hop": [-1, True], "fanout": [-2, 1e9], "resample": [-1]}),
}
"""By operator: options that it needs, and values that others must not have."""


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        *(
            (name, {**needed, option: value}, re.escape(f"{option} {value!r}"))
            for name, (needed, refused) in REFUSED.items()
            for option, values in refused.items()
            for value in values
        ),
        ("shadow", {"hops": 1}, "hops"),
        ("saint-nodes", {}, "budget"),
        ("ladies", {"layers": []}, "layers"),
        ("ladies", {"layers": [5, 0]}, r"layers\[1\] 0"),
        ("ladies", {"layers": [False]}, r"layers\[0\] False"),
        ("fastgcn", {"layers": [4, math.nan]}, r"layers\[1\] nan"),
        ("pinsage", {"count": 3, "walks": 60000, "length": 60}, "walks 60000 of length 60"),
        ("induced", {"x": 1}, "x"),
        ("closure", {}, "hops"),
        ("expansion-aware", {"select": "random"}, "selection.*random"),
        ("expansion-aware", {"select": ["degree"]}, "selection"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_operator(name, json.dumps(options))


def test_operators_are_made_by_name() -> None:
    assert make_operator("shadow", '{"depth": 1}') == Shadow(1)
    ladies = make_operator("ladies", '{"layers": [3, 4]}')
    assert ladies == OPERATORS["ladies"]([3, 4])
    assert hash(ladies) == hash(OPERATORS["ladies"]((3, 4)))
    for name, options in OPTIONS:
        assert OPERATORS[name](**options).bounds(1000, 10**9, 10**11).edges <= 2**31
