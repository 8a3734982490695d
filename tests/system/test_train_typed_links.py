"""Links and classes of edges on typed graphs: what is read, what is ranked, and figures by brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit
from atta.train.settings.minibatch import parse_shares
from atta.train.steps.links import TypedLinkTrainer
from atta.train.tasks.choice import task_on
from atta.train.tasks.splits import EdgeSplit
from tests.hetero import hidden_over_all_vertices

BUYS, BOUGHT, KNOWS, TAGS = (
    ("user", "buys", "item"),
    ("item", "bought_by", "user"),
    ("user", "knows", "user"),
    ("tag", "on", "item"),
)
COUNTS, BLOCKS = {"item": 50, "tag": 8, "user": 70}, 4
SHARES = "0.7,0.2,0.1"


@dataclass
class World:
    """Users buy items of their own block; tags have no features. Ids of users and items overlap."""

    ids: dict[str, np.ndarray]
    x: dict[str, torch.Tensor]
    edges: dict[tuple[str, str, str], torch.Tensor]
    times: np.ndarray
    labels: np.ndarray
    running: atta.Cluster

    def user_ids(self, edge_type: tuple[str, str, str]) -> torch.Tensor:
        ends = zip(edge_type[::2], self.edges[edge_type].numpy(), strict=True)
        return torch.from_numpy(np.stack([self.ids[t][places] for t, places in ends]))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    rng, folder = np.random.default_rng(7), tmp_path_factory.mktemp("typed-links")
    block = {t: np.arange(n) % BLOCKS for t, n in COUNTS.items()}
    ids = {t: rng.permutation(2 * n)[:n] for t, n in COUNTS.items()}
    x = {}
    for t, width in (("item", 6), ("user", 5)):
        x[t] = 0.8 * rng.standard_normal((COUNTS[t], width)).astype(np.float32)
        x[t][np.arange(COUNTS[t]), block[t]] += 1

    def joined(source: str, target: str, inside: float, outside: float) -> np.ndarray:
        alike = block[source][:, None] == block[target]
        return np.stack(np.nonzero(rng.random(alike.shape) < np.where(alike, inside, outside)))

    buys = joined("user", "item", 0.4, 0.02)
    buys = np.concatenate([buys, buys[:, :15]], axis=1)  # some edges come twice
    edges = {
        BUYS: buys,
        BOUGHT: buys[::-1],
        KNOWS: joined("user", "user", 0.1, 0.05),
        TAGS: joined("tag", "item", 0.3, 0),
    }
    times = rng.integers(0, 40, buys.shape[1])
    labels = (block["user"][buys[0]] + block["item"][buys[1]]) % 3
    labels[rng.random(len(labels)) < 0.1] = -1
    tables = {BUYS: {"time": times, "y": labels}, BOUGHT: {"time": times}}
    with GraphWriter(folder / "graph") as out:
        for t, n in COUNTS.items():
            out.add_nodes(t, n, ids=ids[t], tables={"x": x[t]} if t in x else {})
        for e, pair in edges.items():
            out.add_edges("__".join(e), *pair, tables=tables.get(e, {}))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    with atta.local(folder / "parts", threads=1) as running:
        yield World(
            ids, {t: torch.from_numpy(rows) for t, rows in x.items()},
            {e: torch.from_numpy(np.ascontiguousarray(pair)) for e, pair in edges.items()}, times, labels, running,
        )  # fmt: skip


def config(world: World, **settings: Any) -> TrainConfig:
    common = {
        **{"task": "link", "model": "hetero-sage", "edge_type": "user,buys,item", "hidden": 12, "heads": 2, "lr": 0.01},
        **{"dropout": 0.0, "seed": 4, "device": "cpu", "verbose": False, "epochs": 4, "batch_size": 64},
        **{"num_neighbors": (-1, -1), "edge_split": SHARES, "eval_negatives": "all", "seed_policy": "global"},
    }
    return TrainConfig(cluster=str(world.running.cluster_file), **{**common, **settings})  # type: ignore[arg-type]


def trainer_of(world: World, settings: TrainConfig) -> TypedLinkTrainer:
    own: Any = settings.own
    own = type(own)(**{**vars(own), **task_on(world.running.schema, own).resolved})
    return TypedLinkTrainer(own, world.running, torch.device("cpu"))


def divided(world: World, trainer: TypedLinkTrainer) -> tuple[dict[tuple[int, ...], int], np.ndarray]:
    """The split of each pair that buys, by places, and which edges are messages."""
    pairs = list(map(tuple, world.edges[BUYS].T.tolist()))
    if trainer.config.split_by == "hash":
        of = EdgeSplit(parse_shares(SHARES)).of(*world.user_ids(BUYS)).numpy()
        return dict(zip(pairs, of.tolist(), strict=True)), of == 0
    first: dict[tuple[int, ...], int] = {}
    for pair, time in zip(pairs, world.times.tolist(), strict=True):
        first[pair] = min(time, first.get(pair, time))
    ordered = sorted(first.values())
    train, val = (ordered[int(np.ceil(share * len(ordered) - 1e-6)) - 1] for share in (0.7, 0.9))
    return {pair: (time > train) + (time > val) for pair, time in first.items()}, world.times <= train


@torch.no_grad()
def ends_by_hand(world: World, trainer: TypedLinkTrainer, kept: Any) -> list[torch.Tensor]:
    """Embeddings of users and items over the whole graph; ``kept``: of the edges that are divided, those to read."""
    assert trainer.embeddings is not None
    x = {**world.x, "tag": trainer.embeddings.rows({"tag": torch.from_numpy(world.ids["tag"])})["tag"]}
    messages = {e: pair[:, kept] if e in (BUYS, BOUGHT) else pair for e, pair in world.edges.items()}
    model: Any = trainer.model
    h = hidden_over_all_vertices(model, x, messages)
    return [model.outputs[t](h[t]) for t in ("user", "item")]


def by_hand(world: World, trainer: TypedLinkTrainer, split: int) -> dict[str, float]:
    """MRR, Hits@10 and AUC of the trainer's weights: every edge beside all items that its user has not bought."""
    pairs, kept = divided(world, trainer)
    users, items = ends_by_hand(world, trainer, kept)
    decoder: Any = trainer.model.link_decoder
    scores = decoder(users[:, None], items).detach().double().numpy()
    own = [pair for pair, number in pairs.items() if number == split]
    ranks, wins, games = [], 0.0, 0
    for user, item in own:
        others = [scores[user, other] for other in range(COUNTS["item"]) if (user, other) not in pairs]
        ranks.append(1 + sum(s > scores[user, item] for s in others))
        for positive in own:
            wins += sum(s < scores[positive] for s in others)
            games += len(others)
    placed = 1 / np.array(ranks)
    return {"mrr": float(placed.mean()), "hits@10": float(np.mean(np.array(ranks) <= 10)), "auc": wins / games}


SLOW = pytest.mark.slow
CASES = [("hetero-sage", "time"), ("hetero-sage", "hash"), ("rgcn", "hash"), ("hgt", "time"), ("hetero-gat", "hash")]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("model", "split_by"), [pytest.param(*c, marks=[SLOW] if n else []) for n, c in enumerate(CASES)]
)
def test_figures_are_those_of_brute_force_and_nothing_leaks(
    world: World, monkeypatch: pytest.MonkeyPatch, model: str, split_by: str
) -> None:
    trainer = trainer_of(world, config(world, model=model, split_by=split_by))
    seen: list[Any] = []
    readable = TypedLinkTrainer.readable

    def watch(self: TypedLinkTrainer, data: Any) -> Any:
        found = readable(self, data)
        seen.append(found)
        return found

    monkeypatch.setattr(TypedLinkTrainer, "readable", watch)
    first = trainer.train_epoch(0).loss
    check_messages(world, trainer, seen)
    for split, number in (("val", 1), ("test", 2)):
        found = trainer.objective.metrics(trainer.tallies()[split])
        expected = by_hand(world, trainer, number)
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    last = [trainer.train_epoch(epoch).loss for epoch in range(1, 14)][-1]
    assert last < first
    if model == "hetero-sage":  # others need more steps
        assert trainer.objective.metrics(trainer.tallies()["val"])["auc"] > 0.7
    assert trainer.embeddings is not None
    trainer.embeddings.delete()


def check_messages(world: World, trainer: TypedLinkTrainer, batches: list[Any]) -> None:
    """No edge of validation or test, no seed edge and no reverse of these is a message; negatives are items."""
    split, kept = divided(world, trainer)
    named = [(world.ids["user"][user], world.ids["item"][item], n) for (user, item), n in split.items()]
    held_out = {(user, item) for user, item, number in named if number}
    graph = {e: set(map(tuple, world.user_ids(e).T.tolist())) for e in world.edges}
    readable = set(map(tuple, world.user_ids(BUYS)[:, torch.from_numpy(kept)].T.tolist()))
    assert 0 < len(held_out) < len(graph[BUYS]) / 2
    train, seeds_seen = graph[BUYS] - held_out, []
    for data in batches:
        user, item = (data[t].n_id for t in ("user", "item"))
        label, count = data[BUYS].edge_label_index, data[BUYS].batch_size
        seeds = list(zip(user[label[0, :count]].tolist(), item[label[1, :count]].tolist(), strict=True))
        seeds_seen += seeds
        assert label.shape[1] == 2 * count
        assert data[BUYS].edge_label.tolist() == [1.0] * count + [0.0] * count
        assert set(item[label[1]].tolist()) <= set(world.ids["item"].tolist())
        forbidden = held_out | set(seeds)
        for e in (BUYS, BOUGHT):
            ends = [data[t].n_id[places].tolist() for t, places in zip(e[::2], data[e].edge_index, strict=True)]
            messages = set(zip(*(ends if e == BUYS else ends[::-1]), strict=True))
            assert messages <= readable - forbidden
            assert data.num_sampled_edges[e] == data[e].num_sampled_edges
            assert sum(data.num_sampled_edges[e]) == len(ends[0])
        knows = zip(*(user[places].tolist() for places in data[KNOWS].edge_index), strict=True)
        assert set(knows) <= graph[KNOWS]
    assert sorted(seeds_seen) == sorted(train)  # each once, though some edges come twice


@pytest.mark.slow
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("model", "split_by"), [("hetero-sage", "time"), ("rgcn", "hash")])
def test_figures_of_classes_are_those_of_the_whole_graph(world: World, model: str, split_by: str) -> None:
    settings = {"task": "edge-classes", "eval_negatives": "100", "model": model, "split_by": split_by}
    trainer = trainer_of(world, config(world, **settings))
    first, *_, last = [trainer.train_epoch(epoch).loss for epoch in range(12)]
    assert last < first
    tallies, ordered = trainer.tallies(), np.sort(world.times)
    until = [ordered[int(np.ceil(share * len(ordered) - 1e-6)) - 1] for share in (0.7, 0.9)]
    of = (world.times > until[0]).astype(int) + (world.times > until[1])
    if split_by == "hash":
        of = EdgeSplit(parse_shares(SHARES)).of(*world.user_ids(BUYS)).numpy()
    users, items = ends_by_hand(world, trainer, of == 0)
    decoder: Any = trainer.model.link_decoder
    scores = decoder(users[world.edges[BUYS][0]], items[world.edges[BUYS][1]])
    for number, split in enumerate(("val", "test"), 1):
        own = trainer.objective.tally(scores[of == number], torch.from_numpy(world.labels[of == number]))
        found = trainer.objective.metrics(tallies[split])
        assert found == pytest.approx(trainer.objective.metrics(own.tolist()), abs=1e-4)
    assert trainer.embeddings is not None
    trainer.embeddings.delete()


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_trainers")
@pytest.mark.parametrize("task", ["link", "edge-classes"])
def test_two_trainers_give_the_figures_of_one(world: World, tmp_path: Path, task: str) -> None:
    given = {"task": task, "eval_negatives": "all" if task == "link" else "100"}
    run = fit(config(world, **given, trainers=2, epochs=3, checkpoint=str(tmp_path)))
    onward = {"epochs": 1, "lr": 1e-30, "embedding_lr": 1e-30, "init_from": str(tmp_path)}
    best = {name: value for name, value in run.best.metrics.items() if name in run.epochs[-1].metrics}
    assert fit(config(world, **given, **onward)).epochs[0].metrics == pytest.approx(best, rel=1e-4)
    with pytest.raises(atta.errors.ConfigError, match=f"for --task {task}: ask for embeddings, or give pairs"):
        atta.predict(world.running, tmp_path, what="scores")


BAD = [
    ("", "--edge-type: name the edges to predict, one of item__bought_by__user"),
    ("--edge-type user,likes,item", "unknown edge type 'user,likes,item'"),
    ("--edge-type user__buys__item --model sage", "--model sage: takes graphs with one node type and one edge type"),
    ("--edge-type user__buys__item --target item", "--target: --task link learns about both ends of --edge-type"),
    ("--edge-type user__buys__item --reverse-type user__knows__user", "does not lead from item to user"),
    ("--edge-type user__knows__user --split-by time", "edge type user__knows__user needs an edge table time"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[options for options, _ in BAD])
def test_bad_input_is_refused(world: World, refused: Any, options: str, said: str) -> None:
    given = ["--cluster", str(world.running.cluster_file), "--task", "link", "--model", "rgcn", "--device", "cpu"]
    assert said in refused("train", *given, "--quiet", *options.split())
