"""Every task with two partitions and two trainers: the losses and figures of PyG on the whole graph in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, CHANNELS, TRAIN, OUTPUTS = 200, 6, 100, 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "minibatch": {"num_neighbors": (-1, -1), "batch_size": VERTICES, "seed_policy": "global"},
    "exchange": {"strategy": "exchange", "trainers_per_server": 1, "layers": 2},
    "full": {"strategy": "full", "layers": 2},
}
SPLITS = {"train": np.arange(TRAIN), "val": np.arange(TRAIN, 150), "test": np.arange(150, VERTICES)}


@dataclass
class World:
    """A graph, its targets, and daemons that serve it for each of them."""

    x: torch.Tensor
    edges: torch.Tensor
    targets: dict[str, np.ndarray]
    clusters: dict[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((VERTICES, CHANNELS)).astype(np.float32)
    source, target = rng.integers(0, VERTICES, (2, 1200))
    around = np.zeros((VERTICES, OUTPUTS))
    np.add.at(around, target, x[source, :OUTPUTS])
    labels = (around > 0).astype(np.int8)
    labels[::11, 1] = -1
    numbers = np.column_stack([around @ [1, -2, 0.5] + 3, around[:, 0]])
    numbers[::13, 0] = np.nan
    classes = around.argmax(1)
    classes[::9] = -1
    classes[TRAIN // 2 : TRAIN][classes[TRAIN // 2 : TRAIN] == 2] = 0  # a rare class
    targets = {"classes": classes, "labels": labels, "regression": numbers}
    with ExitStack() as stack:
        clusters = {}
        for name, y in targets.items():
            folder = tmp_path_factory.mktemp(name)
            with GraphWriter(folder / "graph") as out:
                out.add_nodes("node", VERTICES, tables={"x": x, "y": y}, splits=SPLITS)
                out.add_edges("node__to__node", source, target)
            partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
            clusters[name] = str(stack.enter_context(atta.local(folder / "parts", threads=1)).cluster_file)
        yield World(torch.from_numpy(x), torch.from_numpy(np.stack([source, target])), targets, clusters)


def config(world: World, task: str, **settings: Any) -> TrainConfig:
    common = {"trainers": 2, "hidden": 8, "dropout": 0.0, "lr": 0.05, "seed": 4, "device": "cpu", "verbose": False}
    named = {} if task == "classes" else {"task": task}
    return TrainConfig(cluster=world.clusters[task], **{**common, **named, **settings})  # type: ignore[arg-type]


def balanced(classes: np.ndarray) -> torch.Tensor:
    """As scikit-learn weighs them: vertices / (classes * vertices of the class)."""
    counts = np.bincount(classes[classes >= 0])
    return torch.tensor(counts.sum() / (len(counts) * counts), dtype=torch.float32)


def loss_of(task: str, weights: torch.Tensor | None = None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Plain torch on rows whose target is known."""

    def classes(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y.long(), weight=weights, ignore_index=-1)

    def labels(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = F.binary_cross_entropy(out.sigmoid(), y.clamp(min=0).float(), reduction="none")
        return (each * (y >= 0)).sum() / (y >= 0).any(1).sum() / OUTPUTS

    def regression(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((out - y.nan_to_num()) ** 2 * ~y.isnan()).sum() / (~y.isnan()).any(1).sum() / 2

    return {"classes": classes, "labels": labels, "regression": regression}[task]


def expected_metrics(task: str, out: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """By brute force, one vertex and output at a time."""
    if task == "classes":
        pairs = [(row.argmax(), true) for row, true in zip(out, y, strict=True) if true >= 0]
        return {"accuracy": sum(said == true for said, true in pairs) / len(pairs)}
    entries = [(s, t) for row, true in zip(out, y, strict=True) for s, t in zip(row, true, strict=True)]
    if task == "labels":
        entries = [(s > 0, t == 1) for s, t in entries if t >= 0]
        right, said, true = (
            sum(f(s, t) for s, t in entries) for f in (lambda s, t: s and t, lambda s, t: s, lambda s, t: t)
        )
        return {"micro_f1": 2 * right / (said + true)}
    errors = [s - t for s, t in entries if not np.isnan(t)]
    columns = [c[~np.isnan(c)].astype(float) for c in y.T]
    predicted = [o[~np.isnan(c)].astype(float) for o, c in zip(out.T, y.T, strict=True)]
    r2 = [1 - ((c - p) ** 2).sum() / ((c - c.mean()) ** 2).sum() for c, p in zip(columns, predicted, strict=True)]
    return {"mse": np.mean(np.square(errors)), "mae": np.mean(np.abs(errors)), "r2": np.mean(r2)}


def in_one_process(world: World, config: TrainConfig, task: str, **options: Any) -> tuple[list[float], np.ndarray]:
    """Losses of each epoch on the whole graph, and the outputs after the last."""
    y = torch.from_numpy(world.targets[task])
    torch.manual_seed(config.seed)
    outputs = y.shape[1] if y.dim() > 1 else OUTPUTS
    model = GraphSAGE(CHANNELS, config.hidden, 2, outputs)
    optimizer = torch.optim.Adam(model.parameters(), config.lr)
    losses, loss = [], loss_of(task, **options)
    for _ in range(config.epochs):
        optimizer.zero_grad()
        found = loss(model(world.x, world.edges)[:TRAIN], y[:TRAIN])
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses, model(world.x, world.edges).detach().numpy()


@pytest.mark.parametrize("strategy", [*list(STRATEGIES)[:2], pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", ["classes", "labels", "regression"])
def test_a_task_is_that_of_the_whole_graph_in_one_process(world: World, task: str, strategy: str) -> None:
    settings = config(world, task, epochs=8, eval_every=8, **STRATEGIES[strategy])
    weights = {}
    if task == "classes":
        settings, weights = (
            replace(settings, class_weights="balanced"),
            {"weights": balanced(world.targets[task][:TRAIN])},
        )
    report = fit(settings)
    losses, outputs = in_one_process(world, settings, task, **weights)
    # DDP averages the means of two halves, which have different numbers of targets. So only the first loss is exact.
    exact = len(losses) if strategy != "minibatch" else 1
    assert [e.loss for e in report.epochs][:exact] == pytest.approx(losses[:exact], rel=1e-4)
    assert [e.loss for e in report.epochs] == pytest.approx(losses, rel=0.1)
    assert report.epochs[-1].loss < 0.9 * report.epochs[0].loss
    assert report.to_json()["task"] == task
    last = report.epochs[-1]
    if strategy == "minibatch":
        return
    for split in ("val", "test"):
        of_split = expected_metrics(task, outputs[SPLITS[split]], world.targets[task][SPLITS[split]])
        for name, value in of_split.items():
            tolerance = {"abs": 2.5 / 50} if task != "regression" else {"rel": 1e-3}
            assert last.metrics[f"{split}_{name}"] == pytest.approx(value, **tolerance)
    assert (last.val_accuracy is None) == (task != "classes")
