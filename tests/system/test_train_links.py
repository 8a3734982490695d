"""Links and classes of edges on a planted graph in two partitions, beside PyG on the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, TrainReport, fit
from atta.train.settings.minibatch import parse_shares
from atta.train.steps.links import LinkTrainer
from atta.train.tasks.splits import EdgeSplit, without_held_out

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, BLOCKS, CANDIDATES = 240, 6, 30
IDS = np.arange(VERTICES) * 3 + 5
SHARES = "0.7,0.2,0.1"


@dataclass
class Planted:
    """A graph whose edges are within blocks, and daemons that serve it."""

    x: torch.Tensor
    edges: np.ndarray
    labels: np.ndarray
    times: np.ndarray
    cluster: str
    running: atta.Cluster


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    rng = np.random.default_rng(3)
    block = np.arange(VERTICES) % BLOCKS
    inside = rng.random((VERTICES, VERTICES)) < np.where(block[:, None] == block, 0.25, 0.002)
    edges = np.stack(np.nonzero(np.triu(inside, 1)))
    edges = np.concatenate([edges, edges[::-1]], axis=1)
    x = (np.eye(BLOCKS)[block] + rng.standard_normal((VERTICES, BLOCKS))).astype(np.float32)
    labels, times = (block[edges[0]] + edges[1] % 2) % 3, rng.integers(0, 60, edges.shape[1])
    labels[rng.random(len(labels)) < 0.1] = -1
    folder = tmp_path_factory.mktemp("planted")
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", VERTICES, ids=IDS, tables={"x": x})
        out.add_edges("node__to__node", *edges, tables={"y": labels, "time": times})
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    with ExitStack() as stack:
        running = stack.enter_context(atta.local(folder / "parts", threads=1))
        yield Planted(torch.from_numpy(x), edges, labels, times, str(running.cluster_file), running)


def config(planted: Planted, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "link", "trainers": 2, "hidden": 16, "dropout": 0.0, "lr": 0.01, "seed": 4, "device": "cpu"},
        **{"verbose": False, "epochs": 8, "batch_size": 64, "num_neighbors": (20, 20), "seed_policy": "global"},
        **{"edge_split": SHARES, "eval_negatives": str(CANDIDATES)},
    }
    return TrainConfig(cluster=planted.cluster, **{**common, **settings})  # type: ignore[arg-type]


def figures_in_one_process(planted: Planted, epochs: int) -> dict[str, float]:
    """MRR and AUC on validation edges of plain PyG, one edge at a time, with candidates of numpy's own."""
    edges, rng = torch.from_numpy(planted.edges), np.random.default_rng(0)
    split = EdgeSplit(parse_shares(SHARES)).of(*torch.from_numpy(IDS[planted.edges]))
    train, known = edges[:, split == 0], set(map(tuple, planted.edges.T.tolist()))
    torch.manual_seed(4)
    model = GraphSAGE(BLOCKS, 16, 2, 16)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(epochs):
        for part in train[:, torch.randperm(train.shape[1])].split(128, dim=1):
            reverse = part.flip(0)
            seeds = set(map(tuple, torch.cat([part, reverse], 1).T.tolist()))
            kept = torch.tensor([tuple(edge) not in seeds for edge in train.T.tolist()])
            rows = model(planted.x, train[:, kept])
            pairs = torch.cat([part, torch.randint(0, VERTICES, part.shape)], 1)
            scores = (rows[pairs[0]] * rows[pairs[1]]).sum(-1)
            labels = torch.cat([torch.ones(part.shape[1]), torch.zeros(part.shape[1])])
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(scores, labels).backward()
            optimizer.step()
    rows = model(planted.x, train).detach()
    ranks, wins = [], []
    for source, target in edges[:, split == 1].T.tolist():
        allowed = [v for v in range(VERTICES) if v != source and (source, v) not in known]
        drawn = rng.choice(allowed, CANDIDATES)
        scores = (rows[drawn] @ rows[source]).numpy()
        own = float(rows[target] @ rows[source])
        ranks.append(1 + (scores > own).sum() + (scores == own).sum() / 2)
        wins.append((scores < own).mean())
    return {"mrr": float(np.mean(1 / np.array(ranks))), "auc": float(np.mean(wins))}


def timeless(report: TrainReport) -> list[tuple[Any, ...]]:
    return [(e.loss, e.steps, e.metrics) for e in report.epochs]


def test_figures_are_near_those_of_one_process(planted: Planted, tmp_path: Path) -> None:
    settings = config(planted, checkpoint=str(tmp_path), early_stop="auc:20")
    report = fit(settings)
    found, expected = report.best.metrics, figures_in_one_process(planted, settings.epochs)
    chance = np.mean(1 / np.arange(1, CANDIDATES + 2))
    assert found["val_mrr"] > 2 * chance
    assert found["val_mrr"] > expected["mrr"] - 0.06
    assert found["val_auc"] > max(0.75, expected["auc"] - 0.05)
    assert report.epochs[-1].loss < report.epochs[0].loss
    names = {"mrr", "hits@1", "hits@10", "hits@100", "auc", "loss"}
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
    _check_scores_of_pairs(planted, tmp_path / "through")


def _check_scores_of_pairs(planted: Planted, checkpoint: Path) -> None:
    """Scores of given pairs are those of PyG on the whole graph and of a decoder by hand."""
    weights = torch.load(checkpoint / "best.pt", weights_only=True)["model"]
    model = GraphSAGE(BLOCKS, 16, 2, 16)
    model.load_state_dict({name.removeprefix("gnn."): t for name, t in weights.items() if name.startswith("gnn.")})
    rows = model(planted.x, torch.from_numpy(planted.edges)).detach().numpy()
    places = np.array([[0, 1], [7, 3], [3, 7], [100, 0]])
    w = {name.removeprefix("link_decoder."): t.numpy() for name, t in weights.items() if name.startswith("link")}
    hidden = np.maximum(rows[places[:, 0]] * rows[places[:, 1]] @ w["hidden.weight"].T + w["hidden.bias"], 0)
    found = atta.predict(planted.running, checkpoint, links=IDS[places])
    assert found is not None
    assert found.values == pytest.approx((hidden @ w["score.weight"].T + w["score.bias"])[:, 0], rel=1e-4, abs=1e-5)
    embeddings = atta.predict(planted.running, checkpoint, IDS[:9])
    assert embeddings is not None
    assert sorted(embeddings.ids) == IDS[:9].tolist()
    of_ids = rows[np.searchsorted(IDS, embeddings.ids)]
    assert embeddings.values == pytest.approx(of_ids, rel=1e-4, abs=1e-5)
    with pytest.raises(atta.errors.ConfigError, match="was trained for --task link: ask for embeddings"):
        atta.predict(planted.running, checkpoint, what="classes")


def figures_of_classes(scores: torch.Tensor, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, macro F1 and loss of scores [edges, classes], one edge at a time; -1: no label."""
    known = [(row.double(), int(label)) for row, label in zip(scores.detach(), labels, strict=True) if label >= 0]
    said, true = [int(row.argmax()) for row, _ in known], [label for _, label in known]
    f1 = []
    for c in range(scores.shape[1]):
        right = sum(a == b == c for a, b in zip(said, true, strict=True))
        f1.append(2 * right / max(1, said.count(c) + true.count(c)))
    losses = [-float(row[label] - row.logsumexp(0)) for row, label in known]
    accuracy = np.mean([a == b for a, b in zip(said, true, strict=True)])
    return {"accuracy": float(accuracy), "macro_f1": float(np.mean(f1)), "loss": float(np.mean(losses))}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("split_by", ["hash", pytest.param("time", marks=pytest.mark.slow)])
def test_figures_of_classes_are_those_of_brute_force(planted: Planted, split_by: str) -> None:
    settings = {"task": "edge-classes", "num_neighbors": (-1, -1), "eval_negatives": "100", "split_by": split_by}
    own: Any = config(planted, **settings).own
    trainer = LinkTrainer(own, planted.running, torch.device("cpu"))
    first, *_, last = [trainer.train_epoch(epoch).loss for epoch in range(12)]
    assert last < first
    ordered, edges = np.sort(planted.times), torch.from_numpy(planted.edges)
    until = [ordered[int(np.ceil(share * len(ordered) - 1e-6)) - 1] for share in (0.7, 0.9)]
    of = (planted.times > until[0]).astype(int) + (planted.times > until[1])
    if split_by == "hash":
        of = EdgeSplit(parse_shares(SHARES)).of(*torch.from_numpy(IDS[planted.edges])).numpy()
    model: Any = trainer.model
    rows = model.gnn(planted.x, edges[:, of == 0])
    scores, tallies = model.link_decoder(rows[edges[0]], rows[edges[1]]), trainer.tallies()
    for number, split in enumerate(("val", "test"), 1):
        expected = figures_of_classes(scores[of == number], planted.labels[of == number])
        assert trainer.objective.metrics(tallies[split]) == pytest.approx(expected, abs=1e-4)
        assert expected["accuracy"] > 0.45  # a third is chance


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


BAD = [
    ("--edge-split 0.5,0.5", "--edge-split 0.5,0.5: give three shares that add up to 1"),
    ("--eval-negatives none", "--eval-negatives none: give a number of at least 1, or all"),
    ("--edge-type a__b__c", "unknown edge type 'a__b__c'"),
    ("--task edge-classes --class-weights balanced", "--class-weights balanced: does not go with --task edge-classes"),
    ("--task edge-classes --decoder mlp", "--decoder: belongs to --task link, not edge-classes"),
    ("--task edge-classes --strategy full", "--task edge-classes: goes with --strategy minibatch, not full"),
    ("--task edge-classes --early-stop mrr:2", "unknown metric of --task edge-classes 'mrr'"),
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
