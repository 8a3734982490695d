"""Computing only the needed rows gives PyG's own result, forwards and backwards."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN

from atta.errors import ConfigError
from atta.train import TrainConfig
from atta.train.models import build_model, compile_in_place


def batch(rng: np.random.Generator, seeds: int, fan_outs: tuple[int, ...]) -> tuple[torch.Tensor, list[int], list[int]]:
    """Random edges in a loader's order: hop by hop, targets ascending. New sources get numbers as they appear."""
    nodes, edges, columns = [seeds], [], []
    first, total = 0, seeds
    for fan_out in fan_outs:
        targets = np.repeat(np.arange(first, total), rng.integers(0, fan_out + 1, total - first))
        fresh = rng.random(len(targets)) < 0.7
        sources = rng.integers(0, total, len(targets))
        sources[fresh] = total + np.arange(fresh.sum())
        columns.append(np.stack([sources, targets]))
        edges.append(len(targets))
        nodes.append(int(fresh.sum()))
        first, total = total, total + nodes[-1]
    return torch.from_numpy(np.concatenate(columns, axis=1)), nodes, edges


MODELS = ["sage", "gcn", "gat", "resgcn+", "deepergcn"]


@pytest.mark.parametrize("model", [*MODELS, "gcn with weights of edges"])
@pytest.mark.parametrize("fan_outs", [(4,), (4, 3), (3, 3, 2)])
def test_same_scores_and_gradients_as_pyg(rng: np.random.Generator, model: str, fan_outs: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    kind = model.partition(" ")[0]
    config = TrainConfig(data="x", model=kind, num_neighbors=fan_outs, hidden=8, heads=2, dropout=0.0)
    ours = build_model(config, 5, 3)
    edge_index, nodes, edges = batch(rng, 6, fan_outs)
    x = torch.from_numpy(rng.standard_normal((sum(nodes), 5)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, 6))
    pyg, weights = copy.deepcopy(ours.gnn), {}
    if kind != model:
        pyg, weights = GCN(5, 8, len(fan_outs), 3, normalize=False), {"edge_weight": torch.rand(sum(edges))}
        pyg.load_state_dict(ours.gnn.state_dict())

    scores = ours(x, edge_index, nodes, edges, **weights)
    expected = pyg(x, edge_index, **weights)[:6]
    assert scores.shape == (6, 3)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)

    torch.nn.functional.cross_entropy(scores, y).backward()
    torch.nn.functional.cross_entropy(expected, y).backward()
    for (name, a), (_, b) in zip(ours.gnn.named_parameters(), pyg.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_bfloat16_is_near_single_precision_and_seeds_need_no_neighbour(rng: np.random.Generator, model: str) -> None:
    edge_index, nodes, edges = batch(rng, 20, (4, 3))
    x = torch.from_numpy(rng.standard_normal((sum(nodes), 5)).astype(np.float32))
    gradients = []
    for reduced in (False, True):
        torch.manual_seed(0)
        settings = {"model": model, "num_neighbors": (4, 3), "hidden": 64, "heads": 2, "dropout": 0.0}
        network = build_model(TrainConfig(data="x", **settings), 5, 3)  # type: ignore[arg-type]
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            scores = network(x, edge_index, nodes, edges)
        scores.float().square().mean().backward()
        parts = [p.grad for p in network.parameters() if p.grad is not None]
        assert all(part.dtype == torch.float32 for part in parts)
        gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    exact, near = gradients
    assert not torch.equal(exact, near)
    assert torch.nn.functional.cosine_similarity(exact, near, dim=0) > 0.99
    alone = network.eval()(torch.ones(4, 5), torch.empty((2, 0), dtype=torch.int64), [4, 0, 0], [0, 0])
    assert torch.isfinite(alone).all()
    torch.testing.assert_close(alone, alone[:1].expand(4, 3))


def test_a_compiled_model_is_the_same_model(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = TrainConfig(data="x", num_neighbors=(4, 3), hidden=8, heads=2, dropout=0.0)
    network, copy = build_model(config, 5, 3), build_model(config, 5, 3)
    copy.load_state_dict(network.state_dict())
    compile_in_place(copy, torch.device("cpu"), backend="aot_eager")
    for seeds in (20, 13, 31):  # batches of other sizes
        edge_index, nodes, edges = batch(rng, seeds, (4, 3))
        x = torch.from_numpy(rng.standard_normal((sum(nodes), 5)).astype(np.float32))
        scores, same = network(x, edge_index, nodes, edges), copy(x, edge_index, nodes, edges)
        torch.testing.assert_close(scores, same)
        for some in (scores, same):
            some.square().sum().backward()
    assert list(network.state_dict()) == list(copy.state_dict())
    for weight, other in zip(network.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # something was compiled

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="there is no no-such-compiler"):
        compile_in_place(torch.nn.Linear(1, 1), torch.device("cpu"))


@pytest.mark.slow
def test_matrices_come_without_torchs_note() -> None:
    """torch gives it once per process, so this needs a fresh one."""
    code = (
        "import torch; from atta.train.models import adjacency; one = torch.ones(2);"
        "m = adjacency(torch.tensor([2, 0]), torch.tensor([0, 1]), one, (2, 3)); print(m.to_dense().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]"
    assert "beta" not in done.stderr
