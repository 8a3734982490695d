"""The DistDGL peer: a graph survives its conversion from either form that Atta has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta_bench.lab.distdgl import (
    GRAPH_NAME,
    MASK,
    PlainGraph,
    fingerprint,
    mask_of,
    prepare,
    read_plain,
    read_tables,
    run_distdgl,
)
from atta_bench.lab.netlab import NetLab
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.loader.benchmark import LoaderBench, run

N, M = 400, 6000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("graph") / "graph"
    x = rng.standard_normal((N, 6)).astype(np.float32)
    with GraphWriter(folder) as out:
        tables, order = {"x": x, "y": rng.integers(0, 3, N)}, rng.permutation(N)
        splits = {"train": np.sort(order[:120]), "val": np.sort(order[120:170]), "test": np.sort(order[170:])}
        out.add_nodes("node", N, tables=tables, splits=splits)
        out.add_edges("node__to__node", rng.integers(0, N, M), rng.integers(0, N, M))
    return folder


@pytest.fixture(scope="module")
def parted(graph: Path) -> Path:
    partition_graph(graph, graph.parent / "parted", parts=2, method="random", seed=3)
    return graph.parent / "parted"


def edges_by_features(graph: PlainGraph) -> list[tuple[bytes, bytes]]:
    """The edges, each named by the feature rows of its ends: independent of any numbering."""
    x = np.ascontiguousarray(graph.tables["x"])
    return sorted((x[s].tobytes(), x[d].tobytes()) for s, d in zip(graph.src, graph.dst, strict=True))


def test_a_partitioned_dataset_is_put_together_again(graph: Path, parted: Path) -> None:
    whole, again = read_plain(graph), read_plain(parted)
    assert (again.num_nodes, len(again.src)) == (N, M)
    assert edges_by_features(again) == edges_by_features(whole)
    assert set(whole.splits) == set(again.splits) == {"train", "val", "test"}
    chosen = [(whole.splits[name], again.splits[name]) for name in whole.splits]
    for one, two in ((whole.seeds, again.seeds), *chosen, (np.arange(N), np.arange(N))):
        rows = [np.column_stack([g.tables["x"][ids], g.tables["y"][ids]]) for g, ids in ((whole, one), (again, two))]
        assert np.array_equal(*(np.unique(r, axis=0) for r in rows))


def test_fingerprints_tell_contents(graph: Path, parted: Path, tmp_path: Path) -> None:
    assert fingerprint(graph) == fingerprint(graph)
    assert fingerprint(graph) != fingerprint(parted)
    partition_graph(graph, tmp_path / "other", parts=2, method="random", seed=4)
    assert fingerprint(tmp_path / "other") != fingerprint(parted)


def test_unknown_splits_and_several_node_types_are_refused(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'trian'; did you mean 'train'"):
        read_plain(graph, "trian")
    with GraphWriter(tmp_path / "typed") as out:
        out.add_nodes("a", 2)
        out.add_nodes("b", 2)
        out.add_edges("a__to__b", [0, 1], [1, 0])
    with pytest.raises(ConfigError, match="one node type"):
        read_plain(tmp_path / "typed")


@pytest.fixture(scope="module")
def partitions(graph: Path) -> Path:
    pytest.importorskip("dgl")
    return prepare(graph, 2, "train", graph.parent / "cache")


def test_conversion_keeps_the_graph(graph: Path, partitions: Path) -> None:
    dgl = pytest.importorskip("dgl")
    plain = read_plain(graph)
    x = np.empty_like(plain.tables["x"])  # by DGL's own vertex numbers
    src, dst, seeds, found = [], [], 0, dict.fromkeys(plain.splits, 0)
    for part in range(2):
        local, tables, _, book, *_ = dgl.distributed.load_partition(str(partitions), part)
        x[book.partid2nids(part).numpy()] = tables["_N/x"].numpy()
        seeds += int(tables[f"_N/{MASK}"].sum())
        found = {name: count + int(tables[f"_N/{mask_of(name)}"].sum()) for name, count in found.items()}
        numbers = local.ndata[dgl.NID].numpy()
        stored_here = local.edata["inner_edge"].bool().numpy()
        ends = [numbers[e.numpy()[stored_here]] for e in local.edges()]
        assert set(book.nid2partid(dgl.backend.tensor(ends[1])).tolist()) == {part}  # with the destination's owner
        src.append(ends[0])
        dst.append(ends[1])
    assert seeds == len(plain.seeds)
    assert found == {name: len(ids) for name, ids in plain.splits.items()}
    assert set(read_tables(partitions)) == {"x", "y"}
    converted = PlainGraph(N, np.concatenate(src), np.concatenate(dst), {"x": x}, {}, plain.seeds)
    assert edges_by_features(converted) == edges_by_features(plain)


def test_a_second_conversion_is_the_first_one_and_one_that_fails_leaves_nothing(
    graph: Path, partitions: Path, tmp_path: Path
) -> None:
    before = partitions.stat().st_mtime_ns
    assert prepare(graph, 2, "train", partitions.parent.parent) == partitions
    assert partitions.stat().st_mtime_ns == before
    assert json.loads(partitions.read_text())["graph_name"] == GRAPH_NAME
    with pytest.raises(AttaError, match="cannot partition"):
        prepare(graph, N * 3, "train", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_servers_and_trainers_deliver_every_seed(partitions: Path, tmp_path: Path) -> None:
    workload = BenchWorkload((3, 2), 16, warm_up=1, epochs=2, seconds=0, timeout_s=100)
    with NetLab(2, shm_bytes=1 << 28) as lab:
        measured = run_distdgl(partitions, workload, lab.hosts, tmp_path)
    assert measured.total("seeds") == 2 * 120
    assert measured.total("feature_bytes") == 24 * measured.total("nodes") + 8 * measured.total("seeds")
    assert 0 < measured.total("edges") <= measured.total("seeds") * (3 + (1 + 3) * 2)  # DGL expands the seeds again
    assert min(measured.whole.sent_bytes) > 0


@pytest.mark.netns
@pytest.mark.peer
@pytest.mark.slow
def test_trainers_look_at_their_accuracy_outside_of_the_epochs(partitions: Path, tmp_path: Path) -> None:
    workload = BenchWorkload((3, 2), 16, warm_up=1, epochs=3, seconds=0, timeout_s=100)
    recipe = Recipe(channels=6, classes=3, layers=2, hidden=8, dropout=0.5)
    with NetLab(2, shm_bytes=1 << 28) as lab:
        measured = run_distdgl(partitions, workload, lab.hosts, tmp_path, recipe=recipe, eval_every=2)
    assert [e["val_accuracy"] for e in measured.warm_ups] == [None, None]
    for number, looked in ((0, True), (1, False), (2, True)):  # after every second epoch and the last one
        ranks = [e for e in measured.epochs if e["epoch"] == number]
        for name, vertices in (("val_accuracy", 50), ("test_accuracy", 230)):
            assert ranks[0][name] == ranks[1][name]
            assert (ranks[0][name] is not None) == looked
            assert not looked or round(ranks[0][name] * vertices, 6).is_integer()
        assert min(e["sent_bytes"] for e in ranks) > 0


@pytest.mark.slow
def test_without_namespaces_the_peer_is_named_with_the_reason(parted: Path, tmp_path: Path) -> None:
    bench = LoaderBench(
        (2,), 32, data=str(parted), warm_up=1, epochs=1, seconds=0, vs=("dgl",), runs=1, netns="off", deliver="arrays",
        work=str(tmp_path),
    )  # fmt: skip
    document = run(bench).to_json()
    assert "namespaces" in document["results"]["dgl"]["error"]
    figures = document["results"]["atta"]
    assert figures["seeds_per_s"]["median"] > 0
    assert figures["edges_per_seed"]["median"] <= 2
    assert document["limits"].keys() == {f"{n}_bytes_per_s" for n in ("copy", "gather", "link", "grpc")}
