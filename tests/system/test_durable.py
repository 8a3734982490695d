"""Daemons that keep their tables: killed at any moment, they lose no acknowledged push and apply none twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.spec import MutableSpec, OptimiserSpec
from atta.kvstore.tables import Tables
from atta.protos.v1 import table_pb2
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES
from atta.wire.rpc import Bulk
from tests.addresses import held_addresses
from tests.durable import durable
from tests.system.conftest import SmallGraph
from tests.system.running import Running

ADDED = MutableSpec("added", 400, "<i8", (8,))
SGD = MutableSpec("sgd", 300, "<f4", (16,), optimiser=OptimiserSpec.sgd(0.1))
ADAM = MutableSpec("adam", 300, "<f4", (16,), optimiser=OptimiserSpec.adam(0.01))
WRITTEN = MutableSpec("written", 200, "<f8", (4,), versioned=True)
SPECS = (ADDED, SGD, ADAM, WRITTEN)
OPS = {"added": "add", "sgd": "step", "adam": "step", "written": "write"}


class Oracle:
    """What the tables must hold: by numpy, and by tables in memory that are never disturbed."""

    def __init__(self) -> None:
        self.tables = {spec.name: MutableTable(spec) for spec in SPECS}
        self.rows = {name: table.pull(np.arange(table.rows)).values for name, table in self.tables.items()}
        self.means, self.squares = np.zeros((300, 16)), np.zeros((300, 16))
        self.pushes = 0
        for table in self.tables.values():
            table.register(1)

    def push(
        self, name: str, rows: np.ndarray, values: np.ndarray, step: int | None, version: int | None = None
    ) -> None:
        if version is None and name == "written":
            version = self.pushes
        self.tables[name].push(
            rows, values, OPS[name], client=1, sequence=self.pushes, settled=self.pushes, version=version, step=step
        )
        self.pushes += 1
        own = self.rows[name]
        if name == "added":
            np.add.at(own, rows, values)
        elif name == "written":
            own[rows] = values
        elif name == "sgd":
            own[rows] -= np.float32(0.1) * values
        else:
            self.means[rows] = 0.9 * self.means[rows] + 0.1 * values
            self.squares[rows] = 0.999 * self.squares[rows] + 0.001 * values.astype(np.float64) ** 2
            assert step is not None
            size = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            own[rows] -= (size * self.means[rows] / (np.sqrt(self.squares[rows]) + 1e-8)).astype(np.float32)

    def check(self, cluster: atta.Cluster) -> None:
        for spec in SPECS:
            every = np.arange(spec.rows)
            found = cluster.tables.create(spec).pull(every, versions=True)
            undisturbed = self.tables[spec.name].pull(every)
            assert found.values.tobytes() == undisturbed.values.tobytes()
            assert undisturbed.versions is None or np.array_equal(found.versions, undisturbed.versions)
            if spec.dtype == "<f4":
                assert np.allclose(found.values, self.rows[spec.name], rtol=1e-4, atol=1e-5)
            else:
                assert np.array_equal(found.values, self.rows[spec.name])


def train(cluster: atta.Cluster, oracle: Oracle, rng: np.random.Generator, until: threading.Event, least: int) -> int:
    """Push to all tables, up to three pushes at a time, until told to end; returns the number of rounds."""
    tables, rounds = {spec.name: cluster.tables.create(spec) for spec in SPECS}, 0
    while rounds < least or not until.is_set():
        rounds += 1
        tickets = []
        for name, table in tables.items():
            rows = rng.permutation(table.rows)[:150]  # each once: steps sum the gradients of a row
            spec = table.spec
            values = (10 * rng.standard_normal((150, *spec.row_shape))).astype(spec.dtype)
            step = rounds if OPS[name] == "step" else None
            version = oracle.pushes if name == "written" else None
            oracle.push(name, rows, values, step)
            tickets.append(table.push(rows, values, OPS[name], step=step or 0, version=version))
        for ticket in tickets:
            ticket.wait()
    return rounds


def killed_while_training(small_graph: SmallGraph, folder: Path, seed: int, kills: int, *options: str) -> None:
    rng, oracle, over = np.random.default_rng(seed), Oracle(), threading.Event()
    kept = durable(small_graph.dataset(1, "random"), folder, "--log-size", "1MiB", *options)
    with kept as daemon, ThreadPoolExecutor(1) as pool, daemon.connect() as cluster:
        work = pool.submit(train, cluster, oracle, np.random.default_rng(seed + 1), over, 12)
        for _ in range(kills):
            time.sleep(float(rng.uniform(0, 0.7)))
            daemon.kill()
            daemon.start()
            daemon.connect().close()
        over.set()
        work.result(120)
        oracle.check(cluster)
        if kills > 2:
            daemon.kill()
            daemon.start()
            oracle.check(cluster)
        assert sum(path.stat().st_size for path in folder.rglob("log-*")) < 4 << 20


def test_killed_while_training(small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    killed_while_training(small_graph, tmp_path, seed, 2, "--durability", "process")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["process", "disk"])
def test_killed_many_times(durability: str, small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    killed_while_training(small_graph, tmp_path, seed, 50, "--durability", durability)


def message(client: int, sequence: int, *, settled: int = 0) -> Bulk:
    push = table_pb2.PushRowsRequest(name="added", op="add", client=client, sequence=sequence, settled=settled)
    return Bulk(push, {PUSH_ROWS: np.arange(3), PUSH_VALUES: np.full((3, 8), 1 + sequence).view(np.uint8)})


def sent(cluster: atta.Cluster, bulk: Bulk) -> bool:
    reply: Any = cluster._connections[0].call("TableService.Push", bulk)
    return bool(reply.applied)


def test_retries_are_recognised_after_a_kill(small_graph: SmallGraph, running: Running, tmp_path: Path) -> None:
    """Also clients that have been forgotten, tables that have been deleted, and a daemon that ends in order."""
    address, data = held_addresses(1)[0], small_graph.dataset(1, "random")
    settings = {"durability": "process", "tables_dir": str(tmp_path)}
    running.start(data, 0, address, {}, **settings)
    with atta.connect([address]) as cluster:
        table, gone = cluster.tables.create(ADDED), cluster.tables.create(WRITTEN)
        cluster.tables.create(MutableSpec("job", 3, lease_s=60))
        connection = cluster._connections[0]
        client, other = (
            connection.call("TableService.Register", table_pb2.RegisterRequest(name="added")).client for _ in range(2)
        )
        assert [sent(cluster, message(client, number)) for number in (0, 2, 0)] == [True, True, False]
        connection.call("TableService.Forget", table_pb2.ForgetClientRequest(clients=[other]))
        cluster.tables.delete("written")
        running.kill(address)
        daemon = running.start(data, 0, address, {}, **settings)
        applied = [sent(cluster, message(client, number)) for number in (2, 1, 0, 1, 2, 3)]
        assert applied == [False, True, False, False, False, True]
        with pytest.raises(atta.UnknownNameError, match="is not known"):
            sent(cluster, message(other, 0))
        with pytest.raises(atta.UnknownNameError, match="written"):
            gone.pull(np.arange(3))
        assert [*cluster.tables.specs()] == ["added"], "the table of a job is gone with its daemon"
        running.end(address)
        assert daemon._failure is None
        running.start(data, 0, address, {}, **settings)
        assert not sent(cluster, message(client, 3))
        assert (table.pull(np.arange(3)).values == 1 + 2 + 3 + 4).all()


def test_growing_tables_belong_to_several_daemons(small_graph: SmallGraph, running: Running, tmp_path: Path) -> None:
    addresses, data = held_addresses(2), small_graph.dataset(2, "random")
    peers = dict(enumerate(addresses))
    kept = {"durability": "process", "tables_dir": str(tmp_path / "kept"), "snapshots": str(tmp_path / "saved")}

    def again() -> None:
        for part, address in peers.items():
            if address in running._daemons:
                running.kill(address)
            running.start(data, part, address, peers, **kept)

    again()
    with atta.connect(addresses) as cluster:
        table = cluster.tables.create(MutableSpec("grows", 10, "<i8", max_rows=50))
        values = np.arange(10)
        table.push(np.arange(10), values, "add").wait()
        cluster.tables.save("one")
        table.grow(30)
        table.push(np.arange(30), np.full(30, 100), "add").wait()
        again()
        assert np.array_equal(table.pull(np.arange(30)).values, np.pad(values, (0, 20)) + 100)
        cluster.tables.load("one")
        table = cluster.tables.create(table.spec)
        table.push(np.arange(10), values, "add").wait()
        again()
        assert np.array_equal(table.pull(np.arange(10)).values, 2 * values)
        table.push(np.arange(10), values, "add").wait()
        assert np.array_equal(table.pull(np.arange(10)).values, 3 * values)


def test_the_parts_of_a_snapshot_are_one_cut(
    small_graph: SmallGraph, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was pushed after another push was answered is not in a snapshot without that one. The client pushes to the
    daemons in turn. One of them is slow to copy: without a cut it would be far ahead."""
    addresses, data = held_addresses(2), small_graph.dataset(2, "random")
    over, begun = threading.Event(), threading.Event()
    peers, snapshot, slow = dict(enumerate(addresses)), Tables.snapshot, []

    def late(tables: Tables, *args: Any, **options: Any) -> None:
        if tables.get("counts").first_row == slow[0]:
            time.sleep(0.2)
        snapshot(tables, *args, **options)

    for part, address in peers.items():
        running.start(data, part, address, peers, snapshots=str(tmp_path))
    monkeypatch.setattr(Tables, "snapshot", late)
    with atta.connect(addresses) as cluster, ThreadPoolExecutor(1) as pool:
        table = cluster.tables.create(MutableSpec("counts", 2, "<i8"))

        def push() -> None:
            while not over.is_set():
                for row in (0, 1):
                    table.push(np.array([row]), np.ones(1, np.int64), "add").wait()
                begun.set()

        pushes = pool.submit(push)
        for first_row in (0, 1):
            begun.clear()
            assert begun.wait(60) or over.set()
            slow[:] = [first_row]
            cluster.tables.save(f"slow-{first_row}")
        over.set()
        pushes.result(60)
        found = []
        for first_row in (0, 1):
            cluster.tables.load(f"slow-{first_row}")
            first, second = table.pull(np.arange(2)).values.tolist()
            assert second <= first <= second + 1
            found.append(first)
        assert 0 < found[0] < found[1], "pushes went on"
