"""Learning without labels on a planted graph: the loss by brute force, and embeddings beside those of plain PyG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit
from atta.train.steps.embedding import LinearProbe
from atta.train.steps.unlabelled import WalkTrainer

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

BLOCKS, WIDTH = 6, 16
EDGE = "node__to__node"


@dataclass
class Planted:
    """A graph whose edges are within blocks, which are its classes, and daemons that serve it."""

    ids: np.ndarray
    x: torch.Tensor
    y: np.ndarray
    edges: torch.Tensor
    splits: dict[str, np.ndarray]
    running: atta.Cluster

    @property
    def cluster(self) -> str:
        return str(self.running.cluster_file)


def make(folder: Path, vertices: int, inside: float, outside: float, noise: float, stack: ExitStack) -> Planted:
    rng = np.random.default_rng(5)
    ids, y = np.arange(vertices) * 3 + 5, np.arange(vertices) % BLOCKS
    joined = rng.random((vertices, vertices)) < np.where(y[:, None] == y, inside, outside)
    joined[vertices - 1] = joined[:, vertices - 1] = False  # it has no positive sample
    edges = np.stack(np.nonzero(np.triu(joined, 1)))
    edges = np.concatenate([edges, edges[::-1]], axis=1)
    x = (np.eye(BLOCKS)[y] + noise * rng.standard_normal((vertices, BLOCKS))).astype(np.float32)
    order = rng.permutation(vertices)
    splits = dict(zip(("train", "val", "test"), np.split(order, [vertices // 4, vertices // 2]), strict=True))
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", vertices, ids=ids, tables={"x": x, "y": y}, splits=splits)
        out.add_edges(EDGE, *edges)
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    running = stack.enter_context(atta.local(folder / "parts", threads=1))
    return Planted(ids, torch.from_numpy(x), y, torch.from_numpy(edges), splits, running)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with ExitStack() as stack:
        yield make(tmp_path_factory.mktemp("planted"), 180, 0.3, 0.01, 0.8, stack)


def config(planted: Planted, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "unsupervised", "hidden": WIDTH, "dropout": 0.0, "lr": 0.01, "seed": 4, "device": "cpu"},
        **{"verbose": False, "epochs": 4, "batch_size": 60, "num_neighbors": (-1, -1), "seed_policy": "global"},
    }
    return TrainConfig(cluster=planted.cluster, **{**common, **settings})  # type: ignore[arg-type]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("negatives", ["uniform", pytest.param("in_batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("judge", ["classes", pytest.param("links", marks=pytest.mark.slow)])
def test_loss_is_that_of_the_recorded_samples(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, negatives: str, judge: str
) -> None:
    """Brute force: samples by user ids, and embeddings of PyG on the whole graph, one pair at a time."""
    settings = config(planted, negatives=negatives, negatives_per_edge=3, evaluate_by=judge, epochs=1, lr=1e-30)
    trainer = WalkTrainer(settings.own, planted.running, torch.device("cpu"))  # type: ignore[arg-type]
    recorded: list[list[tuple[int, list[int]]]] = []
    scores = WalkTrainer.scores

    def watch(self: WalkTrainer, model: torch.nn.Module, data: Any) -> torch.Tensor:
        ids = data.n_id.numpy()
        positives, there = data.positive[:, 0].tolist(), self.targets(data).tolist()
        drawn = data.negative.tolist() if "negative" in data else None
        batch = []
        for seed in range(data.batch_size):
            if drawn is None:
                at = sum(there[:seed])
                others = [p for p, has in zip(positives, there, strict=True) if has]
                rest = others[at + 1 :] + others[:at]
                row = [rest[k % len(rest)] for k in range(3)]
            else:
                row = drawn[seed]
            if there[seed]:
                batch.append((ids[seed], [ids[positives[seed]], *ids[row]]))
        recorded.append(batch)
        return scores(self, model, data)

    monkeypatch.setattr(WalkTrainer, "scores", watch)
    report = trainer.train_epoch(0)
    at = {int(vertex): place for place, vertex in enumerate(planted.ids)}
    neighbours = {vertex: set() for vertex in at.values()}
    for source, target in planted.edges.T.tolist():
        neighbours[target].add(source)
    messages = planted.edges
    if judge == "links":
        assert trainer.held_out is not None
        kept = trainer.held_out.messages(*torch.from_numpy(planted.ids)[planted.edges])
        messages = planted.edges[:, kept]
    rows = trainer.model.gnn(planted.x, messages).detach().double()
    losses, readable = [], set(map(tuple, messages.T.tolist()))
    for seed, others in (pair for batch in recorded for pair in batch):
        places = [at[int(other)] for other in others]
        assert (places[0], at[int(seed)]) in readable  # a positive sample is an in-neighbour that is not held out
        if negatives == "uniform":
            assert not neighbours[at[int(seed)]] & set(places[1:])
        products = [float(rows[at[int(seed)]] @ rows[place]) for place in places]
        signs = [
            products[0],
            *(-p for p, place in zip(products[1:], places[1:], strict=True) if place != at[int(seed)]),
        ]
        losses.append(sum(np.log1p(np.exp(-p)) for p in signs))
    seeds = [int(seed) for batch in recorded for seed, _ in batch]
    if judge == "classes":
        assert sorted(seeds) == planted.ids[:-1].tolist()  # all but the vertex without neighbours
    assert len(set(seeds)) == len(seeds)
    assert report.loss == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("judge", ["classes", "links"])
def test_positive_samples_of_longer_walks_lie_on_walks(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, judge: str
) -> None:
    """Every pair is joined by a walk of at most three steps along edges that are not held out; the loss by hand."""
    settings = config(planted, walk_length=3, negatives_per_edge=2, evaluate_by=judge, lr=1e-30)
    trainer = WalkTrainer(settings.own, planted.running, torch.device("cpu"))  # type: ignore[arg-type]
    messages = planted.edges
    if judge == "links":
        assert trainer.held_out is not None
        kept = trainer.held_out.messages(*torch.from_numpy(planted.ids)[planted.edges])
        messages = planted.edges[:, kept]
    n = len(planted.ids)
    steps = np.zeros((n, n), bool)
    steps[messages[1], messages[0]] = True  # from a vertex to the source of an in-edge
    near = steps | (steps.astype(int) @ steps > 0) | (steps.astype(int) @ steps.astype(int) @ steps > 0)
    recorded: list[np.ndarray] = []
    scores = WalkTrainer.scores

    def watch(self: WalkTrainer, model: torch.nn.Module, data: Any) -> torch.Tensor:
        ends = torch.cat([torch.stack([data.src_index, data.dst_pos_index], 1), data.dst_neg_index], 1)
        recorded.append(np.searchsorted(planted.ids, data.n_id[ends].numpy()))
        return scores(self, model, data)

    monkeypatch.setattr(WalkTrainer, "scores", watch)
    report = trainer.train_epoch(0)
    pairs = np.concatenate(recorded)
    assert near[pairs[:, 0], pairs[:, 1]].all()
    assert not steps[pairs[:, 0], pairs[:, 1]].all()  # some are further away than one step
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert len(set(pairs[:, 0])) == len(pairs) >= n * 0.8
    rows = trainer.model.gnn(planted.x, messages).detach().double().numpy()
    losses = []
    for seed, positive, *negatives in pairs:
        signs = [rows[seed] @ rows[positive], *(-rows[seed] @ rows[v] for v in negatives if v != seed)]
        losses.append(sum(np.log1p(np.exp(-s)) for s in signs))
    assert report.loss == pytest.approx(np.mean(losses), rel=1e-4)
    again = WalkTrainer(settings.own, planted.running, torch.device("cpu"))  # type: ignore[arg-type]
    assert again.train_epoch(0).loss == report.loss
    recorded.clear()
    again.train_epoch(1)
    assert (np.concatenate(recorded)[:20] != pairs[:20]).any()


def test_training_and_embeddings(planted: Planted, tmp_path: Path) -> None:
    """Linear evaluation, and ``predict``, beside the same weights on the whole graph."""
    report = fit(config(planted, trainers=2, checkpoint=str(tmp_path), negatives_per_edge=2))
    assert report.config.evaluate_by == "classes"
    assert report.epochs[-1].loss < report.epochs[0].loss
    weights = torch.load(tmp_path / "best.pt", weights_only=True)["model"]
    gnn = GraphSAGE(BLOCKS, WIDTH, 2, WIDTH)
    gnn.load_state_dict({name.removeprefix("gnn."): tensor for name, tensor in weights.items()})
    rows = gnn(planted.x, planted.edges).detach()
    expected = accuracy(planted, rows)
    for split in ("val", "test"):
        assert report.best.metrics[f"{split}_accuracy"] == pytest.approx(expected[split], abs=0.02)
    assert {"val_macro_f1", "val_loss"} <= report.best.metrics.keys()
    assert expected["test"] > 2 / BLOCKS
    found = atta.predict(planted.running, tmp_path)
    assert found is not None
    assert found.values == pytest.approx(rows.numpy()[np.searchsorted(planted.ids, found.ids)], abs=1e-4)
    pairs = np.array([[0, 1], [7, 3]])
    scores = atta.predict(planted.running, tmp_path, links=planted.ids[pairs])
    assert scores is not None
    assert scores.values == pytest.approx((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1).numpy(), rel=1e-4, abs=1e-4)
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.slow
def test_infomax_is_judged_by_links(planted: Planted, tmp_path: Path) -> None:
    settings = {"trainers": 2, "task": "dgi", "evaluate_by": "links", "checkpoint": str(tmp_path), "epochs": 10}
    report = fit(config(planted, **settings))
    assert report.epochs[-1].loss < report.epochs[0].loss < 2
    assert report.best.metrics["val_auc"] > 0.6
    assert report.watched.metric == "val_mrr"
    found = atta.predict(planted.running, tmp_path, what="embeddings")
    assert found is not None
    assert found.values.shape == (len(planted.ids), WIDTH)


def accuracy(planted: Planted, rows: torch.Tensor) -> dict[str, float]:
    """Of a logistic regression on the training vertices' rows."""
    train = torch.from_numpy(planted.splits["train"])
    probe = LinearProbe.fit(rows[train], torch.from_numpy(planted.y)[train], BLOCKS)
    said = probe.scores(rows).argmax(1).numpy() == planted.y
    return {name: float(said[places].mean()) for name, places in planted.splits.items()}


BAD = [
    ("--negatives degree", "--negatives degree: --task unsupervised takes uniform, in_batch, exact with walks of one"),
    ("--task dgi --negatives exact", "--negatives: belongs to --task link or unsupervised, not dgi"),
    ("--eval-negatives 5", "--eval-negatives: goes with --evaluate-by links, not classes"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[options for options, _ in BAD])
def test_bad_input_is_refused(planted: Planted, refused: Any, options: str, said: str) -> None:
    given = ["--cluster", planted.cluster, "--task", "unsupervised", "--device", "cpu", "--quiet", *options.split()]
    assert said in refused("train", *given)
