"""Mutable tables on real daemons: rows by number and user id, embeddings as torch's, snapshots, lost answers, kills."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import atta
from atta.cli.main import cli
from atta.kvstore.spec import MutableSpec, Normal, OptimiserSpec, Uniform
from atta.partition import Dataset
from atta.protos.v1 import table_pb2
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import daemons


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


@pytest.fixture(scope="module")
def running(small_graph: SmallGraph, snapshots: Path) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(3, "random"), threads=2, options=("--snapshots", str(snapshots))) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: atta.LocalCluster) -> Iterator[atta.LocalCluster]:
    yield running
    for name in running.tables.specs():
        running.tables.delete(name)


def test_rows_by_number(cluster: atta.Cluster) -> None:
    """Numbers are numpy's, torch's or Python's."""
    table = atta.DistTensor(
        cluster, (np.int64(5), np.int32(2)), name="numbers", dtype=torch.float32, max_rows=np.int64(6)
    )
    assert (table.shape, table.dtype) == ((5, 2), np.float32)
    table[[0, 1]] = torch.arange(4.0, requires_grad=True).reshape(2, 2)
    table[[2]] = torch.tensor([0.5, -3.0], dtype=torch.bfloat16)
    table[[3]] = [7, 7]
    table.add([3, 3], [[0, 0.5], [0, 0.5]])
    assert [row.tolist() for row in table] == [[0, 1], [2, 3], [0.5, -3], [7, 8], [0, 0]]
    assert np.array_equal(np.asarray(table), table[:])
    assert np.array_equal(table[1:5:2], table[[1, 3]])
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
    with pytest.raises(atta.ConfigError, match=r"not an edge of .*version 0"):
        marks[[edges]]


def test_rows_lie_with_their_vertices(small_graph: SmallGraph, cluster: atta.Cluster) -> None:
    """A vertex's owner also owns its row: the row range is the partition book's."""
    dataset = Dataset.open(small_graph.dataset(3, "random"))
    table = cluster.tables.create(MutableSpec("placed", len(small_graph.ids), policy="nodes:node"))
    assert [shard.first_row for shard in table._shards] == dataset.book.offsets["node"][:-1].tolist()
    assert np.array_equal(table.locate(dataset.ids("node")), np.arange(len(small_graph.ids)))


def test_creating_again_opens(cluster: atta.Cluster) -> None:
    first = atta.DistTensor(cluster, (50, 2), name="again")
    first[[3]] = 5.0
    assert atta.DistTensor(cluster, (50, 2), name="again")[[3]].tolist() == [[5.0, 5.0]]
    with pytest.raises(atta.ConfigError, match="again exists: row_shape"):
        atta.DistTensor(cluster, (50, 3), name="again")
    assert cluster.tables.open("again").pull(np.array([3])).values.tolist() == [[5.0, 5.0]]
    with pytest.raises(atta.UnknownNameError, match="did you mean 'again'"):
        cluster.tables.open("agian")
    assert "again" in cluster.tables.specs()
    first.delete()
    first.delete()  # deleting twice is the same as once
    atta.DistTensor(cluster, (50, 2), name="again")
    with pytest.raises(atta.UnknownNameError, match="'again' is not the one that was opened: it was created anew"):
        first._table.refresh()


def test_content_does_not_depend_on_the_number_of_daemons(small_graph: SmallGraph, cluster: atta.Cluster) -> None:
    """Also not on how the graph is cut: rows of vertices and edges are those of the users' ids."""
    edges = np.arange(len(small_graph.src))
    ids = {"range": np.arange(700), "nodes:node": small_graph.ids, "edges:node__to__node": edges}

    def contents(of: atta.Cluster, policy: str) -> np.ndarray:
        init = Uniform(-1, 1, seed=3)
        table = atta.DistTensor(of, (len(ids[policy]), 5), name="random", init=init, policy=policy)
        found = table[ids[policy]]
        table.delete()
        return found

    here = {policy: contents(cluster, policy) for policy in ids}
    for parts, method in ((1, "random"), (2, "metis")):
        with atta.local(small_graph.dataset(parts, method), threads=1) as other:
            for policy, found in here.items():
                assert np.array_equal(found, contents(other, policy))


def test_growth(cluster: atta.Cluster) -> None:
    options: dict[str, Any] = {"name": "grows", "init": Normal(0, 1, seed=1), "max_rows": 40}
    table, *others = (atta.DistTensor(cluster, (10, 2), **options) for _ in range(4))
    before = table[:]
    table.grow(40)
    assert len(table) == len(others[0]) == len(others[1][:]) == 40
    assert np.array_equal(others[2][[39]], table[[39]])
    assert np.array_equal(table[:10], before)
    whole = atta.DistTensor(cluster, (40, 2), **{**options, "name": "whole"})
    assert np.array_equal(table[:], whole[:])
    for rows, words in [(41, "to 41 rows; it may have 40"), (39, "has 40 rows.*to 39"), (3, "has 40 rows.*to 3$")]:
        with pytest.raises(atta.ConfigError, match=words):
            table.grow(rows)


def test_bad_requests(cluster: atta.Cluster) -> None:
    config, quota, unknown, remote = atta.ConfigError, atta.QuotaExceededError, atta.UnknownNameError, atta.RemoteError

    def tensor(shape: Any = (10, 2), name: str = "t", **options: Any) -> atta.DistTensor:
        return atta.DistTensor(cluster, shape, name=name, **options)

    def embedding(**options: Any) -> None:
        atta.DistEmbedding(cluster, 10, 2, name="t", **options)

    def put(odd: Any, **options: Any) -> None:
        tensor(**options)[[1]] = odd

    for make, error, words in (
        (lambda: tensor((10**9, 1000)), quota, "bytes"),
        (lambda: tensor(name="../x"), config, "table name"),
        (lambda: tensor(policy="nodes:nod"), unknown, "node"),
        (lambda: tensor(policy="nodes:node"), config, "10 rows; there are"),
        (lambda: tensor(policy="hash"), config, "policy"),
        (lambda: tensor(dtype="O"), (config, TypeError), "dtype|object"),
        (lambda: tensor(dtype=torch.bfloat16), config, "bfloat16 is none"),
        (lambda: tensor(10), config, "shape 10: must be the number of rows"),
        (lambda: tensor(()), config, "must be the number of rows"),
        (lambda: tensor(init=5), config, "init 5"),
        (lambda: tensor(codec="zip"), config, "zip"),
        (lambda: tensor((9,), dtype="i1", codec="fp16"), config, "'fp16' is for float32"),
        (lambda: tensor().grow(-1), config, "rows -1: must be a whole number"),
        (lambda: tensor().grow(14.5), config, r"rows 14\.5"),
        (lambda: tensor()[[-1]], config, "row -1"),
        (lambda: put(np.zeros(3)), config, "values"),
        (lambda: embedding(optimizer="adan"), config, "adan"),
        (lambda: embedding(push="sometimes"), config, "sometimes"),
        (lambda: embedding(codec="zip"), config, "zip"),
        (lambda: cluster.tables.load("nothing"), remote, "nothing/part-0000: no such folder"),
        (lambda: cluster.tables.save("../up"), config, "snapshot name '../up'"),
    ):
        with pytest.raises(error, match=words):  # type: ignore[call-overload]
            make()
        cluster.tables.delete("t")
    for odd in (300, None, "x", 1j, np.nan, [[1], [2, 3]]):
        with pytest.raises(config, match="table t: values are not int8: "):
            put(odd, shape=(10,), dtype="i1")
    cluster.tables.delete("t")
    assert [len(c) > 0 for c in cluster.stats()] == [True] * 3  # all keep serving


@pytest.mark.parametrize("kind", [pytest.param("sgd", marks=pytest.mark.slow), "adagrad", "adam"])
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
            # one step uses the embedding twice, with rows in common
            out, out2 = embedding(ids), embedding(more)
            losses.append(((out - target[ids]) ** 2).sum() + (out2 * out2).sum())
        assert torch.allclose(losses[0], losses[1], rtol=1e-5)
        optimiser.zero_grad()
        for loss in losses:
            loss.backward()
        optimiser.step()
    assert torch.allclose(remote.state_dict()["weight"], dense.weight.detach(), atol=1e-6, rtol=1e-6)


def test_rows_that_are_prefetched_are_those_of_a_forward_pass(cluster: atta.Cluster) -> None:
    remote = atta.DistEmbedding(cluster, 90, 4, name="ahead", optimizer="sgd", lr=1.0)
    ids, others = torch.tensor([[1, 2], [2, 80]]), torch.tensor([3, 44])
    with pytest.raises(atta.ConfigError, match="90"):
        remote.prefetch(torch.tensor([90]))
    weight = remote.state_dict()["weight"]
    remote.prefetch(ids)
    seen = remote(ids)
    assert torch.equal(seen, weight[ids])
    remote.prefetch(ids)
    seen.sum().backward()  # pushes a step
    weight.index_add_(0, ids.reshape(-1), -torch.ones(4, 4))
    assert torch.equal(remote(ids), weight[ids])
    remote.prefetch(ids)
    assert torch.equal(remote(others), weight[others])
    assert torch.equal(remote(ids), weight[ids])
    remote.prefetch(others)
    remote.forget()
    assert torch.equal(remote(others), weight[others])


def test_rows_that_were_prefetched_long_ago_are_asked_for_again(cluster: atta.Cluster) -> None:
    with atta.connect(cluster.addresses, deadline_s=0.7) as hasty:
        ids = torch.arange(60_000)  # more than one message
        remote = atta.DistEmbedding(hasty, 60_000, 32, name="late", optimizer="sgd")
        weight = remote.state_dict()["weight"]
        remote.prefetch(ids)
        time.sleep(1.0)
        assert torch.equal(remote(ids), weight)


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
    remote.step()  # no new gradients
    assert torch.allclose(remote.state_dict()["weight"] - start, change)
    remote.eval()
    assert not remote(torch.tensor([4])).requires_grad


@pytest.mark.parametrize("push", ["backward", "manual"])
def test_no_gradient_is_lost_whatever_the_order_of_the_passes(cluster: atta.Cluster, push: str) -> None:
    remote = atta.DistEmbedding(cluster, 20, 2, name="order", optimizer="sgd", lr=1.0, push=push)
    dense = nn.Embedding(20, 2, sparse=True)
    with torch.no_grad():
        dense.weight.copy_(remote.state_dict()["weight"])
    for embedding, step in ((remote, remote.step), (dense, torch.optim.SGD(dense.parameters(), lr=1.0).step)):
        first, second, twice = (embedding(torch.tensor(ids)) for ids in ([1, 4], [2, 4], [3]))
        for losses in (first.sum(), second.sum(), (3 * twice).sum()):
            dense.zero_grad()
            losses.backward(retain_graph=True)
            step()
        dense.zero_grad()
        (2 * twice).sum().backward()  # the graph of a forward pass that has had a step
        step()
        for _ in range(50):
            embedding(torch.tensor([7])).sum()  # evaluated, without a backward pass
    assert torch.allclose(remote.state_dict()["weight"], dense.weight.detach(), atol=1e-6)
    del first, second, twice, losses
    assert not any(isinstance(o, torch.Tensor) and o.is_leaf and o.shape == (1, 2) for o in gc.get_objects())


@pytest.mark.parametrize("policy", ["nodes:node", "edges:node__to__node"])
def test_a_state_goes_on_where_the_graph_is_cut_anew(
    cluster: atta.Cluster, small_graph: SmallGraph, policy: str
) -> None:
    ids = torch.from_numpy(small_graph.ids) if policy == "nodes:node" else torch.arange(len(small_graph.src))
    here = atta.DistEmbedding(cluster, len(ids), 4, name="v", policy=policy, optimizer="adam")
    here(ids[:100]).pow(2).sum().backward()
    saved = here.state_dict()
    assert torch.equal(saved["weight"], here.eval()(ids.sort().values))
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as other:
        there = atta.DistEmbedding(other, len(ids), 4, name="v", policy=policy, init=Normal(5, 1))
        there.load_state_dict(saved)
        assert torch.equal(there.eval()(ids), here(ids))
        assert there.steps == 1
        extra = saved["_extra_state"]
        with pytest.raises(RuntimeError, match="weight"):
            there.load_state_dict(saved | {"weight": torch.zeros(3, 3)})
        wrong = [(extra | {"version": 2}, "table v: state version 2; this release reads 1")]
        if policy == "nodes:node":
            assert torch.equal(extra["ids"], ids.sort().values)
            wrong += [
                (extra | {"ids": extra["ids"][1:]}, "of another graph: there are 300 nodes of type 'node', not 299"),
                (extra | {"ids": extra["ids"] - 10_000}, "is not a vertex of node type 'node'"),
            ]
        for state, words in wrong:
            with pytest.raises(atta.ConfigError, match=words):
                there.load_state_dict(saved | {"_extra_state": state})


@pytest.mark.parametrize(("codec", "error"), [("fp16", 1e-3), ("bf16", 8e-3), ("int8", 8e-3)])
def test_codecs_lose_no_more_than_they_say(cluster: atta.Cluster, codec: str, error: float) -> None:
    plain = atta.DistTensor(cluster, (200, 16), name="coded")
    coded = atta.DistTensor(cluster, (200, 16), name="coded", codec=codec)
    values = np.random.default_rng(1).uniform(-2, 2, (200, 16)).astype(np.float32)
    plain[:] = values
    assert 0 < np.abs(coded[:] - values).max() <= 2 * error
    coded[:] = values
    assert 0 < np.abs(plain[:] - values).max() <= 2 * error


def test_snapshot_goes_back_and_clients_go_on(cluster: atta.Cluster) -> None:
    embedding = atta.DistEmbedding(cluster, 40, 4, name="snap", optimizer="adam", lr=0.1)

    def train(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        for _ in range(10):
            embedding(torch.randint(0, 40, (20,))).pow(2).sum().backward()
        return embedding.state_dict()["weight"]

    train(0)
    assert cluster.tables.save("first") == ["snap"]
    once = train(1)
    assert not torch.equal(once, train(2))
    assert cluster.tables.load("first") == ["snap"]
    assert embedding.get_extra_state()["steps"] == 10
    assert torch.equal(train(1), once)  # rows, moments and the number of steps are those of the snapshot
    cluster.tables.load("first")
    assert torch.equal(train(1), once)  # also if the client asks nothing before it goes on
    with atta.connect(cluster.addresses) as other:
        other.tables.load("first")
    assert torch.equal(train(1), once)  # also for a client that did not load


def test_a_write_beyond_the_rows_of_a_snapshot_changes_nothing(cluster: atta.LocalCluster) -> None:
    options: dict[str, Any] = {"name": "shrinks", "max_rows": 12, "versioned": True}
    table = atta.DistTensor(cluster, (4, 1), **options)
    table[:] = 1
    cluster.tables.save("small")
    table.grow(12)
    with atta.connect(cluster.cluster_file) as client:
        theirs = atta.DistTensor(client, (4, 1), **options)
        theirs[:] = 2
        cluster.tables.load("small")
        with pytest.raises(atta.ConfigError, match=r"row 4 is outside the rows 0\.\.3"):
            theirs[np.arange(12)] = 3  # the first daemons do have their rows of these
        assert table[:].tolist() == [[1.0]] * 4
        assert theirs.shape == (4, 1)
        theirs[:] = 3
    assert table[:].tolist() == [[3.0]] * 4


def test_a_step_that_meets_a_load_is_counted_from_the_snapshot(cluster: atta.Cluster) -> None:
    """The step got its number before the load. Here the load meets it on all owners at once."""
    table = cluster.tables.create(MutableSpec("late", 9, optimiser=OptimiserSpec.adam(0.1)))
    rows, gradients = np.arange(9), np.linspace(-1, 1, 9, dtype=np.float32)
    for _ in range(2):
        table.push(rows, gradients, "step", step=None).wait()
    cluster.tables.save("late")
    table.push(rows, gradients, "step", step=None).wait()
    third = table.pull(rows).values
    for _ in range(4):
        table.push(rows, gradients, "step", step=None).wait()
    cluster.tables.load("late")
    table.push(rows, gradients, "step", step=None).wait()
    assert table.step == 3
    assert np.array_equal(table.pull(rows).values, third)
    assert [info.step for info in cluster.tables._look("late")] == [3, 3, 3]


class NoAnswer(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection reset"

    def result(self) -> None:
        raise self


def test_a_push_that_may_have_been_applied_is_not_sent_as_a_new_one(cluster: atta.Cluster) -> None:
    """The answer is lost. By the second try, the owner has forgotten the client, so the caller gets an error."""
    table = cluster.tables.create(MutableSpec("doubt", 9))
    ticket = table.push(np.array([0]), np.ones(1, np.float32), "add")
    (push,) = ticket._sent
    push.future.result()
    push.shard.connection.call("TableService.Forget", table_pb2.ForgetClientRequest(clients=[push.bulk.message.client]))
    ticket._sent = [replace(push, future=NoAnswer())]
    with pytest.raises(atta.UnknownClientError, match="may have been applied or not"):
        ticket.wait()
    assert table.pull(np.array([0])).values.tolist() == [1.0]


@pytest.mark.parametrize("in_snapshot", [True, False])
def test_a_push_whose_answer_is_lost_when_a_snapshot_is_loaded_is_applied_once(
    cluster: atta.Cluster, in_snapshot: bool
) -> None:
    """The push is in the snapshot or it is not: the client can tell both cases."""
    table = cluster.tables.create(MutableSpec("once", 9))
    cluster.tables.save("before")
    ticket = table.push(np.array([0]), np.ones(1, np.float32), "add")
    (push,) = ticket._sent
    push.future.result()
    if in_snapshot:
        cluster.tables.save("before")
    cluster.tables.load("before")
    ticket._sent = [replace(push, future=NoAnswer())]
    ticket.wait()
    assert table.pull(np.array([0])).values.tolist() == [1.0]


def test_parts_that_were_not_saved_together_are_not_loaded(cluster: atta.Cluster, snapshots: Path) -> None:
    table = atta.DistTensor(cluster, (30,), name="mixed")
    table[:] = 1.0
    for name in ("one", "two"):
        cluster.tables.save(name)
    shutil.rmtree(snapshots / "one" / "part-0002")
    shutil.copytree(snapshots / "two" / "part-0002", snapshots / "one" / "part-0002")
    with pytest.raises(atta.DataError, match="snapshot one: its parts were not saved together"):
        cluster.tables.load("one")


def test_a_save_that_not_all_daemons_came_to_is_passed_over(cluster: atta.LocalCluster) -> None:
    """The process that saved was killed. The older snapshot, which all owners have, is loaded, and the error says so."""
    table = atta.DistTensor(cluster, (30,), name="passed")
    table[:] = 1.0
    cluster.tables.save("half")
    table[:] = 2.0
    prepare = table_pb2.SnapshotRequest(name="half", snapshot="0123456789abcdef", hold_s=60.0)
    cluster._connections[0].call("TableService.Save", prepare)
    with pytest.raises(atta.QuotaExceededError, match="part 0: another save"):
        cluster.tables.save("half")
    with pytest.warns(UserWarning, match="snapshot half: part 0 was saved once more, not all daemons were"):
        cluster.tables.load("half")
    assert table[:].tolist() == [1.0] * 30
    told = CliRunner().invoke(cli, ["tables", "load", "--cluster", ",".join(cluster.addresses), "half"])
    assert told.exit_code == 0
    assert told.stderr.startswith("atta: warning: snapshot half: part 0")
    abort = table_pb2.SnapshotRequest(name="half", snapshot=prepare.snapshot, phase=table_pb2.SnapshotRequest.ABORT)
    cluster._connections[0].call("TableService.Save", abort)
    cluster.tables.load("half")


def test_a_save_that_one_daemon_cannot_do_leaves_the_old_snapshot(cluster: atta.Cluster, snapshots: Path) -> None:
    table = atta.DistTensor(cluster, (30,), name="saves")
    table[:] = 1.0
    cluster.tables.save("again")
    table[:] = 2.0
    manifest = snapshots / "again" / "part-0002" / "tables.log"
    manifest.rename(manifest.with_name("moved"))  # now Atta does not own that folder and must not replace it
    with pytest.raises(atta.ConfigError, match=r"part-0002: exists and holds no tables\.log"):
        cluster.tables.save("again")
    assert sorted(path.name for path in (snapshots / "again").iterdir()) == ["part-0000", "part-0001", "part-0002"]
    manifest.with_name("moved").rename(manifest)
    cluster.tables.load("again")
    assert table[:].tolist() == [1.0] * 30
    table[:] = 2.0
    cluster.tables.save("again")  # this replaces an older one
    table[:] = 3.0
    cluster.tables.load("again")
    assert table[:].tolist() == [2.0] * 30


def test_tables_that_are_not_the_same_everywhere(cluster: atta.Cluster) -> None:
    """One owner has lost its rows or has different ones: nobody makes up rows in their place."""
    spec = MutableSpec("torn", 30)
    table = cluster.tables.create(spec)
    second = cluster._connections[1]
    second.call("TableService.Delete", table_pb2.DeleteTableRequest(name="torn"))
    for ask in (lambda: cluster.tables.create(spec), lambda: cluster.tables.open("torn")):
        with pytest.raises(atta.UnknownNameError, match=f"lost on {second.address}.*atta tables load"):
            ask()
    for use in (lambda: table.pull(np.array([12])), lambda: table.push(np.array([12]), np.ones(1, np.float32)).wait()):
        with pytest.raises(atta.UnknownNameError, match="part 1: mutable table 'torn' is not here any more"):
            use()
    with pytest.raises(atta.RemoteError, match="does not have the same tables as part 0: torn"):
        cluster.tables.save("torn")
    text = json.dumps(spec.to_dict())
    anew = table_pb2.CreateTableRequest(dataset_id=cluster.dataset_id, spec=text, table_id=1)
    second.call("TableService.Create", anew)
    with pytest.raises(atta.RemoteError, match=f"{second.address} .part 1.*created or loaded apart"):
        cluster.tables.create(spec)
    with pytest.raises(atta.UnknownNameError, match="created anew"):
        table.pull(np.array([12]))
    assert cluster.tables.delete("torn")
    cluster.tables.create(spec)
    with pytest.raises(atta.UnknownNameError, match="created anew"):
        table.pull(np.array([12]))


def test_creating_goes_on_where_it_was_broken_off(cluster: atta.Cluster) -> None:
    spec = MutableSpec("begun", 30)
    request = table_pb2.CreateTableRequest(dataset_id=cluster.dataset_id, spec=json.dumps(spec.to_dict()), table_id=7)
    cluster._connections[0].call("TableService.Create", request)
    with pytest.raises(atta.UnknownNameError, match="begun"):
        cluster.tables.open("begun")
    assert cluster.tables.create(spec).table_id == 7
    assert cluster.tables.open("begun").table_id == 7


def test_daemons_that_end_and_come_back(
    small_graph: SmallGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, the saved rows come back; after a stop, all rows. Meanwhile no rows are made up."""
    spec, rows = MutableSpec("kept", 100, row_shape=(3,), init=Uniform(0, 1)), np.arange(300).reshape(100, 3)
    peers = dict(enumerate(held_addresses(2)))
    with daemons() as running, ExitStack() as stack:

        def start(part: int) -> None:
            where = small_graph.dataset(2, "random"), part, peers[part], peers
            running.start(*where, snapshots=str(tmp_path / "snapshots"), buffer_bytes=64 << 20)

        for part in peers:
            start(part)
        cluster = stack.enter_context(atta.connect([*peers.values()], deadline_s=20))
        table = atta.DistTensor(cluster, (100, 3), name="kept", init=Uniform(0, 1))
        table[:] = rows
        embedding = atta.DistEmbedding(cluster, 10, 2, name="adam", optimizer="adam", lr=0.1)
        embedding(torch.arange(10)).sum().backward()
        embedding.flush()
        cluster.tables.save("kept")
        running.kill(peers[1])
        with monkeypatch.context() as patched:
            patched.setattr(cluster._connections[1], "_patience_s", 1.0)
            with pytest.raises(atta.RemoteError):
                table[[99]]
        assert np.array_equal(table[[0]], rows[:1])  # the other part keeps serving
        start(1)
        fresh = stack.enter_context(atta.connect([*peers.values()], wait=True))
        for ask in (lambda: fresh.tables.create(spec), lambda: fresh.tables.open("kept")):
            with pytest.raises(atta.UnknownNameError, match=f"lost on {peers[1]}"):
                ask()
        for use in (lambda: table[[99]], lambda: table.add([99], 1.0), lambda: table.grow(101)):
            with pytest.raises(atta.UnknownNameError, match=r"part 1: .*lost.*atta tables load"):
                use()
        assert fresh.tables.load("kept") == ["adam", "kept"]
        assert np.array_equal(atta.DistTensor(fresh, (100, 3), name="kept", init=Uniform(0, 1))[:], rows)
        assert np.array_equal(table[[99]], rows[99:])  # also for a client that connected before
        table[[99]] = 1.0
        embedding(torch.arange(10)).sum().backward()
        weight = embedding.state_dict()["weight"]
        for part, address in peers.items():
            running.end(address)
            start(part)
        again = stack.enter_context(atta.connect([*peers.values()], wait=True))
        assert again.tables.load("shutdown") == ["adam", "kept"]
        assert table[[99, 98]].tolist() == [[1.0, 1.0, 1.0], rows[98].tolist()]
        state = embedding.state_dict()
        assert torch.equal(state["weight"], weight)
        assert state["_extra_state"]["steps"] == 2


def test_command_line(cluster: atta.LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    target = ",".join(cluster.addresses)

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["tables", *words], standalone_mode=False)
        if result.exception:
            raise result.exception
        return result.output

    table = atta.DistTensor(cluster, (5, 2), name="shown", max_rows=20)
    table.grow(12)
    report = json.loads(run("list", "--cluster", target, "--json", "-"))
    assert [(t["name"], t["rows"]) for t in report["tables"]] == [("shown", 12)]
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


def test_a_daemon_that_is_elsewhere_is_lent_nothing(small_graph: SmallGraph) -> None:

    def lent_rows() -> float:
        return sum(stats["table_rows_lent"] for stats in cluster.stats())

    rows = np.random.default_rng(0).integers(0, 2000, 8000)
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        table = atta.DistTensor(cluster, (2000, 50), name="near", init=Normal(0, 1, seed=1))
        wanted = table[rows]
        assert lent_rows() == len(rows)
        for connection, found in zip(cluster._connections, cluster._descriptions, strict=True):
            connection.meet(replace(found, machine="another"))
        assert np.array_equal(table[rows], wanted)
        assert lent_rows() == len(rows)
