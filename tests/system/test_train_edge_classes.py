"""Classes of edges beside brute force, on a graph with one type and on a typed one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import atta
from atta.cli import main as root
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit
from atta.train.settings.minibatch import parse_shares
from atta.train.steps.selfsupervised.links import LinkTrainer, TypedLinkTrainer
from atta.train.tasks.choice import task_on
from atta.train.tasks.splits import EdgeSplit
from tests.hetero import hidden_over_all_vertices

RATES, RATED, TO = ("user", "rates", "item"), ("item", "rated_by", "user"), ("node", "to", "node")
COUNTS, CLASSES = {"item": 40, "user": 60, "node": 70}, 3
SHARES = "0.7,0.2,0.1"
Triple = tuple[str, str, str]


@dataclass
class World:
    """A graph whose edges have classes that follow from the blocks of their ends."""

    ids: dict[str, np.ndarray]
    x: dict[str, torch.Tensor]
    edges: dict[Triple, torch.Tensor]
    labels: np.ndarray
    times: np.ndarray
    running: atta.Cluster

    def user_ids(self, edge_type: Triple) -> torch.Tensor:
        ends = zip(edge_type[::2], self.edges[edge_type].numpy(), strict=True)
        return torch.from_numpy(np.stack([self.ids[t][places] for t, places in ends]))


def made(folder: Path, main: Triple, reverse: Triple | None, stack: ExitStack) -> World:
    rng, types = np.random.default_rng(9), sorted({main[0], main[2]})
    ids = {t: rng.permutation(2 * COUNTS[t])[: COUNTS[t]] for t in types}
    block = {t: rng.integers(0, CLASSES, COUNTS[t]) for t in types}
    x = {t: 0.4 * rng.standard_normal((COUNTS[t], 4 + n)).astype(np.float32) for n, t in enumerate(types)}
    for t in types:
        x[t][np.arange(COUNTS[t]), block[t]] += 1
    pairs = np.stack([rng.integers(0, COUNTS[t], 500) for t in main[::2]])
    labels = (block[main[0]][pairs[0]] + block[main[2]][pairs[1]]) % CLASSES
    labels[rng.random(500) < 0.1] = -1
    times = rng.integers(0, 60, 500)
    edges = {main: pairs, **({} if reverse is None else {reverse: pairs[::-1]})}
    with GraphWriter(folder / "graph") as out:
        for t in types:
            out.add_nodes(t, COUNTS[t], ids=ids[t], tables={"x": x[t]})
        for e, ends in edges.items():
            out.add_edges("__".join(e), *ends, tables={"time": times, **({"y": labels} if e == main else {})})
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    running = stack.enter_context(atta.local(folder / "parts", threads=1))
    return World(
        ids, {t: torch.from_numpy(rows) for t, rows in x.items()},
        {e: torch.from_numpy(np.ascontiguousarray(ends)) for e, ends in edges.items()}, labels, times, running,
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield made(tmp_path_factory.mktemp("plain"), TO, None, stack)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield made(tmp_path_factory.mktemp("typed"), RATES, RATED, stack)


def config(world: World, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "edge-classes", "hidden": 12, "lr": 0.01, "dropout": 0.0, "seed": 4, "device": "cpu"},
        **{"verbose": False, "epochs": 3, "batch_size": 64, "num_neighbors": (-1, -1), "edge_split": SHARES},
    }
    return TrainConfig(cluster=str(world.running.cluster_file), **{**common, **settings})  # type: ignore[arg-type]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def by_hand(world: World, trainer: Any, main: Triple, split: int) -> dict[str, float]:
    """Accuracy, macro F1 and loss of a split, one edge at a time, from rows of the whole graph."""
    if trainer.config.split_by == "hash":
        of = EdgeSplit(parse_shares(SHARES)).of(*world.user_ids(main)).numpy()
    else:
        ordered = np.sort(world.times)
        of = (world.times > ordered[349]).astype(int) + (world.times > ordered[449])
    messages = {e: ends[:, torch.from_numpy(of == 0)] for e, ends in world.edges.items()}
    model: Any = trainer.model
    with torch.no_grad():
        if main == TO:
            rows = dict.fromkeys(("node",), model.gnn(world.x["node"], messages[TO]))
        else:
            h = hidden_over_all_vertices(model, world.x, messages)
            rows = {t: model.outputs[t](h[t]) for t in main[::2]}
        losses, said, true = [], [], []
        for (source, target), label, number in zip(world.edges[main].T.tolist(), world.labels, of, strict=True):
            if number != split or label < 0:
                continue
            scores = model.link_decoder(rows[main[0]][source][None], rows[main[2]][target][None])[0].double()
            losses.append(-float(scores[label] - scores.logsumexp(0)))
            said.append(int(scores.argmax()))
            true.append(int(label))
    f1 = []
    for c in range(CLASSES):
        right = sum(a == b == c for a, b in zip(said, true, strict=True))
        f1.append(2 * right / max(1, said.count(c) + true.count(c)))
    accuracy = np.mean([a == b for a, b in zip(said, true, strict=True)])
    return {"accuracy": float(accuracy), "macro_f1": float(np.mean(f1)), "loss": float(np.mean(losses))}


CASES = [
    ("plain", "sage", "hash"),
    ("typed", "hetero-sage", "time"),
    ("typed", "rgcn", "hash"),
    ("plain", "sage", "time"),
]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("graph", "model", "split_by"),
    [pytest.param(*c, marks=[pytest.mark.slow] if n else []) for n, c in enumerate(CASES)],
)
def test_figures_are_those_of_brute_force(
    request: pytest.FixtureRequest, graph: str, model: str, split_by: str
) -> None:
    world: World = request.getfixturevalue(graph)
    main, kind = (TO, LinkTrainer) if graph == "plain" else (RATES, TypedLinkTrainer)
    own: Any = config(world, model=model, split_by=split_by, edge_type="__".join(main)).own
    own = type(own)(**{**vars(own), **task_on(world.running.schema, own).resolved})
    trainer = kind(own, world.running, torch.device("cpu"))
    first = trainer.train_epoch(0)
    for epoch in range(1, 12):
        last = trainer.train_epoch(epoch)
    assert last.loss < first.loss
    tallies = trainer.tallies()
    for number, split in enumerate(("val", "test"), 1):
        assert trainer.objective.metrics(tallies[split]) == pytest.approx(
            by_hand(world, trainer, main, number), abs=1e-4
        )
    if model != "rgcn":  # it needs more steps
        assert trainer.objective.metrics(tallies["val"])["accuracy"] > 0.5  # a third is chance


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers")
def test_two_trainers_give_the_figures_of_one(typed: World, tmp_path: Path) -> None:
    settings = {"model": "hetero-sage", "edge_type": "user,rates,item", "split_by": "time"}
    run = fit(config(typed, trainers=2, checkpoint=str(tmp_path), **settings))
    weights = str(tmp_path / "checkpoint.pt")
    alone = fit(config(typed, trainers=1, epochs=1, lr=1e-30, init_from=weights, **settings))
    assert alone.epochs[0].metrics == pytest.approx(run.epochs[-1].metrics, rel=1e-4)
    with pytest.raises(atta.errors.ConfigError, match="for --task edge-classes: ask for embeddings, or give pairs"):
        atta.predict(typed.running, tmp_path, what="scores")


BAD = [
    ("--class-weights balanced", "--class-weights balanced: does not go with --task edge-classes"),
    ("--decoder mlp", "--decoder: belongs to --task link, not edge-classes"),
    ("--strategy full", "--task edge-classes: goes with --strategy minibatch, not full"),
    ("--early-stop mrr:2", "unknown metric of --task edge-classes 'mrr'"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[options for options, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    plain: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: str, said: str
) -> None:
    given = ["--cluster", str(plain.running.cluster_file), "--task", "edge-classes", "--device", "cpu", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["atta", "train", *given, *options.split()])
    with pytest.raises(SystemExit) as stopped:
        root.main()
    text = capfd.readouterr().err
    assert stopped.value.code == 2
    assert said in text
    assert "Traceback" not in text
