"""A worker carries a batch on while its tasks are at home: nothing in the batch depends on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.daemon.daemon import Daemon
from atta.daemon.engine import engine, runner
from atta.samplers.dag.instance import Kind, Task
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running, daemons
from tests.system.test_failover import digest
from tests.waiting import eventually

ALL_TASKS = 1 + 4 + 3 + 3 + 1
"""Of a batch of three hops at home: seeds, rows of seeds and of each hop, edges, joins, end."""


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks each worker has run in a row, of batches however small."""
    monkeypatch.setattr(engine, "CARRIED_MS", -1.0)
    monkeypatch.setattr(runner, "CARRIED_S", 60.0)
    counts: list[int] = []
    tell = runner.TaskRunner._tell

    def counted(self: Any, loop: Any, dag: int, of: Any, ended: list[Any]) -> None:
        counts.append(len(ended))
        tell(self, loop, dag, of, ended)

    monkeypatch.setattr(runner.TaskRunner, "_tell", counted)
    return counts


def started(running: Running, data: Path, parts: int, **settings: Any) -> tuple[list[str], list[Daemon]]:
    addresses = held_addresses(parts)
    peers = dict(enumerate(addresses))
    return addresses, [running.start(data, part, address, peers, **settings) for part, address in peers.items()]


def epoch(addresses: list[str]) -> list[str]:
    """Digests of its batches."""
    with atta.connect(addresses) as cluster:
        how: Any = {"rank": 0, "world_size": 1, "shuffle": True, "seed": 3}
        return [digest(batch) for batch in atta.NeighborLoader(cluster, [4, 3, 2], "train", batch_size=16, **how)]


Home = tuple[list[str], Daemon, list[str]]


@pytest.fixture(scope="module")
def home(small_graph: SmallGraph) -> Iterator[Home]:
    with daemons() as running:
        addresses, (daemon,) = started(running, small_graph.dataset(1, "metis"), 1)
        yield addresses, daemon, epoch(addresses)


def test_a_batch_at_home_takes_one_turn_and_is_the_same(
    running: Running, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch, carried: list[int]
) -> None:
    addresses, (daemon,) = started(running, small_graph.dataset(1, "metis"), 1)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "CARRIED_MS", 1e9)
        expected = epoch(addresses)
        assert max(carried, default=1) == 1
    carried.clear()
    assert epoch(addresses) == expected
    assert carried.count(ALL_TASKS) >= len(expected) - 1, "the first one may have been launched before it was known"
    tasks = sum(value for name, value in daemon.batches.engine.counters.items() if name.startswith("tasks_"))
    assert tasks == 2 * len(expected) * ALL_TASKS


def test_batches_that_ask_others(running: Running, small_graph: SmallGraph, home: Home, carried: list[int]) -> None:
    """Without a cache no batch is wholly at home: each worker goes as far as it can, or does not begin."""
    expected = home[2]
    addresses, fresh = started(running, small_graph.dataset(2, "random"), 2, cache_bytes=0)
    fresh[0].batches.engine._alone = True  # it was wrong about the first one
    carried.clear()
    assert epoch(addresses) == expected
    assert ALL_TASKS not in carried


def test_a_worker_stops_when_its_time_is_over(home: Home, monkeypatch: pytest.MonkeyPatch, carried: list[int]) -> None:
    addresses, _, expected = home
    monkeypatch.setattr(runner, "CARRIED_S", 0.0)
    assert epoch(addresses) == expected
    assert set(carried) == {1}


def interrupted(monkeypatch: pytest.MonkeyPatch, at: Kind, then: Callable[[], None]) -> None:
    run_local = runner.run_local

    def instead(state: Any, task: Task, home: Any, turn: int) -> Any:
        if task.kind is at and threading.current_thread().name.startswith("atta-worker"):
            then()
        return run_local(state, task, home, turn)

    monkeypatch.setattr(runner, "run_local", instead)


def test_a_failing_task_fails_one_session(home: Home, monkeypatch: pytest.MonkeyPatch, carried: list[int]) -> None:
    addresses, daemon, expected = home

    def fail() -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        interrupted(patch, Kind.NEIGHBORHOOD, fail)
        with pytest.raises(atta.errors.AttaError, match=r"neighborhood task of batch .*the disk is gone"):
            epoch(addresses)
    assert epoch(addresses) == expected
    assert eventually(lambda: not daemon.batches.engine._dags and not daemon.batches.engine._sessions)


def test_a_session_may_be_closed_while_a_worker_carries_its_batch_on(
    home: Home, monkeypatch: pytest.MonkeyPatch, carried: list[int]
) -> None:
    addresses, daemon, expected = home
    on_the_way, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        on_the_way.set()
        assert go_on.wait(60)

    with monkeypatch.context() as patch:
        interrupted(patch, Kind.NEIGHBORHOOD, wait)
        with atta.connect(addresses) as cluster:
            loader = atta.NeighborLoader(cluster, [4, 3, 2], "train", batch_size=16, rank=0, world_size=1, seed=3)
            opened = iter(loader)
            assert on_the_way.wait(60)
            opened.close()  # type: ignore[attr-defined]
        assert eventually(lambda: not daemon.batches.engine._sessions)
        assert daemon.batches.engine.slots._out, "the worker still writes into its slot"
        carried.clear()
        go_on.set()
        assert eventually(lambda: not daemon.batches.engine.slots._out)
    assert carried[0] == 3, "seeds, their rows, and the task after which nobody wanted any more"
    assert epoch(addresses) == expected
