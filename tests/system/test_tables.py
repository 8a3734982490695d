"""Mutable tables on real daemons: rows by number and by users' ids, embeddings against torch, snapshots, lost answers, kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import atta
from atta import rpc
from atta.cli.main import cli
from atta.kvstore.initial import Normal, Uniform
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from tests.system.conftest import SmallGraph


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    folder = tmp_path_factory.mktemp("snapshots")
    with atta.local(small_graph.dataset(3, "random"), threads=2, options=("--snapshots", str(folder))) as cluster:
        yield cluster


def test_rows_by_number(cluster: atta.Cluster) -> None:
    rng, shadow = np.random.default_rng(0), np.zeros((1000, 3, 2), np.float64)
    table = atta.DistTensor(cluster, shadow.shape, name="numbers", dtype=np.float64)
    for _ in range(30):
        rows = rng.integers(0, 1000, 200)
        values = rng.random((200, 3, 2))
        if rng.random() < 0.5:
            table[rows] = values
            shadow[rows] = values
        else:
            table.add(rows, values)
            np.add.at(shadow, rows, values)
        ask = rng.integers(0, 1000, 500)
        assert np.allclose(table[ask], shadow[ask], rtol=0, atol=1e-12)
    assert np.allclose(table[:], shadow, rtol=0, atol=1e-12)
    assert np.array_equal(table[10:20:3], table[[10, 13, 16, 19]])
    table.delete()
    with pytest.raises(atta.UnknownNameError, match="numbers"):
        table[[1]]


def test_rows_by_the_ids_of_vertices_and_edges(small_graph: SmallGraph, cluster: atta.Cluster) -> None:
    ids = small_graph.ids
    state = atta.DistTensor(cluster, (len(ids), 4), name="h", policy="nodes:node", versioned=True)
    values, versions = state.versions(ids)
    assert not values.any()
    assert (versions == -1).all()
    wanted = np.repeat(ids.astype(np.float32)[:, None] % 1000, 4, axis=1)
    state.write(ids[::-1], wanted[::-1], version=7)
    values, versions = state.versions(ids)
    assert np.array_equal(values, wanted)
    assert (versions == 7).all()
    with pytest.raises(atta.ConfigError, match="vertex"):
        state[[ids.max() + 1]]
    for batch in atta.NeighborLoader(cluster, [3], "train", batch_size=16):
        assert np.array_equal(state[batch.n_id()], batch.n_id().astype(np.float32)[:, None] % 1000 * np.ones(4))
    edges = len(small_graph.src)
    marks = atta.DistTensor(cluster, (edges,), name="marks", dtype=np.int64, policy="edges:node__to__node")
    marks[np.arange(edges)] = np.arange(edges) * 3
    assert np.array_equal(marks[[5, edges - 1, 0]], [15, 3 * edges - 3, 0])
    with pytest.raises(atta.ConfigError, match="no edge"):
        marks[[edges]]
    state.delete(), marks.delete()


def test_rows_lie_with_their_vertices(small_graph: SmallGraph, cluster: atta.Cluster) -> None:
    """The daemon that owns a vertex owns its row: its range of rows is the partition book's."""
    from atta.partition import Dataset

    dataset = Dataset.open(small_graph.dataset(3, "random"))
    spec = MutableSpec("placed", len(small_graph.ids), row_shape=(2,), policy="nodes:node")
    table = cluster.tables.create(spec)
    firsts = [shard.first_row for shard in table._shards]
    assert firsts == dataset.book.offsets["node"][:-1].tolist()
    assert np.array_equal(table.locate(dataset.ids("node")), np.arange(len(small_graph.ids)))
    cluster.tables.delete("placed")


def test_creating_again_opens(cluster: atta.Cluster) -> None:
    first = atta.DistTensor(cluster, (50, 2), name="again")
    first[[3]] = 5.0
    assert atta.DistTensor(cluster, (50, 2), name="again")[[3]].tolist() == [[5.0, 5.0]]
    with pytest.raises(atta.ConfigError, match="again exists: row_shape"):
        atta.DistTensor(cluster, (50, 3), name="again")
    assert cluster.tables.open("again").pull(np.array([3]))[0].tolist() == [[5.0, 5.0]]
    with pytest.raises(atta.UnknownNameError, match="did you mean 'again'"):
        cluster.tables.open("agian")
    assert "again" in cluster.tables.specs()
    first.delete()
    first.delete()  # twice is once


def test_content_does_not_depend_on_the_number_of_daemons(small_graph: SmallGraph, cluster: atta.Cluster) -> None:
    one = atta.DistTensor(cluster, (700, 5), name="random", init=Uniform(-1, 1, seed=3))
    with atta.local(small_graph.dataset(1, "random"), threads=1) as other:
        assert np.array_equal(one[:], atta.DistTensor(other, (700, 5), name="random", init=Uniform(-1, 1, seed=3))[:])
    one.delete()


def test_growth(cluster: atta.Cluster) -> None:
    table = atta.DistTensor(cluster, (10, 2), name="grows", init=Normal(0, 1, seed=1), max_rows=40)
    before = table[:]
    table.grow(40)
    assert len(table) == 40
    whole = atta.DistTensor(cluster, (40, 2), name="whole", init=Normal(0, 1, seed=1))
    assert np.array_equal(table[:10], before)
    assert np.array_equal(table[:], whole[:])
    with pytest.raises(atta.ConfigError, match="it may have 40"):
        table.grow(41)
    table.delete(), whole.delete()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda c: atta.DistTensor(c, (10**9, 1000), name="big"), atta.QuotaExceededError, "bytes"),
        (lambda c: atta.DistTensor(c, (10, 2), name="../x"), atta.ConfigError, "table name"),
        (lambda c: atta.DistTensor(c, (10, 2), name="t", policy="nodes:nod"), atta.UnknownNameError, "node"),
        (
            lambda c: atta.DistTensor(c, (10, 2), name="t", policy="nodes:node"),
            atta.ConfigError,
            "10 rows, but there are",
        ),
        (lambda c: atta.DistTensor(c, (10, 2), name="t", policy="hash"), atta.ConfigError, "policy"),
        (lambda c: atta.DistTensor(c, (10, 2), name="t", dtype="O"), (atta.ConfigError, TypeError), "dtype|object"),
        (lambda c: atta.DistEmbedding(c, 10, 2, name="t", optimizer="adan"), atta.ConfigError, "adan"),
        (lambda c: atta.DistEmbedding(c, 10, 2, name="t", push="sometimes"), atta.ConfigError, "sometimes"),
        (lambda c: atta.DistTensor(c, (10, 2), name="t", codec="zip")[[1]], atta.ConfigError, "zip"),
        (lambda c: atta.DistTensor(c, (10, 2), name="t")[[-1]], atta.ConfigError, "row -1"),
        (lambda c: atta.DistTensor(c, (10, 2), name="t").__setitem__([1], np.zeros(3)), atta.ConfigError, "values"),
        (lambda c: c.tables.load("nothing"), atta.RemoteError, "nothing/part-0000: no such folder"),
        (lambda c: c.tables.save("../up"), atta.ConfigError, "name"),
    ],
)
def test_bad_requests(cluster: atta.Cluster, make, error, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        make(cluster)
    cluster.tables.delete("t")
    assert [len(c) > 0 for c in cluster.stats()] == [True] * 3  # all serve on


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_embedding_trains_as_torch_does(cluster: atta.Cluster, kind: str) -> None:
    torch.manual_seed(0)
    remote = atta.DistEmbedding(cluster, 300, 8, name=f"e-{kind}", optimizer=kind, lr=0.05, init=Normal(0, 1, seed=2))
    dense = nn.Embedding(300, 8, sparse=True)
    with torch.no_grad():
        dense.weight.copy_(remote.state_dict()["weight"])
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}[kind]
    optimiser = make(dense.parameters(), lr=0.05)
    target = torch.randn(300, 8)
    for _ in range(40):
        ids = torch.randint(0, 300, (5, 17))
        more = torch.randint(0, 300, (9,))
        losses = []
        for embedding in (dense, remote):
            # two uses of the embedding in one step, with rows in common
            out, out2 = embedding(ids), embedding(more)
            losses.append(((out - target[ids]) ** 2).sum() + (out2 * out2).sum())
        assert torch.allclose(losses[0], losses[1], rtol=1e-5)
        optimiser.zero_grad()
        for loss in losses:
            loss.backward()
        optimiser.step()
    assert torch.allclose(remote.state_dict()["weight"], dense.weight.detach(), atol=1e-6, rtol=1e-6)
    cluster.tables.delete(f"e-{kind}")


def test_gradients_of_several_backward_passes(cluster: atta.Cluster) -> None:
    remote = atta.DistEmbedding(cluster, 20, 2, name="acc", optimizer="sgd", lr=1.0, push="manual")
    start = remote.state_dict()["weight"]
    for _ in range(3):
        remote(torch.tensor([4, 4, 5])).sum().backward()
    assert torch.equal(remote.state_dict()["weight"], start)
    remote.step()
    change = remote.state_dict()["weight"] - start
    assert torch.allclose(change[4], torch.tensor(-6.0))
    assert torch.allclose(change[5], torch.tensor(-3.0))
    remote.step()  # nothing new
    assert torch.allclose(remote.state_dict()["weight"] - start, change)
    remote.eval()
    assert not remote(torch.tensor([4])).requires_grad
    cluster.tables.delete("acc")


def test_state_dict_round_trip(cluster: atta.Cluster, small_graph: SmallGraph) -> None:
    model = nn.Sequential(atta.DistEmbedding(cluster, 30, 4, name="s", optimizer="sgd", lr=0.1), nn.Linear(4, 2))
    model(torch.arange(30)).sum().backward()
    state = model.state_dict()
    model(torch.arange(30)).pow(2).sum().backward()
    assert not torch.equal(model.state_dict()["0.weight"], state["0.weight"])
    model.load_state_dict(state)
    assert torch.equal(model.state_dict()["0.weight"], state["0.weight"])
    with pytest.raises(RuntimeError, match="weight"):
        model.load_state_dict({**state, "0.weight": torch.zeros(3, 3)})
    by_vertex = atta.DistEmbedding(cluster, len(small_graph.ids), 4, name="v", policy="nodes:node")
    saved = by_vertex.state_dict()
    with atta.local(small_graph.dataset(2, "random"), threads=1) as other:
        elsewhere = atta.DistEmbedding(other, len(small_graph.ids), 4, name="v", policy="nodes:node")
        with pytest.raises(atta.ConfigError, match="dataset"):
            elsewhere.load_state_dict(saved)
    for name in ("s", "v"):
        cluster.tables.delete(name)


def test_two_trainers_lose_no_step(cluster: atta.LocalCluster) -> None:
    """SGD with a gradient of one: however steps of two clients interleave, each counts once."""
    start = atta.DistTensor(cluster, (64, 4), name="hog-view")
    atta.DistEmbedding(cluster, 64, 4, name="hog", optimizer="sgd", lr=1.0).eval()
    errors: list[BaseException] = []

    def train(seed: int) -> None:
        try:
            with atta.connect(cluster.addresses) as mine:
                embedding = atta.DistEmbedding(mine, 64, 4, name="hog", optimizer="sgd", lr=1.0)
                rng = np.random.default_rng(seed)
                for _ in range(50):
                    embedding(torch.from_numpy(rng.permutation(64)[:32])).sum().backward()
                embedding.flush()
        except BaseException as error:
            errors.append(error)

    reference = atta.DistEmbedding(cluster, 64, 4, name="hog", optimizer="sgd", lr=1.0).state_dict()["weight"]
    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    steps = np.zeros(64)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            steps[rng.permutation(64)[:32]] += 1
    after = atta.DistEmbedding(cluster, 64, 4, name="hog", optimizer="sgd", lr=1.0).state_dict()["weight"]
    assert np.allclose((reference - after).numpy(), steps[:, None], atol=1e-3)
    start.delete()
    cluster.tables.delete("hog")


def test_a_push_sent_again_is_applied_once(cluster: atta.Cluster) -> None:
    """What a client does when an answer is lost: the very message once more; also late, and in another order."""
    table = cluster.tables.create(MutableSpec("once", 9, row_shape=(2,)))
    shard = table._shards[1]
    row = np.array([shard.first_row])

    def message(sequence: int, settled: int) -> rpc.Bulk:
        request = table_pb2.PushRowsRequest(name="once", op="add", client=77, sequence=sequence, settled=settled)
        return rpc.Bulk(request, {2: row, 10: np.full((1, 2), 10.0**sequence, np.float32)})

    applied = [
        shard.connection.call("TableService.Push", message(sequence, settled)).applied
        for sequence, settled in [(0, 0), (2, 0), (0, 0), (1, 0), (2, 0), (1, 0), (4, 3), (3, 3), (3, 3), (0, 0)]
    ]
    assert applied == [True, True, False, True, False, False, True, True, False, False]
    assert table.pull(row)[0].tolist() == [[11111.0, 11111.0]]
    cluster.tables.delete("once")


@pytest.mark.parametrize(("codec", "error"), [("fp16", 1e-3), ("bf16", 8e-3), ("int8", 8e-3)])
def test_codecs_lose_no_more_than_they_say(cluster: atta.Cluster, codec: str, error: float) -> None:
    plain = atta.DistTensor(cluster, (200, 16), name="coded")
    coded = atta.DistTensor(cluster, (200, 16), name="coded", codec=codec)
    values = np.random.default_rng(1).uniform(-2, 2, (200, 16)).astype(np.float32)
    plain[:] = values
    assert 0 < np.abs(coded[:] - values).max() <= 2 * error
    coded[:] = values
    assert 0 < np.abs(plain[:] - values).max() <= 2 * error
    plain.delete()


def test_snapshot_goes_back_and_clients_go_on(cluster: atta.Cluster) -> None:
    for name in cluster.tables.specs():
        cluster.tables.delete(name)
    embedding = atta.DistEmbedding(cluster, 40, 4, name="snap", optimizer="adam", lr=0.1)

    def train(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        for _ in range(10):
            embedding(torch.randint(0, 40, (20,))).pow(2).sum().backward()
        return embedding.state_dict()["weight"]

    train(0)
    assert cluster.tables.save("first") == ["snap"]
    saved_steps = embedding.get_extra_state()["steps"]
    once = train(1)
    assert not torch.equal(once, train(2))
    assert cluster.tables.load("first") == ["snap"]
    embedding._steps = saved_steps
    assert torch.equal(train(1), once)  # rows, moments and the number of steps are those of the snapshot
    cluster.tables.delete("snap")


def test_a_killed_daemon_comes_back_with_its_snapshot(small_graph: SmallGraph, tmp_path: Path) -> None:
    data = small_graph.dataset(2, "random")
    options = ("--snapshots", str(tmp_path / "snapshots"))
    with atta.local(data, threads=1, options=options, deadline_s=20) as cluster:
        table = atta.DistTensor(cluster, (100, 3), name="kept", init=Uniform(0, 1))
        table[:] = np.arange(300).reshape(100, 3)
        cluster.tables.save("kept")
        victim = cluster.pids[1]
        command = Path(f"/proc/{victim}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(atta.RemoteError):
            table[[99]]
        assert table[[0]].tolist() == [[0.0, 1.0, 2.0]]  # the other part serves on
        again = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            with atta.connect(cluster.addresses, wait=True) as fresh:
                assert fresh.tables.load("kept") == ["kept"]
                back = atta.DistTensor(fresh, (100, 3), name="kept", init=Uniform(0, 1))
                assert np.array_equal(back[:], np.arange(300).reshape(100, 3))
            assert table[[99]].tolist() == [[297.0, 298.0, 299.0]]  # and so for a client that was there before
            table[[99]] = 1.0
            assert table[[99]].tolist() == [[1.0, 1.0, 1.0]]
        finally:
            again.terminate()
            again.wait(10)


def test_command_line(cluster: atta.LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    target = ",".join(cluster.addresses)

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["tables", *words], standalone_mode=False)
        if result.exception:
            raise result.exception
        return result.output

    for name in cluster.tables.specs():
        cluster.tables.delete(name)
    table = atta.DistTensor(cluster, (12, 2), name="shown")
    report = json.loads(run("list", "--cluster", target, "--json", "-"))
    assert [t["name"] for t in report["tables"]] == ["shown"]
    assert sum(report["used_bytes"]) == report["tables"][0]["bytes"] == 12 * 2 * 4
    assert "shown" in run("list", "--cluster", target)
    table[[7]] = 3.0
    assert "saved shown" in run("save", "--cluster", target, "cli")
    table[[7]] = 4.0
    run("load", "--cluster", target, "cli", "--quiet")
    assert table[[7]].tolist() == [[3.0, 3.0]]
    assert "deleted" in run("delete", "--cluster", target, "shown")
    with pytest.raises(atta.UnknownNameError):
        run("delete", "--cluster", target, "shown")
