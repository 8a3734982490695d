"""Real daemons: sessions survive the habits of training scripts, and bad input gets a clear answer."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import atta
from atta.daemon.peers.peers import PULL_BYTES
from atta.partition.cutting.run import partition_graph
from atta.partition.generate import GenerateOptions, generate
from tests.addresses import held_addresses, held_port
from tests.system.conftest import SmallGraph
from tests.waiting import eventually


@pytest.fixture
def cluster(pair: atta.LocalCluster) -> atta.LocalCluster:
    return pair


def open_sessions(cluster: atta.Cluster) -> float:
    return sum(s["sessions"] for s in cluster.stats())


def eventually_closed(cluster: atta.Cluster) -> bool:
    return eventually(lambda: open_sessions(cluster) == 0)


def test_ranks_get_equally_many_batches_and_all_seeds(cluster: atta.Cluster, small_graph: SmallGraph) -> None:
    for policy in ("local", "global"):
        for world in (1, 2, 3, 5):
            seen: list[int] = []
            counts = set()
            for rank in range(world):
                loader = atta.NeighborLoader(
                    cluster, [2], batch_size=7, shuffle=True, seed_policy=policy, rank=rank, world_size=world
                )
                batches = [b.n_id()[: b.batch_size].tolist() for b in loader]
                assert len(batches) == len(loader)
                counts.add(len(batches))
                seen += [v for b in batches for v in b]
            assert len(counts) == 1, f"{policy}, {world} ranks: unequal batch counts {counts}"
            assert set(seen) == set(small_graph.train_ids.tolist())
            # Padding repeats fewer than one batch per rank.
            assert len(seen) < len(small_graph.train_ids) + 7 * world


def test_the_next_epoch_is_prepared_while_one_ends(cluster: atta.Cluster) -> None:
    options = {"batch_size": 16, "shuffle": True, "rank": 0, "world_size": 1}
    plain = atta.NeighborLoader(cluster, [3], **options)  # type: ignore[arg-type]
    wanted = [[b.n_id().tolist() for b in plain] for _ in range(4)]
    loader = atta.NeighborLoader(cluster, [3], epochs=4, **options)  # type: ignore[arg-type]
    first = iter(loader)
    found = [[next(first).n_id().tolist() for _ in range(len(loader) - 1)]]
    assert eventually(lambda: open_sessions(cluster) == 2)
    found[0] += [b.n_id().tolist() for b in first]
    found += [[b.n_id().tolist() for b in loader] for _ in range(3)]
    assert found == wanted
    assert eventually_closed(cluster)  # nothing is prepared after the last epoch

    loader.set_epoch(1)
    assert [b.n_id().tolist() for b in loader] == wanted[1]
    loader.set_epoch(3)  # not the prepared one
    assert [b.n_id().tolist() for b in loader] == wanted[3]
    assert eventually_closed(cluster)
    loader.set_epoch(0)
    assert [b.n_id().tolist() for b in loader] == wanted[0]
    del loader, first  # with an epoch prepared
    gc.collect()
    assert eventually_closed(cluster)


def test_tables_of_the_seeds_alone(cluster: atta.Cluster) -> None:
    options = {"batch_size": 32, "rank": 0, "world_size": 1}
    plain = list(atta.NeighborLoader(cluster, [4, 3], frontier="all", **options))  # type: ignore[arg-type]
    for tables in (None, ["x"]):
        loader = atta.NeighborLoader(cluster, [4, 3], tables=tables, seed_tables=["y"], frontier="all", **options)  # type: ignore[arg-type]
        for whole, some in zip(plain, loader, strict=True):
            assert np.array_equal(whole.n_id(), some.n_id())
            assert np.array_equal(whole.table("x"), some.table("x"))
            assert np.array_equal(whole.table("y")[: whole.batch_size], some.table("y"))
            assert len(some.to_pyg().y) == some.batch_size


def test_input_id_is_the_position_in_the_input(cluster: atta.Cluster, small_graph: SmallGraph) -> None:
    wanted = small_graph.ids[[5, 3, 200, 17, 60, 4]]
    loader = atta.NeighborLoader(cluster, [2], input_nodes=wanted, batch_size=4, shuffle=True, pad=False)
    for batch in loader:
        assert np.array_equal(wanted[batch.input_id], batch.n_id()[: batch.batch_size])


@pytest.mark.parametrize("machine", ["this one", "another"])
def test_iterator_collected_mid_epoch(cluster: atta.Cluster, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine == "another":
        monkeypatch.setattr("atta.client.cluster.machine_id", lambda: machine)
    iterator = iter(atta.NeighborLoader(cluster, [3, 3], batch_size=4))
    first = next(iterator)
    content = first.table("x").copy()
    del iterator
    gc.collect()
    assert eventually_closed(cluster)
    for _ in range(3):  # other sessions reuse slots, but never a slot that a consumer still reads
        list(atta.NeighborLoader(cluster, [3, 3], batch_size=4))
    assert np.array_equal(first.table("x"), content)


def test_keeping_all_batches_neither_blocks_nor_overwrites(cluster: atta.Cluster) -> None:
    loader = atta.NeighborLoader(cluster, [3, 3], batch_size=4, seed=2)
    kept = list(loader)
    assert len(kept) == len(loader) > 20
    loader.set_epoch(0)
    for old, new in zip(kept, loader, strict=True):
        assert np.array_equal(old.table("x"), new.table("x"))
        assert np.array_equal(old.n_id(), new.n_id())


def test_the_last_batch_of_an_epoch_gives_its_slot_back(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [3, 3], batch_size=4, seed=2)

        def epochs(count: int) -> float:
            for _ in range(count):
                for batch in loader:
                    assert batch.num_nodes > 0
                time.sleep(0.05)
                del batch  # the consumer still held the last one when its session was closed
                time.sleep(0.05)  # a thread sends the message that it is free
            return sum(s["slots_created"] for s in cluster.stats())

        before = epochs(4)
        assert epochs(12) - before < 12, "every epoch's last batch costs a new slot"


def test_two_loaders_at_once(cluster: atta.Cluster) -> None:
    a = atta.NeighborLoader(cluster, [3, 3], batch_size=8, seed=1)
    b = atta.NeighborLoader(cluster, [2], input_nodes="val", batch_size=8, seed=2)
    alone = [x.n_id().tolist() for x in a], [x.n_id().tolist() for x in b]
    a.set_epoch(0)
    b.set_epoch(0)
    left, right = iter(a), iter(b)
    together: tuple[list[list[int]], list[list[int]]] = ([], [])
    for i in range(max(len(a), len(b))):
        if i < len(a):
            together[0].append(next(left).n_id().tolist())
        if i < len(b):
            together[1].append(next(right).n_id().tolist())
    assert together == alone


def test_resume_continues_the_very_epoch(cluster: atta.Cluster) -> None:
    loader = atta.NeighborLoader(cluster, [3, 3], batch_size=8, shuffle=True, seed=4)
    whole = [b.n_id().tolist() for b in loader]
    assert [b.n_id().tolist() for b in loader.resume(epoch=0, batch=3)] == whole[3:]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"input_nodes": np.array([10**12])}, atta.ConfigError, "1000000000000"),
        ({"input_nodes": "tran"}, atta.UnknownNameError, "train"),
        ({"tables": ["z"]}, atta.UnknownNameError, "z"),
        ({"num_neighbors": [5, -2]}, atta.ConfigError, "-2"),
        ({"num_neighbors": [10**8]}, atta.ConfigError, "100000000"),
        ({"rank": 2, "world_size": 2}, atta.ConfigError, "rank 2"),
        ({"input_nodes": ("paper", "train")}, atta.UnknownNameError, "paper"),
        ({"input_nodes": np.array([], dtype=np.int64)}, atta.ConfigError, "seed"),
        ({"frontier": "some"}, atta.ConfigError, "frontier"),
        ({"share": 1e6}, atta.ConfigError, "share 1e"),
    ],
)
def test_bad_arguments(cluster: atta.Cluster, options: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        list(atta.NeighborLoader(cluster, **{"num_neighbors": [2], "batch_size": 4, **options}))  # type: ignore[arg-type]
    assert len(list(atta.NeighborLoader(cluster, [2], batch_size=64))) > 0  # the daemon goes on serving


def test_unreachable_daemon() -> None:
    with pytest.raises(atta.UnavailableError, match=r"127\.0\.0\.1"):
        atta.connect(held_addresses(1)[0], deadline_s=3)


def test_daemons_of_different_datasets(small_graph: SmallGraph) -> None:
    with (
        atta.local(small_graph.dataset(2, "metis"), threads=1) as a,
        atta.local(small_graph.dataset(2, "random"), threads=1) as b,
        pytest.raises(atta.WrongDatasetError, match="serves dataset"),
    ):
        atta.connect([a.addresses[0], b.addresses[1]])


def test_daemons_in_the_wrong_order(cluster: atta.Cluster) -> None:
    with pytest.raises(atta.WrongDatasetError, match="partition 1"):
        atta.connect(list(reversed(cluster.addresses)))


def test_dead_peer_reaches_the_iterator(small_graph: SmallGraph) -> None:
    options = ("--peer-deadline", "1s", "--cache", "0")  # a full cache would do without the peer
    with atta.local(small_graph.dataset(2, "random"), threads=1, options=options) as broken:
        loader = atta.NeighborLoader(broken, [5, 5], batch_size=8, rank=0, world_size=2, reconnect=0)
        list(loader)
        os.kill(broken.pids[1], signal.SIGKILL)
        with pytest.raises(atta.AttaError, match=broken.addresses[1]):
            list(loader)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_dead_home_reaches_the_iterator(small_graph: SmallGraph, taken: int) -> None:
    """The daemon dies while the client waits for the next batch: the iterator soon ends with an error."""
    with atta.local(small_graph.dataset(2, "random"), threads=1) as cluster:
        batches = iter(atta.NeighborLoader(cluster, [3], "train", batch_size=4, reconnect=0))
        for _ in range(taken):
            next(batches)
        os.kill(cluster.pids[0], signal.SIGKILL)
        with pytest.raises(atta.DaemonEndedError, match="partition 0 was killed by SIGKILL; out of memory"):
            for _ in batches:
                pass


def test_lease_of_a_killed_client_runs_out(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--lease", "1s")) as running:
        script = (
            "import atta, sys, time; c = atta.connect(sys.argv[1]);"
            "i = iter(atta.NeighborLoader(c, [2], batch_size=2)); next(i); print('up', flush=True); time.sleep(60)"
        )
        client = subprocess.Popen([sys.executable, "-c", script, running.addresses[0]], stdout=subprocess.PIPE)
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        time.sleep(2.5)  # longer than the lease: an idle client that is alive keeps its session
        assert open_sessions(running) == 1
        client.kill()
        client.wait()
        assert eventually_closed(running)


def serve(path: object, port: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(path), "--part", "0"]
    return subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}", *options], stderr=subprocess.PIPE, text=True)


def test_sigterm_drains_and_exits_0(small_graph: SmallGraph) -> None:
    port = held_port()
    daemon = serve(small_graph.dataset(1, "random"), port)
    with atta.connect(f"127.0.0.1:{port}", wait=True) as running:
        loader = atta.NeighborLoader(running, [2, 2], batch_size=16)
        iterator = iter(loader)
        next(iterator)
        daemon.send_signal(signal.SIGTERM)
        rest = list(iterator)  # a running session may finish
        assert len(rest) == len(list(range(1 + len(rest)))) - 1 > 2
    assert daemon.wait(timeout=20) == 0
    assert daemon.stderr is not None
    assert "drain" in daemon.stderr.read()


def test_second_daemon_on_the_same_port(small_graph: SmallGraph) -> None:
    with atta.local(small_graph.dataset(1, "random"), threads=1) as running:
        port = int(running.addresses[0].rpartition(":")[2])
        second = serve(small_graph.dataset(1, "random"), port)
        _, errors = second.communicate(timeout=30)
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in errors
        assert "Traceback" not in errors


def rows_of(cluster: atta.Cluster, **options: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Ids, rows and labels of an epoch, and the number of bytes from other daemons."""
    batches = list(atta.NeighborLoader(cluster, [4, 4], "train", batch_size=32, **options))
    ids = np.concatenate([b.n_id() for b in batches])
    x, y = (np.concatenate([b.tables["node"][name] for b in batches]) for name in ("x", "y"))
    return ids, x, y, sum(b.stats["remote_bytes"] for b in batches)


@pytest.mark.parametrize("cache", ["0", "100"])
@pytest.mark.parametrize(("codec", "share"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 1 / 254)])
def test_rows_in_a_codec(small_graph: SmallGraph, codec: str, share: float, cache: str) -> None:
    """Remote rows lose only what the codec loses, labels lose nothing. Rows kept for all sessions stay exact."""
    with atta.local(small_graph.dataset(3, "random"), threads=1, options=("--cache-share", cache)) as cluster:
        ids, coded, labels, coded_bytes = rows_of(cluster, codec=codec)
        same_ids, exact, same_labels, exact_bytes = rows_of(cluster)
        assert np.array_equal(ids, same_ids)
        assert np.array_equal(labels, same_labels)
        assert np.array_equal(exact, rows_of(cluster)[1])
        assert np.abs(coded - exact).max() > 0
        assert (np.abs(coded - exact) <= share * 1.001 * np.abs(exact).max(axis=1, keepdims=True)).all()
        assert cache != "0" or coded_bytes < exact_bytes
        with pytest.raises(atta.UnknownNameError, match="did you mean"):
            rows_of(cluster, codec=codec + "x")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cache", ["0", "100"])
def test_rows_of_several_messages_reach_their_places(tmp_path: Path, threads: int, cache: str) -> None:
    """Rows fill two messages. The event loop (one worker) or threads move them, with or without a cache and a codec."""
    generate("powerlaw", tmp_path / "g", GenerateOptions(nodes=3000, edges=30_000, features=600, classes=3))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    table = np.load(tmp_path / "g" / "nodes" / "node" / "x.npy")
    options = ("--cache-share", cache, "--cache-fill", "0")
    with atta.local(tmp_path / "d", threads=threads, options=options) as cluster:
        for epoch, codec in enumerate(["", "", "fp16"]):
            how = {"batch_size": 3000, "rank": 0, "world_size": 1, "codec": codec}
            (batch,) = atta.NeighborLoader(cluster, [2], np.arange(3000), seed_policy="global", **how)
            assert epoch or batch.stats["remote_bytes"] > PULL_BYTES
            rows = table[batch.n_id()]
            assert np.allclose(batch.table("x"), rows, rtol=2**-11 if codec else 0, atol=1e-7 if codec else 0)


def test_rows_that_batches_have_in_common_cross_once(tmp_path: Path) -> None:
    """With slow answers, which come over links as others do, batches in flight wait together: fewer bytes, the same
    rows."""
    generate("powerlaw", tmp_path / "g", GenerateOptions(nodes=4000, edges=80_000, features=64, classes=3))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    found = {}
    for share in ("--share-pulls", "--no-share-pulls"):
        options = ("--cache", "0", "--peer-delay", "30ms", share)
        with atta.local(tmp_path / "d", threads=1, options=options) as cluster:
            batches = list(atta.NeighborLoader(cluster, [10, 10], np.arange(4000), batch_size=256))
            found[share] = (
                [b.tables["node"]["x"].copy() for b in batches],
                sum(b.stats["remote_bytes"] for b in batches),
            )
            shared = sum(b.stats["shared_rows"] for b in batches)
            assert (shared > 0) == (share == "--share-pulls")
            assert sum(of["link_requests_served"] for of in cluster.stats()) > 0
    (together, fewer), (apart, more) = found.values()
    assert fewer < 0.9 * more
    assert len(together) == len(apart) > 3
    assert all(np.array_equal(a, b) for a, b in zip(together, apart, strict=True))
