"""A snapshot is one cut: what a client pushed after another push was answered is not in it without that other push."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import daemons


def test_the_parts_of_a_snapshot_are_one_cut(
    small_graph: SmallGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client pushes to the daemons in turn. One of them is slow to copy: without a cut it would be far ahead."""
    addresses, data, over = held_addresses(2), small_graph.dataset(2, "random"), threading.Event()
    begun = threading.Event()
    peers, snapshot, slow = dict(enumerate(addresses)), Tables.snapshot, []
    failed: list[BaseException] = []

    def late(tables: Tables, *args: Any, **options: Any) -> None:
        if tables.get("counts").first_row == slow[0]:
            time.sleep(0.2)
        snapshot(tables, *args, **options)

    with daemons() as running:
        for part, address in peers.items():
            running.start(data, part, address, peers, snapshots=str(tmp_path))
        with atta.connect(addresses) as cluster:
            table = cluster.tables.create(MutableSpec("counts", 2, "<i8"))

            def push() -> None:
                try:
                    while not over.is_set():
                        for row in (0, 1):
                            table.push(np.array([row]), np.ones(1, np.int64), "add").wait()
                        begun.set()
                except BaseException as error:
                    failed.append(error)

            monkeypatch.setattr(Tables, "snapshot", late)
            pusher = threading.Thread(target=push)
            pusher.start()
            for first_row in (0, 1):
                begun.clear()
                assert begun.wait(60)
                slow[:] = [first_row]
                cluster.tables.save(f"slow-{first_row}")
            over.set()
            pusher.join(60)
            assert not failed, failed
            found = []
            for first_row in (0, 1):
                cluster.tables.load(f"slow-{first_row}")
                first, second = table.pull(np.arange(2)).values.tolist()
                assert second <= first <= second + 1
                found.append(first)
            assert 0 < found[0] < found[1], "pushes went on"
