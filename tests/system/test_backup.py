"""Tables with a backup: a machine is lost with its disk, the backup takes over, and a stale daemon acknowledges nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.local import free_addresses
from atta.errors import AttaError, ConfigError
from atta.protos.v1 import backup_pb2
from atta.wire.clusterfile import read_cluster, write_cluster
from tests.system.conftest import SmallGraph
from tests.system.durable import MAIN
from tests.waiting import eventually

ROWS = 40


class Pair:
    """A daemon with tables, and its backup."""

    def __init__(self, data: Path, folder: Path, *options: str) -> None:
        self.data, self.folder, self.options = data, folder, options
        self.primary, self.backup = free_addresses(2)
        self.file = folder / "cluster.toml"
        write_cluster(self.file, [(self.primary, self.backup)])
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.start_primary()
        self.start_backup()

    def start_primary(self) -> None:
        self._start(self.primary, "one", "--durability", "replica", "--backup", self.backup, *self.options)

    def start_backup(self) -> None:
        self._start(self.backup, "two", "--keep-backup")

    def _start(self, address: str, folder: str, *options: str) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "--data", str(self.data), "--part", "0", "--listen", address]
        command += ["--threads", "1", "--no-verify", "--buffer", "64MiB", "--cache", "0"]
        command += ["--tables-dir", str(self.folder / folder), *options]
        self.children[address] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self, address: str) -> None:
        self.children[address].kill()
        self.children.pop(address).wait()

    def connect(self) -> atta.Cluster:
        return atta.connect(self.file, deadline_s=20, wait=True)


@pytest.fixture
def pair(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Pair]:
    found = Pair(small_graph.dataset(1, "random"), tmp_path, "--log-size", "1MiB")
    try:
        yield found
    finally:
        for address in list(found.children):
            found.kill(address)


def table_of(cluster: atta.Cluster) -> Any:
    return atta.DistTensor(cluster, (ROWS, 2000), name="t")


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
    told = CliRunner().invoke(cli, ["tables", "promote", "--cluster", str(pair.file), "--part", "0"])
    assert told.exception is None
    assert f"{pair.backup}: holds the 1 tables of partition 0 now" in told.output
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


def test_a_stale_daemon_acknowledges_nothing(pair: Pair) -> None:
    """The backup is promoted while its primary serves; so also if that one is started again."""
    with pair.connect() as cluster:
        table = table_of(cluster)
        table[np.arange(3)] = np.ones((3, 2000), np.float32)
        backup = cluster._connections[0].__class__(pair.backup, 20.0)
        try:
            backup.meet(backup.describe())
            assert backup.call("BackupService.Promote", backup_pb2.PromoteRequest()).tables == 1
            with pytest.raises(atta.RestartedError, match="holds these tables itself since it was promoted"):
                table[np.arange(3)] = np.zeros((3, 2000), np.float32)
            with pytest.raises(atta.RestartedError, match="holds these tables itself"):
                table[np.arange(3)]
            with pytest.raises(ConfigError, match="holds tables of its own"):
                backup.call("BackupService.Promote", backup_pb2.PromoteRequest())
        finally:
            backup.close()
    pair.kill(pair.primary)
    pair.start_primary()
    with pair.connect() as cluster:

        def is_stale() -> bool:
            try:
                table_of(cluster)
            except AttaError as error:
                return "holds these tables itself" in str(error)
            return False

        eventually(is_stale)
    with atta.connect([pair.backup], deadline_s=20) as cluster:
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
            pair.start_backup()
            pushed.result(30)
        assert table[np.arange(3)].sum() == 12000.0
        assert cluster._connections[0].stats()["backup_lag"] == 0.0


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--durability", "replica"], "belong together"),
        (["--backup", "h:1"], "belong together"),
        (["--keep-backup", "--durability", "process"], "no --durability of its own"),
        (["--durability", "replica", "--backup", "127.0.0.1:7"], "own address"),
    ],
)
def test_options_that_contradict_each_other(options: list[str], cause: str, small_graph: SmallGraph) -> None:
    data = str(small_graph.dataset(1, "random"))
    told = CliRunner().invoke(cli, ["serve", "--data", data, "--part", "0", "--listen", "127.0.0.1:7", *options])
    assert isinstance(told.exception, ConfigError)
    assert cause in str(told.exception)
