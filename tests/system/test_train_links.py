"""Links, classes of edges, and learning without labels on a planted graph in two partitions, beside the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
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
from atta.train.settings.minibatch import parse_shares
from atta.train.steps.embedding import LinearProbe
from atta.train.steps.links import LinkTrainer
from atta.train.steps.unlabelled import WalkTrainer
from atta.train.tasks.splits import EdgeSplit, without_held_out

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, BLOCKS, CANDIDATES, WIDTH = 240, 6, 30, 16
IDS = np.arange(VERTICES) * 3 + 5
SHARES = "0.7,0.2,0.1"


@dataclass
class Planted:
    """A graph whose edges are within blocks, which are the classes of vertices, and daemons that serve it. The last
    vertex has no neighbours."""

    x: torch.Tensor
    y: np.ndarray
    edges: torch.Tensor
    splits: dict[str, np.ndarray]
    labels: np.ndarray
    times: np.ndarray
    running: atta.LocalCluster

    @property
    def cluster(self) -> str:
        return str(self.running.cluster_file)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("planted")
    y = np.arange(VERTICES) % BLOCKS
    inside = rng.random((VERTICES, VERTICES)) < np.where(y[:, None] == y, 0.25, 0.002)
    inside[-1] = inside[:, -1] = False
    edges = np.stack(np.nonzero(np.triu(inside, 1)))
    edges = np.concatenate([edges, edges[::-1]], axis=1)
    x = (np.eye(BLOCKS)[y] + rng.standard_normal((VERTICES, BLOCKS))).astype(np.float32)
    labels, times = (y[edges[0]] + edges[1] % 2) % 3, rng.integers(0, 60, edges.shape[1])
    labels[rng.random(len(labels)) < 0.1] = -1
    parts = np.split(rng.permutation(VERTICES), [VERTICES // 4, VERTICES // 2])
    splits = dict(zip(("train", "val", "test"), parts, strict=True))
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", VERTICES, ids=IDS, tables={"x": x, "y": y}, splits=splits)
        out.add_edges("node__to__node", *edges, tables={"y": labels, "time": times})
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    with atta.local(folder / "parts", threads=1) as running:
        yield Planted(torch.from_numpy(x), y, torch.from_numpy(edges), splits, labels, times, running)


def config(planted: Planted, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "link", "trainers": 2, "hidden": 16, "dropout": 0.0, "lr": 0.01, "seed": 4, "device": "cpu"},
        **{"verbose": False, "epochs": 8, "batch_size": 64, "num_neighbors": (20, 20), "seed_policy": "global"},
        **{"edge_split": SHARES, "eval_negatives": str(CANDIDATES)},
    }
    return TrainConfig(cluster=planted.cluster, **{**common, **settings})  # type: ignore[arg-type]


def timeless(report: TrainReport) -> list[tuple[Any, ...]]:
    return [(e.loss, e.steps, e.metrics) for e in report.epochs]


def test_links_are_learnt(planted: Planted, tmp_path: Path) -> None:
    """``test_train_typed_links.py`` has figures by brute force."""
    report = fit(config(planted, checkpoint=str(tmp_path), early_stop="auc:20"))
    found = report.best.metrics
    assert found["val_mrr"] > 2 * np.mean(1 / np.arange(1, CANDIDATES + 2))  # twice chance
    assert found["val_auc"] > 0.75
    assert report.epochs[-1].loss < report.epochs[0].loss
    names = {"mrr", "hits@1", "hits@3", "hits@10", "auc", "loss"}
    assert set(found) == {f"{split}_{name}" for split in ("val", "test") for name in names}
    assert report.to_json()["best"]["metrics"] == found
    assert "val 0." in report.epochs[0].line() or "val_mrr 0." in report.epochs[0].line()
    assert {"best.pt", "checkpoint.pt"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_a_resumed_run_is_the_same_and_candidates_do_not_depend_on_trainers(planted: Planted, tmp_path: Path) -> None:
    settings = config(planted, epochs=2, decoder="mlp", negatives="exact", num_neighbors=(-1, -1))
    through = fit(replace(settings, checkpoint=str(tmp_path / "through")))
    stopped = replace(settings, checkpoint=str(tmp_path / "stopped"), resume=True)
    fit(replace(stopped, epochs=1))
    assert timeless(fit(stopped)) == timeless(through)
    # The same weights, evaluated by one trainer: a learning rate of nearly 0 leaves them as they are.
    alone = config(
        planted, trainers=1, epochs=1, lr=1e-30, decoder="mlp", num_neighbors=(-1, -1),
        init_from=str(tmp_path / "through" / "checkpoint.pt"),
    )  # fmt: skip
    assert fit(alone).epochs[0].metrics == pytest.approx(through.epochs[-1].metrics, rel=1e-4)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("split_by", ["hash", pytest.param("time", marks=pytest.mark.slow)])
def test_figures_of_classes_are_those_of_the_whole_graph(planted: Planted, split_by: str) -> None:
    settings = {"task": "edge-classes", "num_neighbors": (-1, -1), "eval_negatives": "100", "split_by": split_by}
    own: Any = config(planted, **settings).own
    trainer = LinkTrainer(own, planted.running, torch.device("cpu"))
    first, *_, last = [trainer.train_epoch(epoch).loss for epoch in range(12)]
    assert last < first
    ordered, edges = np.sort(planted.times), planted.edges
    until = [ordered[int(np.ceil(share * len(ordered) - 1e-6)) - 1] for share in (0.7, 0.9)]
    of = (planted.times > until[0]).astype(int) + (planted.times > until[1])
    if split_by == "hash":
        of = EdgeSplit(parse_shares(SHARES)).of(*torch.from_numpy(IDS[planted.edges])).numpy()
    model: Any = trainer.model
    rows = model.gnn(planted.x, edges[:, of == 0])
    scores, tallies = model.link_decoder(rows[edges[0]], rows[edges[1]]), trainer.tallies()
    for number, split in enumerate(("val", "test"), 1):
        own = trainer.objective.tally(scores[of == number], torch.from_numpy(planted.labels[of == number]))
        found = trainer.objective.metrics(tallies[split])
        assert found == pytest.approx(trainer.objective.metrics(own.tolist()), abs=1e-4)
        assert found["accuracy"] > 0.45  # a third is chance


def test_edges_that_a_gcn_adds_are_not_held_out(planted: Planted) -> None:
    split = EdgeSplit(parse_shares(SHARES))
    loader = atta.NeighborLoader(planted.running, [-1, 5], None, batch_size=100, tables=["x"], edge_norm="gcn")
    for batch in loader:
        drawn = batch.to_pyg()
        before = drawn.edge_weight[drawn.edge_index[0] == drawn.edge_index[1]].tolist()
        data = without_held_out(drawn, split)
        assert data.edge_weight.shape == (sum(data.num_sampled_edges),) == (data.edge_index.shape[1],)
        assert data.edge_weight[data.edge_index[0] == data.edge_index[1]].tolist() == before
        assert len(before) >= sum(data.num_sampled_nodes[:2])


def test_no_seed_edge_and_no_held_out_edge_is_a_message(planted: Planted) -> None:
    split = EdgeSplit(parse_shares(SHARES))
    ends = torch.from_numpy(IDS[planted.edges])
    held_out = {tuple(edge) for edge in ends[:, split.of(*ends) > 0].T.tolist()}
    train = ends[:, split.of(*ends) == 0].numpy()
    loader = atta.LinkNeighborLoader(
        planted.running, [-1, 5], train, neg_sampling="binary", batch_size=100, shuffle=True, tables=["x"]
    )
    graph = set(map(tuple, ends.T.tolist()))
    for batch in loader:
        drawn = batch.to_pyg()
        before = drawn.n_id[drawn.edge_index].T.tolist()
        hops = np.repeat([0, 1], drawn.num_sampled_edges)
        data = without_held_out(drawn, split)
        seeds = data.n_id[data.edge_label_index[:, : data.batch_size]].T.tolist()
        forbidden = held_out | {tuple(edge) for edge in seeds} | {tuple(edge[::-1]) for edge in seeds}
        after = [tuple(edge) for edge in data.n_id[data.edge_index].T.tolist()]
        assert after == [tuple(edge) for edge in before if tuple(edge) not in held_out]
        assert not forbidden & set(after)
        assert set(after) <= graph
        kept = [hop for hop, edge in zip(hops, before, strict=True) if tuple(edge) not in held_out]
        assert data.num_sampled_edges == [kept.count(0), kept.count(1)]


# -- without labels: the loss by brute force, embeddings beside those of plain PyG --------------------------------------


def unlabelled(planted: Planted, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "unsupervised", "hidden": WIDTH, "dropout": 0.0, "lr": 0.01, "seed": 4, "device": "cpu"},
        **{"verbose": False, "epochs": 4, "batch_size": 60, "num_neighbors": (-1, -1), "seed_policy": "global"},
    }
    return TrainConfig(cluster=planted.cluster, **{**common, **settings})  # type: ignore[arg-type]


def messages_of(planted: Planted, trainer: WalkTrainer) -> torch.Tensor:
    if trainer.held_out is None:
        return planted.edges
    return planted.edges[:, trainer.held_out.messages(*torch.from_numpy(IDS)[planted.edges])]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("negatives", ["uniform", pytest.param("in_batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("judge", ["classes", pytest.param("links", marks=pytest.mark.slow)])
def test_loss_is_that_of_the_recorded_samples(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, negatives: str, judge: str
) -> None:
    """Brute force: samples by user ids, and embeddings of PyG on the whole graph, one pair at a time."""
    settings = unlabelled(planted, negatives=negatives, negatives_per_edge=3, evaluate_by=judge, epochs=1, lr=1e-30)
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
    at = {int(vertex): place for place, vertex in enumerate(IDS)}
    neighbours = {vertex: set() for vertex in at.values()}
    for source, target in planted.edges.T.tolist():
        neighbours[target].add(source)
    messages = messages_of(planted, trainer)
    rows = trainer.model.gnn(planted.x, messages).detach().double()
    losses, readable = [], set(map(tuple, messages.T.tolist()))
    for seed, others in (pair for batch in recorded for pair in batch):
        places = [at[int(other)] for other in others]
        assert (places[0], at[int(seed)]) in readable  # a positive sample is an in-neighbour that is not held out
        if negatives == "uniform":
            assert not neighbours[at[int(seed)]] & set(places[1:])
        own, *apart = (float(rows[at[int(seed)]] @ rows[place]) for place in places)
        signs = [own, *(-p for p, place in zip(apart, places[1:], strict=True) if place != at[int(seed)])]
        losses.append(sum(np.log1p(np.exp(-p)) for p in signs))
    seeds = [int(seed) for batch in recorded for seed, _ in batch]
    if judge == "classes":
        assert sorted(seeds) == IDS[:-1].tolist()  # all but the vertex without neighbours
    assert len(set(seeds)) == len(seeds)
    assert report.loss == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("judge", ["classes", "links"])
def test_positive_samples_of_longer_walks_lie_on_walks(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, judge: str
) -> None:
    """Every pair is joined by a walk of at most three steps along edges that are not held out; the loss by hand."""
    settings = unlabelled(planted, walk_length=3, negatives_per_edge=2, evaluate_by=judge, lr=1e-30)
    trainer = WalkTrainer(settings.own, planted.running, torch.device("cpu"))  # type: ignore[arg-type]
    messages = messages_of(planted, trainer)
    n = VERTICES
    steps = np.zeros((n, n), bool)
    steps[messages[1], messages[0]] = True  # from a vertex to the source of an in-edge
    near = steps | (steps.astype(int) @ steps > 0) | (steps.astype(int) @ steps.astype(int) @ steps > 0)
    recorded: list[np.ndarray] = []
    scores = WalkTrainer.scores

    def watch(self: WalkTrainer, model: torch.nn.Module, data: Any) -> torch.Tensor:
        ends = torch.cat([torch.stack([data.src_index, data.dst_pos_index], 1), data.dst_neg_index], 1)
        recorded.append(np.searchsorted(IDS, data.n_id[ends].numpy()))
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
    report = fit(unlabelled(planted, trainers=2, checkpoint=str(tmp_path), negatives_per_edge=2))
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
    assert found.values == pytest.approx(rows.numpy()[np.searchsorted(IDS, found.ids)], abs=1e-4)
    pairs = np.array([[0, 1], [7, 3]])
    scores = atta.predict(planted.running, tmp_path, links=IDS[pairs])
    assert scores is not None
    assert scores.values == pytest.approx((rows[pairs[:, 0]] * rows[pairs[:, 1]]).sum(1).numpy(), rel=1e-4, abs=1e-4)
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.slow
def test_infomax_is_judged_by_links(planted: Planted, tmp_path: Path) -> None:
    settings = {"trainers": 2, "task": "dgi", "evaluate_by": "links", "checkpoint": str(tmp_path), "epochs": 10}
    report = fit(unlabelled(planted, **settings))
    assert report.epochs[-1].loss < report.epochs[0].loss < 2
    assert report.best.metrics["val_auc"] > 0.6
    assert report.watched.metric == "val_mrr"
    found = atta.predict(planted.running, tmp_path, what="embeddings")
    assert found is not None
    assert found.values.shape == (VERTICES, WIDTH)


def accuracy(planted: Planted, rows: torch.Tensor) -> dict[str, float]:
    """Of a logistic regression on the training vertices' rows."""
    train = torch.from_numpy(planted.splits["train"])
    probe = LinearProbe.fit(rows[train], torch.from_numpy(planted.y)[train], BLOCKS)
    said = probe.scores(rows).argmax(1).numpy() == planted.y
    return {name: float(said[places].mean()) for name, places in planted.splits.items()}


# -- bad input ----------------------------------------------------------------------------------------------------------

BAD = [
    ("--edge-split 0.5,0.5", "--edge-split 0.5,0.5: give three shares that add up to 1"),
    ("--eval-negatives none", "--eval-negatives none: give a number of at least 1, or all"),
    ("--edge-type a__b__c", "unknown edge type 'a__b__c'"),
    ("--task edge-classes --class-weights balanced", "--class-weights balanced: does not go with --task edge-classes"),
    ("--task edge-classes --decoder mlp", "--decoder: belongs to --task link, not edge-classes"),
    ("--task edge-classes --strategy full", "--task edge-classes: goes with --strategy minibatch, not full"),
    ("--task edge-classes --early-stop mrr:2", "unknown metric of --task edge-classes 'mrr'"),
    (
        "--task unsupervised --negatives degree",
        "--negatives degree: --task unsupervised takes uniform, in_batch, exact with walks of one",
    ),
    ("--task dgi --negatives exact", "--negatives: belongs to --task link or unsupervised, not dgi"),
    ("--task unsupervised --eval-negatives 5", "--eval-negatives: goes with --evaluate-by links, not classes"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[options for options, _ in BAD])
def test_bad_input_is_refused(planted: Planted, refused: Any, options: str, said: str) -> None:
    given = ["--cluster", planted.cluster, "--task", "link", "--device", "cpu", "--quiet", *options.split()]
    assert said in refused("train", *given)


USELESS = [
    (True, {"task": "link"}, "no candidates for edges of val: their sources have edges to all"),
    (True, {"task": "unsupervised", "edge_split": "1,0,0"}, "no negative samples: every vertex has edges from all"),
    (False, {"task": "link"}, "node has no edges"),
]


@pytest.mark.parametrize(("complete", "settings", "said"), USELESS)
def test_graphs_without_candidates_or_edges(tmp_path: Path, complete: bool, settings: Any, said: str) -> None:
    source, target = np.nonzero(~np.eye(12, dtype=bool)) if complete else (np.zeros(0, int), np.zeros(0, int))
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 12, tables={"x": np.ones((12, 2), np.float32)})
        out.add_edges("node__to__node", source, target)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random", seed=0)
    with pytest.raises(atta.errors.ConfigError, match=said):
        fit(TrainConfig(data=str(tmp_path / "parts"), device="cpu", verbose=False, threads=1, **settings))
