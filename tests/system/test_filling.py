"""A fresh daemon fills its cache before the first batch, and nothing depends on it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import structlog

import atta
from atta.daemon import filling as filling_rows
from atta.daemon.daemon import Daemon
from atta.daemon.peers import peers as peers_of
from atta.partition.dataset import Dataset
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running
from tests.system.test_failover import digest
from tests.waiting import eventually

ROW_BYTES = 16 * 4 + 8


@pytest.fixture
def data(small_graph: SmallGraph) -> Path:
    return small_graph.dataset(2, "metis")


def both(running: Running, data: Path, addresses: list[str], **settings: object) -> list[Daemon]:
    """Both daemons. Their whole memory is for rows, unless ``settings`` say otherwise."""
    peers, settings = dict(enumerate(addresses)), {"cache_edges": False, **settings}
    return [running.start(data, part, address, peers, **settings) for part, address in peers.items()]


def is_filled(daemon: Daemon) -> bool:
    return daemon._stats()["fill_pieces_left"] == 0


def filled(*started: Daemon) -> None:
    assert eventually(lambda: all(is_filled(daemon) for daemon in started))


def epoch(addresses: list[str]) -> list[tuple[str, np.ndarray, dict[str, float]]]:
    """The digest, the vertices and the figures of each batch of an epoch of partition 0's loader."""
    with atta.connect(addresses) as cluster:
        loader = atta.NeighborLoader(cluster, [4, 3], "train", batch_size=20, rank=0, world_size=2, seed=3)
        return [(digest(batch), batch.n_id().copy(), batch.stats) for batch in loader]


def halo(data: Path, part: int) -> np.ndarray:
    """Sources of edges into the partition that lie elsewhere, by brute force."""
    dataset = Dataset.open(data)
    low, high = dataset.book.range("node", part)
    sources = np.unique(dataset.part(part).csc("node__to__node").indices)
    return sources[(sources < low) | (sources >= high)]


def of_peers(data: Path, n_id: np.ndarray) -> np.ndarray:
    dataset = Dataset.open(data)
    internal = dataset.to_internal("node", n_id)
    low, high = dataset.book.range("node", 0)
    return internal[(internal < low) | (internal >= high)]


def remote_vertices(data: Path, part: int) -> int:
    return Dataset.open(data).part(1 - part).num_core("node")


def test_the_very_first_batch_finds_hot_rows_in_the_cache(running: Running, data: Path) -> None:
    addresses = held_addresses(2)
    fresh = both(running, data, addresses, cache_share=1.0)
    filled(*fresh)
    for part, daemon in enumerate(fresh):
        assert daemon._stats()["filled_bytes"] == ROW_BYTES * len(halo(data, part))
    found = epoch(addresses)
    assert sum(figures["cached_rows"] for *_, figures in found) > 0
    _, n_id, figures = found[0]  # later ones find what this one has brought, too
    remote = of_peers(data, n_id)
    near = int(np.isin(remote, halo(data, 0)).sum())
    assert (figures["cached_rows"], figures["remote_rows"]) == (near, len(remote) - near)


def test_batches_are_the_same_with_and_without_it(running: Running, data: Path) -> None:
    results = []
    for settings in ({}, {"cache_fill": 0}, {"cache_bytes": 0}, {"cache_fill": 2_000}):  # the last is slow: in mid-fill
        addresses = held_addresses(2)
        daemon, _ = both(running, data, addresses, **settings)
        if "cache_fill" not in settings:  # peers are connected before the first batch
            filled(daemon)
            wanted = 0 if settings else ROW_BYTES * remote_vertices(data, 0)
            assert (daemon._stats()["filled_bytes"], daemon._stats()["links_missing"]) == (wanted, 0)
        found = epoch(addresses)
        assert settings or not sum(figures["remote_rows"] for *_, figures in found), "there is room for all rows"
        results.append([batch for batch, *_ in found])
        if "cache_fill" in settings:
            assert daemon._stats()["filled_bytes"] <= 2_000 + ROW_BYTES * remote_vertices(data, 0)
        running.kill_all()
    assert len(results[0]) > 1
    assert all(other == results[0] for other in results[1:])


def test_a_peer_that_is_away_at_the_start_does_no_harm(running: Running, data: Path) -> None:
    addresses = held_addresses(2)
    peers = dict(enumerate(addresses))
    with structlog.testing.capture_logs() as lines:
        first = running.start(data, 0, addresses[0], peers)
        time.sleep(0.5)
        assert not is_filled(first)
        assert not first._stopping.is_set()
        assert first._stats()["filled_bytes"] == 0
        running.start(data, 1, addresses[1], peers)
        filled(first)
    assert first._stats()["filled_bytes"] == ROW_BYTES * remote_vertices(data, 0)
    assert not [line for line in lines if line["event"] in ("peer lost", "peer is back", "background task died")]


def test_a_peer_that_does_not_answer_is_named_and_again_when_it_does(
    running: Running, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_of, "MEET_S", 0.1)
    addresses = held_addresses(2)
    peers = dict(enumerate(addresses))

    def said(*events: str) -> bool:
        return [line["event"] for line in lines if line["event"].startswith("peer ")] == [*events]

    with structlog.testing.capture_logs() as lines:
        running.start(data, 0, addresses[0], peers)
        assert eventually(lambda: said("peer lost"))
        running.start(data, 1, addresses[1], peers)
        assert eventually(lambda: said("peer lost", "peer is back"))
    lost = next(line for line in lines if line["event"] == "peer lost")
    assert (lost["part"], lost["error"]) == (1, f"{addresses[1]}: no daemon answers")


def test_clients_may_wait_for_filled_caches(running: Running, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling_rows, "FILL_BYTES", 4 * ROW_BYTES)
    addresses = held_addresses(2)
    peers = dict(enumerate(addresses))
    first = running.start(data, 0, addresses[0], peers)
    assert first._stats()["caches_filled"] == 0  # the owner of the other rows and in-edges is away
    second = running.start(data, 1, addresses[1], peers, cache_fill=1)  # its second piece comes in minutes
    with atta.connect(addresses) as cluster:
        assert eventually(lambda: first._stats()["caches_filled"] == 1)
        began = time.monotonic()
        assert not cluster.wait_filled(0.3)
        assert 0.3 <= time.monotonic() - began < 5
    assert second._stats()["caches_filled"] == 0
    running.kill_all()

    addresses = held_addresses(2)
    both(running, data, addresses, cache_edges=True)
    with atta.connect(addresses) as cluster:
        assert cluster.wait_filled(20)
        assert all(figures["edge_cache_rows"] for figures in cluster.stats())
    assert not any(figures["remote_rows"] for *_, figures in epoch(addresses))


@pytest.mark.parametrize("settings", [{"cache_bytes": 0}, {"cache_fill": 0}])
def test_caches_that_only_batches_fill_are_not_waited_for(running: Running, data: Path, settings: dict) -> None:
    addresses = held_addresses(2)
    both(running, data, addresses, cache_edges=True, **settings)
    with atta.connect(addresses) as cluster:
        assert cluster.wait_filled(20)
        assert all(figures["filled_bytes"] == 0 for figures in cluster.stats())


def test_a_daemon_stops_in_mid_fill(running: Running, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling_rows, "FILL_BYTES", 4 * ROW_BYTES)
    addresses = held_addresses(2)
    daemon, _ = both(running, data, addresses, cache_fill=1)
    assert eventually(lambda: daemon._stats()["filled_bytes"])
    assert daemon._stats()["fill_pieces_left"] > 0
    running.end(addresses[0])


@pytest.mark.parametrize("links", [True, False])
def test_vertices_are_expanded_at_home_once_their_in_edges_are_here(running: Running, data: Path, links: bool) -> None:
    """As many as peers expand without the copies. The batches are the same."""
    results = []
    for cache_edges in (False, True):
        addresses = held_addresses(2)
        daemon, _ = both(running, data, addresses, cache_edges=cache_edges, links=links)
        if cache_edges:
            remote = Dataset.open(data).part(1).num_core("node")
            assert eventually(lambda daemon=daemon, n=remote: daemon._stats()["edge_cache_rows"] == n)  # type: ignore[misc]
        results.append(epoch(addresses))
        if cache_edges:
            stats = daemon._stats()
            assert stats["edge_cache_rows_hit"] == stats["edge_cache_rows_asked"] > 0
            assert stats["edge_cache_refused"] == 0
            assert stats["edge_cache_bytes"] + daemon.graph.caches.rows.nbytes <= daemon.graph.caches._limit_bytes
        running.kill_all()
    elsewhere, at_home = results
    assert sum(figures["remote_frontier"] for *_, figures in elsewhere) > 0
    for (found, _, figures), (expected, _, others) in zip(at_home, elsewhere, strict=True):
        assert found == expected
        assert figures["cached_frontier"] == others["remote_frontier"]
        assert figures.get("remote_frontier", 0) == 0
