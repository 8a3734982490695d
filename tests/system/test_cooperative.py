"""Cooperative training by four processes gives the gradient of the whole graph in one process, to the last digits.

The other side of every comparison is PyG on the whole graph. Subgraphs come from networkx. Some cases make a mistake on
purpose, one that training would not notice, to show that the comparison finds it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.system import cooperative as harness
from tests.system.cases import marked, which
from tests.system.cooperative import ACROSS, EXACT, RECOMPUTED, SINGLE, WORLD, WRONG, Case


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """The results of each of the four trainers, by case."""
    folder = tmp_path_factory.mktemp("cooperative")
    command = [sys.executable, "-m", "tests.system.cooperative", str(folder)]
    cases, root = which(request), Path(__file__).parents[2]
    trainers = [
        subprocess.Popen([*command, str(rank), cases], cwd=root, stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    try:
        end = time.monotonic() + 150
        while any(t.poll() is None for t in trainers) and not any(t.poll() for t in trainers):
            assert time.monotonic() < end, "the trainers hang"
            time.sleep(0.05)
        failed = [t for t in trainers if t.poll()]
        assert not failed, failed[0].stderr.read() if failed[0].stderr else ""
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
            assert trainer.stderr is not None
            trainer.stderr.close()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def reference(case: Case) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients (or weights after ``steps``) of PyG's model on the whole graph."""
    graph = harness.whole()
    targets = torch.from_numpy(np.flatnonzero(harness.wanted(case)))
    x = torch.from_numpy(graph["x"]).to(getattr(torch, case.dtype))
    y, edges = torch.from_numpy(graph["y"])[targets], torch.from_numpy(graph["edges"])
    model = harness.build(case)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(case.steps or 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edges)[targets], y)
        loss.backward()
        if case.steps:
            optimizer.step()
    return loss.item(), {n: p.detach() if case.steps else p.grad for n, p in model.named_parameters()}  # type: ignore[misc]


def error(result: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest relative error of a parameter."""
    assert result.keys() == expected.keys()
    return max(float((result[n] - e).norm() / e.norm().clamp(min=1e-9)) for n, e in expected.items())


@pytest.mark.parametrize("case", marked([*EXACT, *ACROSS], harness.QUICK))
def test_gradient_is_that_of_the_whole_graph(results: list[dict[str, Any]], case: Case) -> None:
    loss, expected = reference(case)
    mine = results[0][case.name]
    assert mine["loss"] == pytest.approx(loss, rel=1e-10)
    assert error(mine["result"], expected) < 1e-10
    for other in results[1:]:
        assert all(torch.equal(other[case.name]["result"][n], g) for n, g in mine["result"].items())


@pytest.mark.parametrize("case", marked(SINGLE, harness.QUICK))
def test_in_single_precision(results: list[dict[str, Any]], case: Case) -> None:
    assert error(results[0][case.name]["result"], reference(case)[1]) < 1e-4


@pytest.mark.parametrize("case", marked(WRONG, harness.QUICK))
def test_mistakes_are_found(results: list[dict[str, Any]], case: Case) -> None:
    assert error(results[0][case.name]["result"], reference(case)[1]) > 5e-4


@pytest.mark.parametrize("case", EXACT, ids=lambda c: c.name)
def test_the_subgraph_knows_for_how_many_layers_it_is_exact(case: Case) -> None:
    for server in range(WORLD // case.trainers):
        exact = harness.server_graph(case, server).exact_layers()
        assert exact is None or exact >= case.layers


def test_a_subgraph_that_lacks_a_hop_says_so() -> None:
    for case in (c for c in WRONG if c.missing):
        assert [harness.server_graph(case, s).exact_layers() for s in (0, 1)] == [case.layers - case.missing] * 2


def test_recomputed_activations_have_the_same_dropout(results: list[dict[str, Any]]) -> None:
    kept, recomputed = (results[0][case.name] for case in RECOMPUTED)
    assert error(recomputed["result"], kept["result"]) < 1e-12
    assert error(kept["result"], reference(RECOMPUTED[0])[1]) > 1e-3  # dropout changed something


def test_recomputing_exchanges_once_more(results: list[dict[str, Any]]) -> None:
    kept, recomputed = (sum(r[case.name]["bytes"] for r in results) for case in RECOMPUTED)
    assert recomputed == 1.5 * kept


@pytest.mark.parametrize("transport", ["messages", "collective"])
def test_derivative_of_the_exchange(results: list[dict[str, Any]], transport: str) -> None:
    for found in results:
        assert found["exchange"][transport]["rows"]
        assert found["exchange"][transport]["error"] < 1e-6


@pytest.mark.parametrize("transport", ["messages", "collective"])
def test_bytes_are_those_of_the_rows_that_are_read(results: list[dict[str, Any]], transport: str) -> None:
    for server in (0, 1):
        graph = harness.server_graph(Case("sage"), server)
        for local, other in ((0, 1), (1, 0)):
            ours, theirs = (results[2 * server + i]["exchange"][transport] for i in (local, other))
            mine, others = set(ours["own"].tolist()), set(theirs["own"].tolist())
            sent = {s for s, t in graph.edges.T.tolist() if s in mine and t in others}
            received = {s for s, t in graph.edges.T.tolist() if s in others and t in mine}
            row = 8 * ours["width"]
            assert ours["forward_bytes"] == len(sent) * row
            assert ours["round_bytes"] == (len(sent) + len(received)) * row


def test_bytes_that_cross_are_those_between_machines(results: list[dict[str, Any]]) -> None:
    owner = results[0]["crossing"]["owner"].tolist()
    read = {(s, owner[t]) for s, t in harness.server_graph(Case("sage", trainers=4), 0).edges.T.tolist()}
    for rank, found in enumerate(results):
        sent = sum(owner[s] == rank and reader // 2 != rank // 2 for s, reader in read)
        received = sum(reader == rank and owner[s] // 2 != rank // 2 for s, reader in read)
        assert sent > 0
        assert found["crossing"]["bytes"] == (sent + received) * 5 * 8


@pytest.mark.parametrize(
    "case", marked([c for c in ACROSS if c.model in ("sage", "gcn") and not c.steps], harness.QUICK)
)
def test_bytes_between_servers_are_those_of_the_rows_that_they_read(results: list[dict[str, Any]], case: Case) -> None:
    """Rows of hidden layers, and as much for their gradients; features are there from the beginning."""
    rank = np.empty(harness.VERTICES, np.int64)
    for server in range(WORLD // case.trainers):
        graph = harness.own_graph(case, server)
        inner = harness.first_vertices(graph, int((graph.distance == 0).sum()))
        rank[inner.global_ids] = server * case.trainers + harness.owners(case, inner, server)
    source, target = harness.whole()["edges"]
    read = {(v, r) for v, r in zip(source.tolist(), rank[target].tolist(), strict=True)}
    pairs = sum(rank[v] // case.trainers != r // case.trainers for v, r in read)
    expected = 2 * (case.layers - 1) * pairs * 8 * 8  # there and back, 8 channels of 8 bytes
    assert sum(found[case.name]["crossed"] for found in results) == expected


def test_exchanges_may_overlap(results: list[dict[str, Any]]) -> None:
    assert [found["halves"] for found in results] == [True] * WORLD


def test_features_travel_once(results: list[dict[str, Any]]) -> None:
    for found in results:
        assert found["fixed"] == {"less": True, "same": True, "others": True}
