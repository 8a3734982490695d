"""Tables with a backup: a machine is lost with its disk, the backup takes over, and a stale daemon acknowledges nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.control import Connection
from atta.errors import AttaError, ConfigError
from atta.kvstore.spec import MutableSpec, Normal
from atta.protos.v1 import backup_pb2
from atta.wire.clusterfile import read_cluster, write_cluster
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph, ran
from tests.waiting import eventually

ROWS = 40


class Pair:
    def __init__(self, data: Path, folder: Path, *options: str) -> None:
        self.data, self.folder, self.options = data, folder, options
        self.primary, self.backup = held_addresses(2)
        self.file = folder / "cluster.toml"
        write_cluster(self.file, [(self.primary, self.backup)])
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.start_primary()
        self.start_backup()

    def start_primary(self) -> None:
        self._start(self.primary, "one", "--durability", "replica", "--backup", self.backup, *self.options)

    def start_backup(self) -> None:
        self._start(self.backup, "two", "--keep-backup")

    def _start(self, address: str, folder: str, *options: str, part: int = 0) -> None:
        words = f"serve --data {self.data} --part {part} --listen {address} --tables-dir {self.folder / folder} "
        words += "--threads 1 --no-verify --buffer 64MiB --cache 0"
        command = [sys.executable, "-m", "atta.cli.main", *words.split()]
        self.children[address] = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)

    def kill(self, address: str) -> None:
        self.children[address].kill()
        self.children.pop(address).wait()

    def close(self) -> None:
        for address in list(self.children):
            self.kill(address)

    def promote(self) -> str:
        return ran(f"tables promote --cluster {self.file} --part 0")

    def connect(self) -> atta.Cluster:
        return atta.connect(self.file, deadline_s=20, wait=True)


@pytest.fixture
def pair(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(small_graph.dataset(1, "random"), tmp_path, "--log-size", "1MiB")
    yield found
    found.close()


def table_of(cluster: atta.Cluster) -> Any:
    return atta.DistTensor(cluster, (ROWS, 2000), name="t")


def test_rows_that_nobody_has_written_are_those_of_their_vertices(small_graph: SmallGraph, pair: Pair) -> None:
    """The backup makes them anew from the log, and again after it was killed."""
    ids = small_graph.ids

    def rows() -> bytes:
        with pair.connect() as cluster:
            return rows_of_vertices(cluster, len(ids))[ids].tobytes()

    wanted = rows()
    pair.kill(pair.primary)
    pair.promote()
    assert rows() == wanted
    pair.kill(pair.backup)
    pair.start_backup()
    assert rows() == wanted
    with atta.local(small_graph.dataset(2, "random"), threads=1) as other:
        assert rows_of_vertices(other, len(ids))[ids].tobytes() == wanted


def rows_of_vertices(cluster: atta.Cluster, count: int) -> Any:
    return atta.DistTensor(cluster, (count, 3), name="first", policy="nodes:node", init=Normal(0, 1, seed=2))


def test_a_machine_is_lost_with_its_disk(pair: Pair) -> None:
    """The log is long enough for checkpoints, and the backup is away for a while."""
    with pair.connect() as cluster:
        table, wanted = table_of(cluster), np.zeros((ROWS, 2000), np.float32)
        for number in range(30):
            rows = np.arange(number % 5, ROWS, 5)
            wanted[rows] = number
            table[rows] = wanted[rows]
            if number == 10:
                pair.kill(pair.backup)
                pair.start_backup()
        stats = cluster._connections[0].stats()
        assert stats["backup_lag"] == 0.0
        eventually(lambda: any((pair.folder / "two").rglob("checkpoint-*")))  # it is written beside the pushes
        pair.kill(pair.primary)
        shutil.rmtree(pair.folder / "one")
    assert f"{pair.backup}: holds the 1 tables of partition 0 now" in pair.promote()
    assert read_cluster(pair.file) == {0: (pair.backup, pair.primary)}
    with pair.connect() as cluster:
        table = table_of(cluster)
        assert table[np.arange(ROWS)].tobytes() == wanted.tobytes()
        table[np.array([3])] = np.ones((1, 2000), np.float32)
        wanted[3] = 1
    pair.kill(pair.backup)
    pair.start_backup()
    with pair.connect() as cluster:
        assert table_of(cluster)[np.arange(ROWS)].tobytes() == wanted.tobytes()


def test_a_repeated_push_is_not_acknowledged_before_the_backup_has_it(pair: Pair) -> None:
    """The primary wrote the push and died, and knows it again when it is repeated. The backup, which may take over, does
    not have it yet."""
    with pair.connect() as cluster:
        table = table_of(cluster)
        table[np.array([1])] = np.ones((1, 2000), np.float32)
        pair.kill(pair.backup)
        written = cluster._connections[0].stats()["table_log_records"]
        with ThreadPoolExecutor(1) as pool:
            pushed = pool.submit(table.__setitem__, np.array([2]), np.full((1, 2000), 2, np.float32))
            eventually(lambda: cluster._connections[0].stats()["table_log_records"] > written)
            pair.kill(pair.primary)
            pair.start_primary()
            with atta.connect([pair.primary], deadline_s=20, wait=True) as other:
                eventually(lambda: other._connections[0].stats()["backup_away"] == 1.0)
                time.sleep(2.0)  # the push is repeated meanwhile
            assert not pushed.done()
            pair.start_backup()
            pushed.result(60)
        assert (table[np.array([2])] == 2).all()


def test_a_stale_daemon_acknowledges_nothing(pair: Pair) -> None:
    """The backup is promoted while its primary serves; so also if that one is started again."""
    with (
        atta.connect([pair.backup], deadline_s=20, wait=True) as cluster,  # tables must not begin anew there
        pytest.raises(atta.RestartedError, match="keeps a copy of the tables that another daemon holds"),
    ):
        table_of(cluster)
    with pair.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(3)] = np.ones((3, 2000), np.float32)
        backup = Connection(pair.backup, 20.0)
        backup.meet(backup.describe())
        assert backup.call("BackupService.Promote", backup_pb2.PromoteRequest()).tables == 1
        with pytest.raises(atta.RestartedError, match="holds these tables itself since it was promoted"):
            table[np.arange(3)] = np.zeros((3, 2000), np.float32)
        with pytest.raises(atta.RestartedError, match="holds these tables itself"):
            table[np.arange(3)]
        with pytest.raises(ConfigError, match="holds tables of its own"):
            backup.call("BackupService.Promote", backup_pb2.PromoteRequest())
        backup.close()
    pair.kill(pair.primary)
    pair.start_primary()
    with atta.connect([pair.primary], deadline_s=20, wait=True) as cluster:

        def is_stale() -> bool:
            try:
                table_of(cluster)
            except AttaError as error:
                return "holds these tables itself" in str(error)
            return False

        eventually(is_stale)
    with pair.connect() as cluster:  # the cluster file still names the former primary first
        assert table_of(cluster)[np.arange(3)].sum() == 6000.0


def test_pushes_wait_for_the_backup(pair: Pair) -> None:
    with pair.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(3)] = np.ones((3, 2000), np.float32)
        pair.kill(pair.backup)
        twos = np.full((3, 2000), 2.0, np.float32)
        with ThreadPoolExecutor(1) as others:
            pushed = others.submit(table.write, np.arange(3), twos)
            eventually(lambda: cluster._connections[0].stats()["backup_away"] == 1.0)
            assert table[np.arange(3)].sum() == 6000.0  # it is not made before the backup has it
            assert not pushed.done()
            about = next((pair.folder / "two").rglob("store.json"))
            content = about.read_bytes()
            about.write_bytes(b"damaged")
            pair.start_backup()
            atta.connect([pair.backup], deadline_s=20, wait=True).close()
            time.sleep(2.5)  # it refuses the log by now, which must not end its primary
            assert cluster._connections[0].stats()["backup_away"] == 1.0
            pair.kill(pair.backup)
            with ThreadPoolExecutor(4) as many:
                names = [f"new-{number}" for number in range(4)]  # more than the daemon has threads
                created = [many.submit(cluster.tables.create, MutableSpec(name, 4)) for name in names]
                time.sleep(0.5)
                assert table[np.arange(ROWS)].sum() == 6000.0  # other requests are served meanwhile
                assert not any(one.done() for one in created)
                about.write_bytes(content)
                pair.start_backup()
                assert [one.result(30).spec.name for one in created] == names
            pushed.result(30)
        assert table[np.arange(3)].sum() == 12000.0
        assert cluster._connections[0].stats()["backup_lag"] == 0.0


class Three(Pair):
    """Partition 0 has a primary and a backup, which takes over after a second; partition 1 has a daemon that votes."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.witness = held_addresses(1)[0]
        super().__init__(data, folder)

    def start_primary(self) -> None:
        write_cluster(self.file, [(self.primary, self.backup), self.witness])
        super().start_primary()
        self.start_witness()

    def start_backup(self) -> None:
        options = ["--keep-backup", "--promote-after", "1s", "--peers", str(self.file)]
        self._start(self.backup, "two", *options)

    def start_witness(self) -> None:
        self._start(self.witness, "three", "--peers", str(self.file), part=1)

    def holders(self) -> list[str]:
        found = []
        for address in (self.primary, self.backup):
            connection = Connection(address, 2.0)
            with suppress(AttaError):
                found += [address] * (connection.describe(timeout=2.0).tables_epoch > 0)
            connection.close()
        return found


@pytest.fixture
def three(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Three]:
    found = Three(small_graph.dataset(2, "random"), tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.slow)])
def test_a_majority_lets_the_backup_take_over(three: Three, how: str) -> None:
    with three.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(ROWS)] = np.full((ROWS, 2000), 7, np.float32)
    assert eventually(lambda: three.holders() == [three.primary])
    if how == "killed":
        three.kill(three.primary)
    else:
        three.children[three.primary].send_signal(signal.SIGSTOP)
    assert eventually(lambda: three.holders() == [three.backup], 30)
    with three.connect() as cluster:  # the cluster file still names the primary first
        table = table_of(cluster)
        assert table[np.arange(ROWS)].sum() == 7 * 2000 * ROWS
        table[np.arange(3)] = np.zeros((3, 2000), np.float32)
    if how == "stopped":
        three.children[three.primary].send_signal(signal.SIGCONT)
    else:
        super(Three, three).start_primary()
    with three.connect() as cluster:
        assert table_of(cluster)[np.arange(ROWS)].sum() == 7 * 2000 * (ROWS - 3)
    if how == "killed":  # it follows the backup at once, and learns that it is stale
        assert eventually(lambda: three.holders() == [three.backup], 30)


def test_without_a_majority_nobody_takes_over(three: Three) -> None:
    with three.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(3)] = np.ones((3, 2000), np.float32)
    three.kill(three.witness)
    three.kill(three.primary)
    time.sleep(3)  # three looks, of which the first finds the primary gone
    assert three.holders() == []
    three.start_witness()
    assert eventually(lambda: three.holders() == [three.backup], 30)


def test_no_votes_while_the_primary_answers(three: Three) -> None:
    with three.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(3)] = np.ones((3, 2000), np.float32)
        voter = cluster._connections[1]
        request = backup_pb2.VoteRequest(part=0, candidate=three.backup)
        request.store.CopyFrom(backup_pb2.StoreName(id=b"s" * 16, epoch=1))
        assert voter.call("BackupService.Vote", request).refused == "the primary answers"
        three.kill(three.primary)
        assert voter.call("BackupService.Vote", request).refused == ""
        request.candidate = "other:1"
        assert voter.call("BackupService.Vote", request).refused == f"voted for {three.backup} already"
        for broken in ({"candidate": ""}, {"candidate": "a" * 301}):
            with pytest.raises(ConfigError, match="a vote is about"):
                voter.call("BackupService.Vote", backup_pb2.VoteRequest(store=request.store, **broken))
