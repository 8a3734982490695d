"""Every method of a daemon gets messages that are drawn or changed at random: each answer is a reply or a typed error,
and comes soon.

``ATTA_FUZZ_S=3600`` fuzzes for an hour instead of a few seconds. A message that fails is printed; its bytes belong in
``tests/fuzz/corpus/methods``, whose messages are tried first. ``python -m tests.fuzz`` writes it there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.protos.v1 import control_pb2
from tests.fuzz.methods import OPTIONS, Backups, Methods
from tests.fuzz.targets import run_for
from tests.system.conftest import SmallGraph

FUZZ_S = float(os.environ.get("ATTA_FUZZ_S", "3"))

pytestmark = pytest.mark.timeout(180 + 2 * FUZZ_S)


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    """Two daemons with little room, which have links to each other."""
    folders = (
        "--snapshots",
        str(tmp_path_factory.mktemp("snapshots")),
        "--tables-dir",
        str(tmp_path_factory.mktemp("t")),
    )
    data = small_graph.dataset(2, "random")
    with atta.local(data, threads=1, options=(*OPTIONS, *folders), log_level="error") as cluster:
        yield cluster


def test_random_messages_end_as_replies_or_typed_errors(cluster: atta.LocalCluster, seed: int) -> None:
    methods = Methods(cluster)
    counts = run_for(methods, FUZZ_S, random.Random(seed))
    methods.close()
    assert counts.tried > 50
    assert {"ControlService.Describe", "KvService.ListTables"} & methods.replied
    assert [connection.describe().pid for connection in cluster._connections] == cluster.pids
    assert cluster._connections[0].call("ControlService.Sessions", control_pb2.SessionsRequest()).uptime_s > 0


def test_a_backup_takes_drawn_messages_as_well(small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    data = small_graph.dataset(1, "random")

    def keeping(tables: str) -> Any:
        options = ("--keep-backup", "--tables-dir", tables)
        return atta.local(data, threads=1, options=options, log_level="error")

    backups = Backups(keeping, tmp_path)
    for name in ("Follow", "Append"):  # what a primary sends is accepted, so changes to it reach the code behind
        for message in backups._known[f"BackupService.{name}"][:3]:
            assert backups.again(f"BackupService.{name}", message.SerializeToString()) == "OK"
    counts = run_for(backups, FUZZ_S, random.Random(seed))
    backups.close()
    assert counts.tried > 20
    assert counts.ends.keys() > {"INVALID_ARGUMENT"}
    assert backups.replied >= {"BackupService.Follow", "BackupService.Append"}
