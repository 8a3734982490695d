"""Cooperative training by four processes gives the gradient of the whole graph in one process, to the last digits.

The other side of every comparison is PyG on the whole graph. Subgraphs come from networkx. Some cases make a mistake on
purpose, one that training would not notice, to show that the comparison finds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.system import cooperative as harness
from tests.system.cases import marked, results_of, which
from tests.system.cooperative import ACROSS, EXACT, RECOMPUTED, SINGLE, WORLD, WRONG, Case, numbers

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(
    preloaded_trainers: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Results:
    return results_of("tests.system.cooperative", tmp_path_factory.mktemp("cooperative"), which(request))


def reference(case: Case) -> tuple[float, dict[str, torch.Tensor]]:
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
    assert result.keys() == expected.keys()
    return max(float((result[n] - e).norm() / e.norm().clamp(min=1e-9)) for n, e in expected.items())


@pytest.mark.parametrize("case", marked([*EXACT, *ACROSS], harness.QUICK))
def test_gradient_is_that_of_the_whole_graph(results: Results, case: Case) -> None:
    loss, expected = reference(case)
    mine = results[0][case.name]
    assert mine["loss"] == pytest.approx(loss, rel=1e-10)
    assert error(mine["result"], expected) < 1e-10
    for other in results[1:]:
        assert all(torch.equal(other[case.name]["result"][n], g) for n, g in mine["result"].items())


@pytest.mark.parametrize("case", marked([*SINGLE, *WRONG], harness.QUICK))
def test_mistakes_are_larger_than_what_single_precision_loses(results: Results, case: Case) -> None:
    off = error(results[0][case.name]["result"], reference(case)[1])
    assert off < 1e-4 if case in SINGLE else off > 5e-4


def test_recomputed_activations_have_the_same_dropout_and_exchange_once_more(results: Results) -> None:
    kept, recomputed = (results[0][case.name] for case in RECOMPUTED)
    assert error(recomputed["result"], kept["result"]) < 1e-12
    assert error(kept["result"], reference(RECOMPUTED[0])[1]) > 1e-3  # dropout changed something
    sent, again = (sum(r[case.name]["bytes"] for r in results) for case in RECOMPUTED)
    assert again == 1.5 * sent


@pytest.mark.parametrize("transport", ["messages", "collective"])
def test_an_exchange_has_the_right_rows_and_bytes(results: Results, transport: str) -> None:
    assert all(found["exchange"][transport]["rows"] for found in results)
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


def test_bytes_that_cross_are_those_between_machines(results: Results) -> None:
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
def test_bytes_between_servers_are_those_of_the_rows_that_they_read(results: Results, case: Case) -> None:
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


@pytest.mark.parametrize(("codec", "lost"), [("bf16", 2**-9), ("int8", 1 / 254)])
@pytest.mark.parametrize("servers", [0, 1])
def test_a_sum_in_fewer_bytes_is_rounded_twice_and_the_same_everywhere(
    results: Results, servers: int, codec: str, lost: float
) -> None:
    given = torch.stack([numbers(rank) for rank in range(WORLD)])
    found = [result["sums"][servers][codec] for result in results]
    assert all(torch.equal(one, found[0]) for one in found)
    error = float((found[0] - given.sum(0)).abs().max())
    assert 0 < error < 1.1 * lost * float(given.abs().amax(1).sum() + given.sum(0).abs().max())


def test_exchanges_may_overlap_and_features_travel_once(results: Results) -> None:
    for found in results:
        assert found["halves"]
        assert found["fixed"]
