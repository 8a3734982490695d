"""What a loader reports: its length, the nearest name to a wrong one, and the arguments that it ignores."""

from __future__ import annotations

import itertools
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.loaders import arguments as loader_arguments
from atta.partition import Dataset, GraphWriter, partition_graph
from atta.samplers.local.predict import predict
from tests.system.conftest import SmallGraph

PLACEMENT = "2 parts by metis, 1 threads"
NOTHING: dict[str, Any] = {"num_neighbors": [], "tables": {}, "edge_ids": False}


@pytest.fixture
def cluster(placements: dict[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements[PLACEMENT]


@pytest.fixture
def opened(cluster: atta.LocalCluster) -> Any:
    before = sum(s["sessions_opened"] for s in cluster.stats())
    return lambda: sum(s["sessions_opened"] for s in cluster.stats()) - before


@pytest.mark.parametrize(
    "options", [{"pad": pad, "drop_last": drop} for pad in (True, False) for drop in (True, False)]
)
@pytest.mark.parametrize("policy", ["local", "global"])
def test_a_loader_is_as_long_as_its_epoch(
    cluster: atta.LocalCluster, small_graph: SmallGraph, policy: str, options: dict[str, Any]
) -> None:
    """``unit/dag/test_seeds.py`` has what ranks get."""
    links = np.stack([small_graph.src_ids[:50], small_graph.dst_ids[:50]])
    seen: list[int] = []
    for rank in range(3):
        how = {"rank": rank, "world_size": 3, "seed_policy": policy, "shuffle": True, **options}
        loader = atta.NeighborLoader(cluster, batch_size=25, **NOTHING, **how)
        batches = list(loader)
        seen += [v for batch in batches for v in batch.n_id().tolist()]
        assert len(loader) == len(batches)
        linked = atta.LinkNeighborLoader(cluster, [2], links, batch_size=6, neg_sampling="binary", **how)
        assert len(linked) == len(list(linked))
    assert options["pad"] or options["drop_last"] or sorted(seen) == sorted(small_graph.train_ids.tolist())
    few = atta.NeighborLoader(cluster, [2], small_graph.ids[:3], batch_size=1, rank=3, world_size=4, **options)
    if options["pad"] and options["drop_last"]:  # fewer seeds than ranks
        for ask in (lambda: next(iter(few)), lambda: len(few)):
            with pytest.raises(atta.ConfigError, match="drop_last leaves no batch: 3 seeds"):
                ask()
    else:
        assert len(few) == len(list(few))


def test_given_batches_are_dealt_out(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    groups = [sorted(group.tolist()) for group in np.array_split(small_graph.ids[:70], 7)]
    for rank, pad in itertools.product(range(3), (True, False)):
        how = {"rank": rank, "world_size": 3, "pad": pad}
        loader = atta.BatchLoader(cluster, "induced", batches=groups, **how)
        mine, own = [sorted(batch.n_id().tolist()) for batch in loader], groups[rank::3]
        assert len(mine) == len(loader) == (3 if pad else len(own))
        assert mine[: len(own)] == own
        drawn = atta.BatchLoader(cluster, "saint-nodes", {"budget": 3}, batches=7, **how)
        assert len(drawn) == len(list(drawn)) == len(mine)


def test_the_length_asks_no_daemon(cluster: atta.LocalCluster, opened: Any) -> None:
    loader = atta.NeighborLoader(cluster, [2], "train", batch_size=50)
    assert len(loader) == 3
    assert opened() == 0
    assert len(list(loader)) == 3
    assert opened() == 1
    for empty in (np.array([], np.int64), []):
        with pytest.raises(atta.ConfigError, match="no seeds"):
            len(atta.NeighborLoader(cluster, [2], empty))
    with pytest.raises(atta.ConfigError, match="drop_last leaves no batch"):
        len(atta.NeighborLoader(cluster, [2], "train", batch_size=500, drop_last=True))


def test_trainers_draw_alike_in_a_step_of_dependent_batches(small_graph: SmallGraph) -> None:
    """So a vertex that both of them expand in a hop has the same in-edges, and they need the same rows."""

    def second_hop(batch: atta.MiniBatch) -> dict[int, list[int]]:
        n_id, (row, col) = batch.n_id(), batch.edge_index()
        start = batch.to_pyg().num_sampled_edges[0]
        found: dict[int, list[int]] = {}
        for source, target in zip(n_id[row[start:]].tolist(), n_id[col[start:]].tolist(), strict=True):
            found.setdefault(target, []).append(source)
        return found

    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        alike, expanded = {}, {}
        for dependency in (1, 8):
            loaders = [
                atta.NeighborLoader(
                    cluster, [4, 3], None, batch_size=16, rank=rank, world_size=2, seed=1, dependency=dependency
                )
                for rank in (0, 1)
            ]
            steps = [[second_hop(batch) for batch in loader] for loader in loaders]
            both = [(one[v], other[v]) for one, other in zip(*steps, strict=True) for v in one.keys() & other.keys()]
            expanded[dependency], alike[dependency] = len(both), sum(one == other for one, other in both)
        one = {k: atta.NeighborLoader(cluster, [4], None, batch_size=10_000, dependency=k) for k in (1, 8)}
        epochs = {k: [{e for b in loader for e in b.e_id().tolist()} for _ in range(2)] for k, loader in one.items()}
    shared = {k: len(first & second) / len(first) for k, (first, second) in epochs.items()}
    assert shared[8] > 0.8 > shared[1], "they resemble each other over the end of an epoch"
    assert min(expanded.values()) > 50
    assert alike[8] == expanded[8]
    assert alike[1] < expanded[1]


def test_resume_at_the_end_and_beyond(cluster: atta.LocalCluster) -> None:
    loader = atta.NeighborLoader(cluster, batch_size=50, **NOTHING)
    assert list(loader.resume(2, 3)) == []
    for arguments in [(0, -1), (-1, 0), (0, 4), (0.0, 1), (True, 0), (1 << 64, 0)]:
        with pytest.raises(atta.ConfigError, match=r"(epoch|batch) -?[\dT].*must be a whole number"):
            loader.resume(*arguments)


# -- arguments ---------------------------------------------------------------------------------------------------------

BIG = 2**63 + 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_nodes": np.array([1, BIG], np.uint64)}, str(BIG)),
        ({"input_nodes": [BIG]}, str(BIG)),
        ({"input_nodes": [1, BIG]}, str(BIG)),
        ({"input_nodes": [2**70, 1]}, str(2**70)),
        ({"input_nodes": "tran"}, "train"),
        ({"input_nodes": ("paper", "train")}, "paper"),
        ({"input_nodes": [1.5]}, "float64 such as 1.5"),
        ({"input_nodes": np.array([np.nan])}, "nan"),
        ({"input_nodes": [[1], [2, 3]]}, "input_nodes"),
        ({"input_nodes": [1], "input_time": [2.5], "time_attr": "time"}, "2.5"),
        ({"input_nodes": [1], "input_time": np.array([BIG], np.uint64), "time_attr": "time"}, str(BIG)),
        ({"batch_size": 1.5}, "batch_size 1.5: must be a whole number"),
        ({"batch_size": True}, "batch_size True"),
        ({"batch_size": 1 << 40}, f"batch_size {1 << 40}"),
        ({"num_neighbors": [5, -2]}, "-2"),
        ({"num_neighbors": [10**8]}, "100000000"),
        ({"num_neighbors": [2.5]}, "2.5"),
        ({"num_neighbors": 5}, "num_neighbors 5: must list a fan-out for every hop"),
        ({"num_neighbors": {"node__to__node": 5}}, "num_neighbors 5"),
        ({"num_neighbors": {("node", 1): [5]}}, "edge type"),
        ({"seed": -1}, r"seed -1: must be a whole number, 0 to 2\*\*64 - 1"),
        ({"seed": 1 << 64}, f"seed {1 << 64}"),
        ({"seed_policy": "globl"}, "seed policy 'globl'; did you mean 'global'"),
        ({"epochs": -1}, "epochs -1"),
        ({"share": float("nan")}, "share nan: must be a positive number"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"world_size": 0}, "world_size 0"),
        ({"shuffle": "no"}, "shuffle 'no': must be True or False"),
        ({"replace": 2}, "replace 2"),
        ({"frontier": "some"}, "frontier"),
        ({"codec": "fp61"}, "fp16"),
        ({"transform": 3}, "transform 3"),
        ({"tables": 3}, "tables 3: must be a name or a list of names"),
        ({"tables": "xx"}, "table"),
        ({"tables": {"node": "xx"}}, "table"),
        ({"seed_tables": "yy"}, "table"),
        ({"edge_tables": "notes"}, "note"),
        ({"edge_tables": [5]}, "5 is not a name"),
    ],
)
def test_mistakes_are_named_at_once(cluster: atta.LocalCluster, options: dict[str, Any], words: str) -> None:
    with pytest.raises(atta.ConfigError, match=words):
        atta.NeighborLoader(cluster, **{"num_neighbors": [2], **options})


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    """Beside those that exist, by loaders, predictions, the daemon and commands."""
    with GraphWriter(tmp_path / "graph") as out:
        x, splits = np.ones((6, 2), np.float32), {"train": [0, 1], "val": [], "test": [2, 3, 4]}
        out.add_nodes("node", 6, tables={"x": x}, splits={name: np.array(rows, int) for name, rows in splits.items()})
        out.add_edges("node__to__node", np.arange(5), np.arange(1, 6))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=1, method="random")
    words = "the split 'val' of 'node' has no vertices; its splits: test 3, train 2, val 0"
    with atta.local(tmp_path / "data", threads=1) as cluster:
        for ask in (
            lambda: atta.NeighborLoader(cluster, [2], "val"),
            lambda: atta.BatchLoader(cluster, "shadow", input_nodes="val"),
            lambda: atta.predict(cluster, [torch.nn.Identity()], nodes="val"),
        ):
            with pytest.raises(atta.ConfigError, match=words):
                ask()
    for command in (["inspect", "data", "--num-neighbors", "2"], ["bench", "loader", "--data", "data"]):
        command[command.index("data", 1)] = str(tmp_path / "data")
        done = CliRunner().invoke(cli, [*command, "--split", "val"])
        assert words in str(done.exception)
    assert len(predict(Dataset.open(tmp_path / "data"), [2])) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"edge_label_index": np.array([[1], [BIG]], np.uint64)}, str(BIG)),
        ({"edge_label_index": [[1], [BIG]]}, str(BIG)),
        ({"edge_label_time": [0.5], "time_attr": "time"}, "0.5"),
        ({"neg_sampling": {"mode": "binary", "amount": float("nan")}}, "amount of negatives nan"),
        ({"neg_sampling": {"mode": "binary", "amount": "2"}}, "amount of negatives '2'"),
        ({"neg_sampling": {"mode": "binary", "amount": True}}, "amount of negatives True"),
        ({"neg_sampling": {"mode": "binary", "amuont": 2}}, "did you mean 'amount'"),
        ({"exclude_edges": "revers"}, "did you mean 'reverse'"),
        ({"edge_label_index": np.zeros((3, 2), np.int64)}, r"integers \[2, E\]"),
        ({"edge_label_index": np.zeros((2, 3))}, r"must be integers, not float64"),
        ({"edge_label": [1, 2]}, "2 labels for 1"),
        ({"edge_label_time": [1, 2]}, "1 integers"),
        ({"edge_label_time": [0]}, "no other has a use"),
        ({"time_attr": "time"}, "needs their times"),
        ({"neg_sampling": "ternary"}, "ternary"),
        ({"neg_sampling": {"mode": "triplet", "amount": 1.5}}, "whole number"),
        ({"neg_sampling": {"mode": "binary", "amount": 0}}, "above 0"),
        ({"neg_sampling": {"mode": "binary", "strategy": "best"}}, "best"),
        ({"neg_sampling": {"kind": "binary"}}, "unknown kind"),
        ({"reverse_type": "node__from__node"}, "node__from__node"),
        ({"method": "labor", "weight_attr": "weight"}, "one way"),
    ],
)
def test_mistakes_about_edges_are_named_at_once(
    cluster: atta.LocalCluster, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(atta.ConfigError, match=words):
        atta.LinkNeighborLoader(cluster, [2], **{"edge_label_index": [[1], [2]], **options})


def test_mistakes_that_only_the_daemon_knows(cluster: atta.LocalCluster) -> None:
    for loader, words in (
        (atta.LinkNeighborLoader(cluster, [2], np.array([[-5], [-6]])), r"-[56] is not a vertex"),
        (atta.NeighborLoader(cluster, [2], [10**12]), "1000000000000"),
        (atta.NeighborLoader(cluster, [2], share=1e6), "share 1e"),
        (atta.BatchLoader(cluster, "shadowy", input_nodes="train"), "shadow"),
    ):
        with pytest.raises(atta.ConfigError, match=words):
            next(iter(loader))


@pytest.mark.parametrize(
    ("name", "operator_options", "options", "words"),
    [
        ("shadow", {"dpeth": 2}, {"input_nodes": "train"}, "operator 'shadow': 'dpeth'; did you mean 'depth'"),
        ("shadow", {"depth": -1}, {"input_nodes": "train"}, "depth -1"),
        ("ladies", {"layers": [0]}, {"input_nodes": "train"}, r"layers\[0\]"),
        ("shadow", {}, {}, "input_nodes or batches"),
        ("saint-nodes", {}, {"batches": 2}, "option 'budget' is missing"),
        ("saint-nodes", {"budget": 2.5}, {"batches": 2}, "budget 2.5"),
        ("pagerank", {"count": 2, "alpha": float("nan")}, {"input_nodes": "train"}, "nan"),
        ("shadow", ["depth"], {"input_nodes": "train"}, "mapping"),
        ("saint-nodes", {"budget": 5}, {"batches": 0}, "batches 0"),
        ("saint-nodes", {"budget": 5}, {"batches": (1 << 31) + 1}, "batches 2147483649: must be a whole number, 1 to"),
        ("saint-nodes", {"budget": 5}, {"batches": 2.5}, "batches 2.5"),
        ("saint-nodes", {"budget": 5}, {"batches": True}, "batches True"),
        ("saint-nodes", {"budget": 5}, {"batches": 2, "shuffle": True}, "without shuffle"),
        ("induced", {}, {"batches": [np.array([BIG], np.uint64)]}, str(BIG)),
        ("induced", {}, {"input_nodes": "train", "edge_type": 7}, "edge type 7"),
        *(
            (name, options, {"batches": 3}, "samples around seeds")
            for name, options in [
                ("shadow", {}),
                ("saint-walks", {"length": 3}),
                ("walks", {"length": 3}),
                ("pinsage", {"count": 2}),
                ("pagerank", {"count": 2}),
                ("induced", {}),
                ("ladies", {"layers": [3]}),
                ("closure", {"hops": 1}),
                ("expansion-aware", {"fanout": -1}),
            ]
        ),
    ],
)
def test_mistakes_about_operators_are_named_at_once(
    cluster: atta.LocalCluster, name: str, operator_options: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(atta.ConfigError, match=words):
        atta.BatchLoader(cluster, name, operator_options, **options)


def test_a_daemon_refuses_seedless_batches_too(
    cluster: atta.LocalCluster, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only daemons know operators of users: here the client knows none."""
    monkeypatch.setattr("atta.client.loaders.batch.OPERATORS", {})
    with pytest.raises(atta.ConfigError, match="samples around seeds"):
        next(iter(atta.BatchLoader(cluster, "shadow", batches=3)))
    with pytest.raises(atta.UnknownNameError, match="did you mean 'depth'"):
        next(iter(atta.BatchLoader(cluster, "shadow", {"dpeth": 3}, input_nodes="train")))
    (empty, full) = atta.BatchLoader(cluster, "shadow", batches=[[], small_graph.ids[:2]])
    assert len(empty.n_id()) == 0
    assert full.batch_size == 2
    assert [len(b.n_id()) for b in atta.BatchLoader(cluster, "shadow", batches=[[], []])] == [0, 0]


def test_numbers_of_numpy_are_numbers(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    options: dict[str, Any] = {"batch_size": np.int32(50), "seed": np.uint64(BIG), "shuffle": np.True_, "epochs": 1}
    assert len(atta.NeighborLoader(cluster, np.array([2, 2]), "train", **options)) == 3
    loader = atta.BatchLoader(
        cluster, "ladies", {"layers": np.array([3, 2])}, input_nodes=small_graph.ids[:4].astype(np.uint64), batch_size=4
    )
    assert len(next(iter(loader)).extra["layer_edges"]) == 2


def test_one_name_is_one_table(cluster: atta.LocalCluster, small_graph: SmallGraph) -> None:
    for tables in ("x", ["x"], {"node": "x"}, {"node": ("x",)}):
        batch = next(iter(atta.NeighborLoader(cluster, [2], tables=tables, seed_tables="y", edge_tables="note")))
        assert set(batch.tables["node"]) == {"x", "y"}
        assert set(batch.edge_tables()) == {"note"}
    links = np.stack([small_graph.src_ids[:4], small_graph.dst_ids[:4]])
    assert set(next(iter(atta.LinkNeighborLoader(cluster, [2], links, tables="x"))).tables["node"]) == {"x"}
    batch = next(iter(atta.BatchLoader(cluster, "induced", batches=[small_graph.ids[:4]], tables="x")))
    assert set(batch.tables["node"]) == {"x"}


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE"])
def test_the_environment_must_hold_numbers(
    cluster: atta.LocalCluster, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "one")
    with pytest.raises(atta.ConfigError, match=f"{variable}='one'"):
        atta.NeighborLoader(cluster, [2])


def test_arguments_of_torch_are_ignored_with_one_warning(
    cluster: atta.LocalCluster, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_arguments, "_warned", threading.Event())
    options: dict[str, Any] = {"num_workers": 4, "persistent_workers": True, "pin_memory": True, "prefetch_factor": 2}
    with pytest.warns(UserWarning, match="num_workers .*no worker processes.*pin_memory") as found:
        plain = atta.NeighborLoader(cluster, [2], batch_size=50, **options)
    assert [w.filename for w in found] == [__file__]
    links = np.stack([small_graph.src_ids[:4], small_graph.dst_ids[:4]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atta.NeighborLoader(cluster, [2], **options)
        atta.LinkNeighborLoader(cluster, [2], links, worker_init_fn=print, timeout=5, generator=None)
        atta.BatchLoader(cluster, "saint-nodes", {"budget": 4}, batches=2, multiprocessing_context="fork")
    assert len(list(plain)) == 3
    with pytest.raises(TypeError, match="NeighborLoader: unknown argument 'num_neighbours'; did you mean 'num_neighb"):
        atta.NeighborLoader(cluster, [2], num_neighbours=3)
    with pytest.raises(TypeError, match="'batchsize'; did you mean 'batch_size'"):
        atta.BatchLoader(cluster, "induced", input_nodes="train", batchsize=3)


# -- tensors on the daemons --------------------------------------------------------------------------------------------


def test_ids_of_tensors_are_checked(cluster: atta.LocalCluster) -> None:
    torch = pytest.importorskip("torch")
    table = atta.DistTensor(cluster, (300, 2), name="checked-ids", policy="nodes:node")
    try:
        for ids, words in [(np.array([BIG], np.uint64), str(BIG)), ([BIG], str(BIG)), ([1.5], "1.5"), ([True], "bool")]:
            with pytest.raises(atta.ConfigError, match=words):
                table[ids]
            with pytest.raises(atta.ConfigError, match=words):
                table[ids] = 1.0
    finally:
        table.delete()
    rows = atta.DistEmbedding(cluster, 10, 2, name="checked-rows")
    for ids in (torch.tensor([1.5]), torch.tensor([True])):
        with pytest.raises(atta.ConfigError, match="integers"):
            rows(ids)
    cluster.tables.delete("checked-rows")
