"""Replies are changed at random on their way. The caller gets an answer or one of Atta's errors, in time.

``ATTA_FUZZ_S=3600`` fuzzes for an hour. Replies that once ended otherwise lie in ``tests/fuzz/corpus/replies``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import atta
from atta.wire import rpc
from tests.fuzz.lies import OPTIONS, Lies
from tests.fuzz.targets import run_for
from tests.system.conftest import SmallGraph

FUZZ_S = float(os.environ.get("ATTA_FUZZ_S", "3"))
OF_OPERATORS = {"BackupService", "UpdateService", "IdService"}
"""Services that clients of this cluster do not ask."""

pytestmark = pytest.mark.timeout(180 + 2 * FUZZ_S)


@pytest.fixture(scope="module")
def lies(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lies]:
    data: Path = small_graph.dataset(2, "random")
    options = (*OPTIONS, "--snapshots", str(tmp_path_factory.mktemp("snapshots")))
    with atta.local(data, threads=1, options=options, log_level="error") as cluster:
        found = Lies(cluster, data)
        yield found
        found.close()


def test_random_replies_end_as_answers_or_typed_errors(lies: Lies, seed: int) -> None:
    counts = run_for(lies, FUZZ_S, random.Random(seed))
    assert counts.tried >= 3
    assert sum(counts.ends.values()) == counts.tried


def test_replies_to_all_that_clients_and_peers_ask_are_changed(lies: Lies) -> None:
    unchanged = {name for name in rpc.METHODS if name not in lies.asked}
    rest = {name for name in unchanged if name.partition(".")[0] not in OF_OPERATORS}
    renewed = {"ParameterService.Renew", "SessionService.Renew"}  # asked only of what lasts, on a slow machine
    assert rest - renewed == {
        "ControlService.Stop", "KvService.ListTables", "TableService.Load", "TableService.Snapshots",
    }  # fmt: skip
