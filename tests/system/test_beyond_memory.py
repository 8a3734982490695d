"""Daemons with ``--memory SIZE``: batches from the disk are those from memory, and what they take stays bounded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.daemon import graph
from atta.daemon.daemon import Daemon
from atta.errors import ConfigError, DataError
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph import GraphWriter
from atta.partition.graph.needs import EDGE_BLOCK, DiskPlan, plan_disk
from tests.addresses import held_addresses
from tests.system.running import Running
from tests.system.test_batches_stay import digests_of, expected_digests, write_graphs

MIB = 1 << 20


def everything_on_disk(dataset: Dataset, part: int, bound: int, **_: Any) -> DiskPlan:
    """A few rows and blocks of each file stay in memory."""
    return DiskPlan({name: 5 for name in dataset.files if name.startswith(f"part-{part:04d}/")}, 4096)


def served(running: Running, data: Path, parts: int, **settings: Any) -> tuple[list[str], list[Daemon]]:
    addresses = held_addresses(parts)
    peers = dict(enumerate(addresses))
    return addresses, [running.start(data, part, peers[part], peers, memory="1GiB", **settings) for part in peers]


def summed(daemons: list[Daemon]) -> Mapping[str, float]:
    every = [daemon.graph.stats() for daemon in daemons]
    return {name: sum(stats[name] for stats in every) for name in every[0] if name.startswith("disk_")}


@pytest.mark.parametrize("settings", [{}, {"links": False, "cache_rank": "recent", "window": 2}])
def test_batches_are_those_from_memory(
    tmp_path: Path, running: Running, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Rows and in-edges, of all loaders, at home and asked by peers."""
    monkeypatch.setattr(graph, "plan_disk", everything_on_disk)
    write_graphs(tmp_path)
    plain, of_plain = served(running, tmp_path / "plain-3", 3, **settings)
    typed, of_typed = served(running, tmp_path / "typed-2", 2, **settings)
    with ExitStack() as stack:
        clusters = [stack.enter_context(atta.connect(addresses)) for addresses in (plain, typed)]
        found = digests_of(*clusters)
    assert [name for (name, digest), known in zip(found.items(), expected_digests(), strict=True) if digest != known] == []
    for daemons in (of_plain, of_typed):
        stats = summed(daemons)
        assert stats["disk_reads"] > 0 and stats["disk_read_bytes"] >= 4096 * stats["disk_reads"]
        assert 0 < stats["disk_rows_hit"] < stats["disk_rows_asked"]
