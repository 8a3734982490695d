"""Every task with two partitions and two trainers: the losses and figures of PyG on the whole graph in one process."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, TrainReport, fit
from atta.train.tasks.choice import task_named
from atta.train.tasks.task import Objective
from tests.system.cuts import descend

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, CHANNELS, TRAIN, OUTPUTS = 200, 6, 100, 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "minibatch": {"num_neighbors": (-1, -1), "batch_size": VERTICES, "seed_policy": "global"},
    "exchange": {"strategy": "exchange", "trainers_per_server": 1, "layers": 2},
    "full": {"strategy": "full", "layers": 2},
}
QUICK = {("classes", "exchange"), ("labels", "minibatch"), ("regression", "exchange"), ("regression", "minibatch")}
SPLITS = {"train": np.arange(TRAIN), "val": np.arange(TRAIN, 150), "test": np.arange(150, VERTICES)}


@dataclass
class World:
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


def in_one_process(world: World, config: TrainConfig, objective: Objective, y: torch.Tensor) -> tuple[Any, Any]:
    """Losses of each epoch on the whole graph, and the outputs after the last. ``unit/train/test_tasks.py`` compares
    losses and figures with plain torch and brute force."""
    torch.manual_seed(config.seed)
    model = GraphSAGE(CHANNELS, config.hidden, 2, objective.outputs)
    losses = descend(
        model, config.lr, config.epochs, lambda _: objective.mean_loss(model(world.x, world.edges)[:TRAIN], y[:TRAIN])
    )
    return losses, model(world.x, world.edges).detach()


@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        pytest.param(task, strategy, marks=[] if (task, strategy) in QUICK else pytest.mark.slow)
        for task in ("classes", "labels", "regression")
        for strategy in STRATEGIES
    ],
)
def test_a_task_is_that_of_the_whole_graph_in_one_process(
    world: World, capfd: pytest.CaptureFixture[str], task: str, strategy: str
) -> None:
    settings = config(world, task, epochs=8, eval_every=8, verbose=True, **STRATEGIES[strategy])
    weights, learnt = None, task_named(settings)
    if task == "classes":
        settings, weights = replace(settings, class_weights="balanced"), balanced(world.targets[task][:TRAIN])
    y = learnt.targets(torch.from_numpy(world.targets[task]))
    objective = Objective(learnt, y.shape[1] if y.dim() > 1 else OUTPUTS, weights)
    report = fit(settings)
    left_out = {"classes": "12 of 100 training vertices have no label (-1 in table y) and are left out"}
    assert left_out.get(task, "") in capfd.readouterr().err
    losses, outputs = in_one_process(world, settings, objective, y)
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
        of_split = objective.metrics(objective.tally(outputs[SPLITS[split]], y[SPLITS[split]]).tolist())
        for name in {"classes": ["accuracy"], "labels": ["micro_f1"], "regression": ["mse", "mae", "r2"]}[task]:
            tolerance = {"abs": 2.5 / 50} if task != "regression" else {"rel": 1e-3}
            assert last.metrics[f"{split}_{name}"] == pytest.approx(of_split[name], **tolerance)
    assert (last.val_accuracy is None) == (task != "classes")


# -- practice ----------------------------------------------------------------------------------------------------------

RESUMED: dict[str, dict[str, Any]] = {
    "minibatch": {
        **{"num_neighbors": (4, 4), "batch_size": 15, "accumulate": 3, "dropout": 0.3, "precision": "bf16"},
        **{"class_weights": "balanced", "early_stop": "loss:9", "lr_schedule": "step", "lr_every": 2},
    },
    "exchange": {**STRATEGIES["exchange"], "lr": 0.5, "lr_schedule": "plateau", "lr_every": 1, "early_stop": "mae:9"},
}


def timeless(report: TrainReport) -> list[tuple[Any, ...]]:
    return [(e.loss, e.learning_rate, e.steps, e.metrics) for e in report.epochs]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minibatch", "exchange"])
def test_a_resumed_run_is_the_same_run(world: World, tmp_path: Path, name: str) -> None:
    """Losses, figures and learning rates of every epoch, and the weights after the last, bit for bit."""
    task = "regression" if name == "exchange" else "classes"
    settings = config(world, task, **{"epochs": 6, "clip_grad_norm": 0.5, **RESUMED[name]})
    through = fit(replace(settings, checkpoint=str(tmp_path / "through")))
    stopped = replace(settings, checkpoint=str(tmp_path / "stopped"), resume=True, logger=(f"csv:save_dir={tmp_path}",))
    assert len(fit(replace(stopped, epochs=3)).epochs) == 3
    assert timeless(fit(stopped)) == timeless(through)
    logged = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())  # of both halves of the run
    assert [(int(row["step"]), float(row["loss"])) for row in logged] == [(e.epoch, e.loss) for e in through.epochs]
    assert {e.steps for e in through.epochs} == ({2} if name == "minibatch" else {1})  # four batches, three in a step
    assert through.epochs[-1].learning_rate < through.epochs[0].learning_rate == settings.lr  # type: ignore[operator]
    ends = [
        torch.load(tmp_path / place / "checkpoint.pt", weights_only=True)["model"] for place in ("through", "stopped")
    ]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    assert all(tensor.dtype == torch.float32 for tensor in ends[0].values())


@pytest.mark.slow
def test_weights_of_another_run_and_strategy(world: World, tmp_path: Path) -> None:
    exact = config(world, "labels", epochs=3, **STRATEGIES["exchange"])
    last = fit(replace(exact, checkpoint=str(tmp_path))).epochs[-1]
    onward = config(
        world, "labels", epochs=1, lr=1e-30, init_from=str(tmp_path / "checkpoint.pt"), **STRATEGIES["minibatch"]
    )
    first = fit(onward).epochs[0]
    assert {name: first.metrics[name] for name in last.metrics} == pytest.approx(last.metrics, rel=1e-5)
    # With hardly any learning rate, no evaluation is better than the first: the run stops, and stays stopped.
    still = {"checkpoint": str(tmp_path / "still"), "early_stop": "macro_f1:2", "resume": True}
    for _ in range(2):
        stopped = fit(replace(exact, epochs=50, lr=1e-30, **still))  # type: ignore[arg-type]
        assert (len(stopped.epochs), stopped.best.epoch) == (3, 0)


# -- bad input ---------------------------------------------------------------------------------------------------------


BAD = [
    ("regression", "", "rows of float64, which may be labels or numbers: give --task labels or --task regression"),
    ("classes", "--class-weights {}/absent", "absent: --class-weights: there is no such file"),
    ("classes", "--class-weights {}/two", "two: --class-weights: holds 2 weights, the dataset has 3 classes"),
    ("classes", "--logger csv", "--logger csv: missing a required argument: 'save_dir'"),
    ("classes", "--early-stop mae:3", "unknown metric of --task classes 'mae'"),
    ("classes", "--init-from {}/absent", "absent: --init-from: there is no such file"),
]


@pytest.mark.parametrize(("data", "options", "said"), BAD, ids=[f"{d} {o}" for d, o, _ in BAD])
def test_bad_input_is_refused(world: World, tmp_path: Path, refused: Any, data: str, options: str, said: str) -> None:
    """``unit/train/test_tasks.py`` has labels that serve nobody."""
    (tmp_path / "two").write_text("1\n2\n")
    given = ["--cluster", world.clusters[data], "--trainers", "1", "--device", "cpu", "--quiet"]
    assert said in refused("train", *given, "--checkpoint", str(tmp_path / "run"), *options.format(tmp_path).split())
    assert not [*(tmp_path / "run").glob("*")]
