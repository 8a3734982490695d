"""Daemons that die in the middle of an epoch: the batches are those of an undisturbed run, each once and in order."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.sessions import stream
from atta.errors import AttaError, ConfigError
from atta.protos.v1 import control_pb2, session_pb2
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running
from tests.waiting import eventually

OWN = {"rank": 0, "world_size": 1, "seed": 3, "shuffle": True}


def digest(batch: Any) -> str:
    found = hashlib.sha256(str(batch.batch_id).encode())
    for name, array in sorted(batch._raw.arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


LOADERS: dict[str, Callable[[atta.Cluster, SmallGraph], Any]] = {
    "neighbours": lambda cluster, _: atta.NeighborLoader(cluster, [4, 3], "train", batch_size=8, **OWN),
    "trees": lambda cluster, _: atta.NeighborLoader(cluster, [4, 3], "train", batch_size=8, disjoint=True, **OWN),
    "times": lambda cluster, graph: atta.NeighborLoader(
        cluster, [4], graph.train_ids, input_time=np.full(120, 25), time_attr="time", batch_size=8, **OWN
    ),
    "links": lambda cluster, graph: atta.LinkNeighborLoader(
        cluster, [3], np.stack([graph.src_ids, graph.dst_ids])[:, :120], batch_size=8, neg_sampling="binary", **OWN
    ),
    "operator": lambda cluster, graph: atta.BatchLoader(
        cluster, "saint-walks", {"length": 3}, input_nodes=graph.train_ids, batch_size=8, **OWN
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_home_daemon_dies_twice_in_an_epoch(kind: str, small_graph: SmallGraph, running: Running) -> None:
    addresses, data = held_addresses(1), small_graph.dataset(1, "random")
    running.start(data, 0, addresses[0], {})
    with atta.connect(addresses) as cluster:
        loader = LOADERS[kind](cluster, small_graph)
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        found, kept = [], []
        for batch in loader:
            kept.append(batch)
            found.append(digest(batch))
            if len(found) in (1, len(whole) // 2):
                running.kill(addresses[0])
                running.start(data, 0, addresses[0], {})
        assert found == whole
        assert [digest(batch) for batch in kept] == whole, "batches of daemons that have died stay readable"


def undisturbed(loader: Any, disturb: Callable[[], None]) -> None:
    """Batches are those of another epoch, although ``disturb`` happens after the first ones."""
    whole = [digest(batch) for batch in loader]
    batches = loader.resume(0, 0)
    found = [digest(next(batches)) for _ in range(3)]
    disturb()
    assert found + [digest(batch) for batch in batches] == whole


@pytest.mark.parametrize(("part", "links"), [(0, True), (1, True), (1, False)])
def test_a_daemon_comes_back_at_another_address(
    part: int, links: bool, small_graph: SmallGraph, running: Running, tmp_path: Path
) -> None:
    """Of a peer, the trainer's own daemon finds it there in mid epoch: it reads its cluster file again, too."""
    (*addresses, new), data, file = held_addresses(3), small_graph.dataset(2, "random"), tmp_path / "cluster.toml"
    write_cluster(file, addresses)
    settings: dict[str, Any] = {"peers_file": str(file), "links": links, "cache_bytes": 0}
    for number, address in enumerate(addresses):
        running.start(data, number, address, dict(enumerate(addresses)), **settings)
    with atta.connect(file) as cluster:

        def moved() -> None:
            running.kill(addresses[part])
            addresses[part] = new
            running.start(data, part, new, dict(enumerate(addresses)), **settings)
            write_cluster(file, addresses)

        undisturbed(LOADERS["neighbours"](cluster, small_graph), moved)
        assert part or cluster.addresses == addresses


def test_another_dataset_at_the_new_address(small_graph: SmallGraph, running: Running, tmp_path: Path) -> None:
    (old, new), file = held_addresses(2), tmp_path / "cluster.toml"
    write_cluster(file, [old])
    running.start(small_graph.dataset(1, "random"), 0, old, {})
    with atta.connect(file) as cluster:
        batches = iter(LOADERS["neighbours"](cluster, small_graph))
        next(batches)
        running.kill(old)
        running.start(small_graph.dataset(2, "random"), 0, new, {1: old})
        write_cluster(file, [new])
        with pytest.raises(atta.WrongDatasetError, match=f"{new}: serves partition 0 of dataset"):
            list(batches)


@pytest.mark.parametrize("reconnect", [0, 0.3])
def test_a_daemon_that_stays_away(reconnect: float, small_graph: SmallGraph, running: Running) -> None:
    (address,) = held_addresses(1)
    running.start(small_graph.dataset(1, "random"), 0, address, {})
    with atta.connect([address]) as cluster:
        batches = iter(atta.NeighborLoader(cluster, [3], "train", batch_size=8, reconnect=reconnect, **OWN))
        next(batches)
        running.kill(address)
        with pytest.raises(atta.UnavailableError, match=address) as caught:
            list(batches)
        assert ("reconnect=0.3 s" in str(caught.value)) == bool(reconnect)
        assert list(batches) == [], "an iterator that has failed is over"


@pytest.mark.parametrize("reconnect", [0, 60])
def test_a_session_that_has_ended(reconnect: float, small_graph: SmallGraph, running: Running) -> None:
    """Its lease ran out while the consumer was stopped. Here it is closed by its name, which nobody else is shown."""
    (address,) = held_addresses(1)
    running.start(small_graph.dataset(1, "random"), 0, address, {})
    with atta.connect([address]) as cluster:
        loader = atta.NeighborLoader(cluster, [3], "train", batch_size=8, reconnect=reconnect, **OWN)
        whole = [digest(batch) for batch in loader]
        batches: Any = loader.resume(0, 0)
        found = [digest(next(batches)) for _ in range(3)]
        (session,) = cluster._connections[0].sessions()
        for name in (session.session, batches._stream._stream.session):
            found.append(digest(next(batches)))
            cluster._connections[0].call("SessionService.Close", session_pb2.CloseRequest(session=name))
        if reconnect:
            assert found + [digest(batch) for batch in batches] == whole
        else:
            with pytest.raises(atta.UnknownNameError, match="does not exist"):
                list(batches)


def test_a_stopped_daemon(small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "NEXT_DEADLINE_S", 1.0)
    with atta.local(small_graph.dataset(1, "random"), threads=1) as cluster:
        loader = atta.NeighborLoader(cluster, [3], "train", batch_size=8, reconnect=0.5, **OWN)
        whole = [digest(batch) for batch in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        found = [digest(next(batches))]
        os.kill(cluster.pids[0], signal.SIGSTOP)
        try:
            with pytest.raises(atta.DeadlineError, match=rf"{cluster.addresses[0]}.*reconnect=0.5 s"):
                found.extend(digest(batch) for batch in batches)  # keeps those that come before the error
        finally:
            os.kill(cluster.pids[0], signal.SIGCONT)
        state = loader.state_dict()
        assert state["batch"] == len(found)
        loader.load_state_dict(state)
        assert found + [digest(batch) for batch in loader] == whole


def test_who_waits_is_told_which_daemon_is_stopped(small_graph: SmallGraph, caplog: pytest.LogCaptureFixture) -> None:
    data = small_graph.dataset(2, "random")
    with atta.local(data, threads=1, options=("--cache", "0")) as cluster:
        (home, other), stopped = cluster._connections, f"{cluster.addresses[1]} (partition 1)"
        loader = atta.NeighborLoader(cluster, [3], "train", batch_size=8, **OWN)
        whole = [digest(batch) for batch in loader]
        batches = iter(loader.resume(0, 0))
        found = [digest(next(batches))]
        os.kill(cluster.pids[1], signal.SIGSTOP)
        with ThreadPoolExecutor(1) as waiting:
            others = waiting.submit(lambda: [digest(batch) for batch in batches])
            began = time.monotonic()
            with pytest.raises(atta.DeadlineError, match=rf"^{other.address}: no answer within 1 s$"):
                other.call("ControlService.Stats", control_pb2.StatsRequest(), silent_s=1.0)
            assert home.unreached() == [other.address]
            assert eventually(lambda: stopped in caplog.text, 9 - (time.monotonic() - began))
            os.kill(cluster.pids[1], signal.SIGCONT)
            assert found + others.result(60) == whole
        assert caplog.messages == [f"batches wait for a daemon that does not answer: {stopped}"]


def test_a_state_in_mid_epoch(small_graph: SmallGraph, placements: dict[str, atta.LocalCluster]) -> None:
    """Another process would do the same: the state goes to a loader of its own."""
    cluster = next(iter(placements.values()))

    def made(**changes: Any) -> Any:
        return atta.NeighborLoader(cluster, [3], "train", **{"batch_size": 8, **OWN, **changes})

    loader = made()
    epochs = [[digest(batch) for batch in loader] for _ in range(3)]
    loader.set_epoch(1)
    for number, _ in enumerate(loader, 1):
        if number == 5:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 5)
    other = made(job="another", share=0.5)
    other.load_state_dict(state)
    assert other.state_dict() == state
    other.set_epoch(1)
    assert [digest(batch) for batch in other] == epochs[1][5:]
    assert state["tables_version"] == 0
    del state["tables_version"]  # an epoch that has not begun may have another one
    assert other.state_dict() == {**state, "epoch": 2, "batch": 0}
    assert [digest(batch) for batch in other] == epochs[2]
    other.set_epoch(7)
    assert (other.state_dict()["epoch"], other.state_dict()["batch"]) == (7, 0)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert [digest(batch) for batch in other] == epochs[0], "set_epoch names another epoch, so it begins at its start"
    for changes in ({"seed": 4}, {"batch_size": 4}, {"shuffle": False}):
        with pytest.raises(ConfigError, match="other batches"):
            made(**changes).load_state_dict(state)
    with pytest.raises(AttaError, match="batch"):
        made().load_state_dict({**state, "batch": 1000})
