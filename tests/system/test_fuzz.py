"""Every method of a daemon gets messages that are drawn or changed at random, and replies are changed on their way: each
answer is a reply or a typed error, and comes soon.

``ATTA_FUZZ_S=3600`` fuzzes for an hour instead of a few seconds. A message that fails is printed; its bytes belong in
``tests/fuzz/corpus/methods``, whose messages are tried first. ``python -m tests.fuzz`` writes it there. Replies that
once ended otherwise lie in ``tests/fuzz/corpus/replies``.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import atta
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from tests.fuzz import lies, methods
from tests.fuzz.targets import run_for
from tests.system.conftest import SmallGraph

FUZZ_S = float(os.environ.get("ATTA_FUZZ_S", "2"))
OF_OPERATORS = {"BackupService", "UpdateService", "IdService", "QueryService"}
"""Services that clients of a cluster without a model do not ask."""

pytestmark = pytest.mark.timeout(180 + 2 * FUZZ_S)


def started(data: Path, *options: str) -> atta.LocalCluster:
    return atta.local(data, threads=1, options=options, log_level="error")


def test_random_messages_end_as_replies_or_typed_errors(small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    """Two daemons with little room, which have links to each other."""
    folders = ("--snapshots", str(tmp_path / "snapshots"), "--tables-dir", str(tmp_path / "tables"))
    with started(small_graph.dataset(2, "random"), *methods.OPTIONS, *folders) as cluster:
        asked = methods.Methods(cluster)
        counts = run_for(asked, FUZZ_S, random.Random(seed))
        asked.close()
        assert counts.tried > 50
        assert {"ControlService.Describe", "KvService.ListTables"} & asked.replied
        assert [connection.describe().pid for connection in cluster._connections] == cluster.pids
        assert cluster._connections[0].call("ControlService.Sessions", control_pb2.SessionsRequest()).uptime_s > 0


def test_a_backup_takes_drawn_messages_as_well(small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    def keeping(tables: str) -> Any:
        return started(small_graph.dataset(1, "random"), "--keep-backup", "--tables-dir", tables)

    backups = methods.Backups(keeping, tmp_path)
    for name in ("Follow", "Append"):  # what a primary sends is accepted, so changes to it reach the code behind
        for message in backups._known[f"BackupService.{name}"][:3]:
            assert backups.again(f"BackupService.{name}", message.SerializeToString()) == "OK"
    counts = run_for(backups, FUZZ_S, random.Random(seed))
    backups.close()
    assert counts.tried > 20
    assert counts.ends.keys() > {"INVALID_ARGUMENT"}
    assert backups.replied >= {"BackupService.Follow", "BackupService.Append"}


def test_random_replies_end_as_answers_or_typed_errors(small_graph: SmallGraph, tmp_path: Path, seed: int) -> None:
    """Replies to all that clients and peers ask are changed."""
    data = small_graph.dataset(2, "random")
    with started(data, *lies.OPTIONS, "--snapshots", str(tmp_path)) as cluster:
        told = lies.Lies(cluster, data)
        counts = run_for(told, FUZZ_S, random.Random(seed))
        told.close()
    assert counts.tried >= 3
    assert sum(counts.ends.values()) == counts.tried
    unchanged = {name for name in rpc.METHODS if name not in told.asked}
    rest = {name for name in unchanged if name.partition(".")[0] not in OF_OPERATORS}
    renewed = {"ParameterService.Renew", "SessionService.Renew"}  # asked only of what lasts, on a slow machine
    others = {"ControlService.Stop", "KvService.ListTables", "TableService.Load", "TableService.Snapshots"}
    assert rest - renewed == others
