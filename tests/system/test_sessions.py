"""Real daemons: sessions survive the habits of training scripts, and bad input gets a clear answer."""

from __future__ import annotations

import gc
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
from tests.addresses import held_port
from tests.system.conftest import SmallGraph
from tests.waiting import eventually


@pytest.fixture
def cluster(pair: atta.LocalCluster) -> atta.LocalCluster:
    return pair


def open_sessions(cluster: atta.Cluster) -> float:
    return sum(s["sessions"] for s in cluster.stats())


def eventually_closed(cluster: atta.Cluster) -> bool:
    return eventually(lambda: open_sessions(cluster) == 0)


def test_the_next_epoch_is_prepared_while_one_ends(cluster: atta.Cluster) -> None:
    options = {"batch_size": 16, "shuffle": True, "rank": 0, "world_size": 1}
    plain = atta.NeighborLoader(cluster, [3], **options)  # type: ignore[arg-type]
    wanted = [[b.n_id().tolist() for b in plain] for _ in range(4)]
    loader = atta.NeighborLoader(cluster, [3], epochs=4, **options)  # type: ignore[arg-type]
    first = iter(loader)
    found = [[next(first).n_id().tolist() for _ in range(len(loader) - 3)]]
    time.sleep(0.5)  # the daemon launches the last batch, which a loader hears with the next one
    found[0] += [next(first).n_id().tolist() for _ in range(2)]
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


def test_daemons_that_do_not_belong_together(cluster: atta.Cluster, placements: dict[str, atta.LocalCluster]) -> None:
    other = placements["2 parts by random, 2 threads"]
    with pytest.raises(atta.WrongDatasetError, match="serves dataset"):
        atta.connect([cluster.addresses[0], other.addresses[1]])
    with pytest.raises(atta.WrongDatasetError, match="partition 1"):
        atta.connect(cluster.addresses[::-1])


def test_sigterm_drains_and_exits_0(small_graph: SmallGraph) -> None:
    """And another daemon does not start at the same port."""
    port = held_port()
    command = [sys.executable, "-m", "atta.cli.main", "serve", "--data", str(small_graph.dataset(1, "random"))]
    command += ["--part", "0", "--listen", f"127.0.0.1:{port}"]
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with atta.connect(f"127.0.0.1:{port}", wait=True) as running:
        second = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
        assert second.returncode == 2
        said = [line for line in second.stderr.splitlines() if "[info " not in line]
        assert said == [
            f"atta: error: cannot listen on 127.0.0.1:{port}: the address is in use by an Atta daemon, which serves "
            f"partition 0 of dataset {running.dataset_id}: stop it (process {daemon.pid}), or name another port with --listen"
        ]
        loader = atta.NeighborLoader(running, [2, 2], batch_size=16)
        iterator = iter(loader)
        next(iterator)
        daemon.send_signal(signal.SIGTERM)
        assert len(list(iterator)) == len(loader) - 1 > 2  # a running session may finish
    assert daemon.wait(timeout=20) == 0
    assert daemon.stderr is not None
    assert "drain" in daemon.stderr.read()


def rows_of(cluster: atta.Cluster, **options: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    batches = list(atta.NeighborLoader(cluster, [4, 4], "train", batch_size=32, **options))
    ids = np.concatenate([b.n_id() for b in batches])
    x, y = (np.concatenate([b.tables["node"][name] for b in batches]) for name in ("x", "y"))
    return ids, x, y, sum(b.stats["remote_bytes"] for b in batches)


@pytest.mark.parametrize("cache", ["0", "100"])
def test_rows_in_a_codec(small_graph: SmallGraph, cache: str) -> None:
    """Remote rows lose only what the codec loses, labels lose nothing. Rows kept for all sessions stay exact."""
    shares = {"fp16": 2**-11, "bf16": 2**-8, "int8": 1 / 254}
    with atta.local(small_graph.dataset(3, "random"), threads=1, options=("--cache-share", cache)) as cluster:
        found = {codec: rows_of(cluster, codec=codec) for codec in shares}
        ids, exact, labels, exact_bytes = rows_of(cluster)
        assert np.array_equal(exact, rows_of(cluster)[1])
        with pytest.raises(atta.UnknownNameError, match="did you mean"):
            rows_of(cluster, codec="fp16x")
    for codec, (same_ids, coded, same_labels, coded_bytes) in found.items():
        assert np.array_equal(ids, same_ids)
        assert np.array_equal(labels, same_labels)
        assert np.abs(coded - exact).max() > 0
        assert (np.abs(coded - exact) <= shares[codec] * 1.001 * np.abs(exact).max(axis=1, keepdims=True)).all()
        assert cache != "0" or coded_bytes < exact_bytes


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    generate("powerlaw", folder / "g", GenerateOptions(nodes=3000, edges=30_000, features=600, classes=3))
    partition_graph(folder / "g", folder / "d", parts=2, method="random")
    return folder


@pytest.mark.parametrize(("threads", "cache"), [(1, "0"), (2, "100")])
def test_rows_of_several_messages_reach_their_places(wide: Path, threads: int, cache: str) -> None:
    """Rows fill two messages. The event loop (one worker) or threads move them, with or without a cache and a codec."""
    table = np.load(wide / "g" / "nodes" / "node" / "x.npy")
    options = ("--cache-share", cache, "--cache-fill", "0")
    with atta.local(wide / "d", threads=threads, options=options) as cluster:
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


def test_rows_of_batches_known_ahead_are_kept(tmp_path: Path) -> None:
    """Batches that resemble each other ask for fewer rows if later ones are sampled before rows are fetched. They are
    the same, nothing is left behind, and a loader that is given up holds up nobody."""
    generate("powerlaw", tmp_path / "g", GenerateOptions(nodes=4000, edges=80_000, features=16, classes=3))
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    how = {"method": "labor", "dependency": 64, "batch_size": 128, "seed_policy": "global"}
    found = {}
    for window in ("0", "4"):
        options = ("--cache", "64MiB", "--cache-share", "40", "--cache-rank", "recent", "--window", window)
        with atta.local(tmp_path / "d", threads=1, options=options) as cluster:
            for _ in atta.NeighborLoader(cluster, [5, 5], np.arange(4000), **how):
                break
            batches = list(atta.NeighborLoader(cluster, [5, 5], np.arange(4000), **how))
            found[window] = (
                [(b.n_id().copy(), b.table("x").copy(), b.edge_index().copy()) for b in batches],
                [b.stats["remote_rows"] for b in batches],
            )
            assert all(b.stats["remote_rows"] + b.stats["cached_rows"] + b.stats["shared_rows"] > 0 for b in batches)
            assert sum(of["dags_in_flight"] for of in cluster.stats()) == 0
    (apart, more), (ahead, fewer) = found.values()
    assert len(apart) == len(ahead) == 32
    assert all(
        np.array_equal(*pair) for one, other in zip(apart, ahead, strict=True) for pair in zip(one, other, strict=True)
    )
    assert sum(fewer) < 0.9 * sum(more)
