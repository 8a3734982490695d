"""Who starts daemons divides the memory among them, and a daemon alone takes what others leave it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np
import pytest

from atta.client import local as starting
from atta.client.local import divided_memory
from atta.daemon import graph as loading
from atta.daemon.config import DaemonConfig
from atta.daemon.graph import OpenedData
from atta.errors import ConfigError
from atta.partition import GraphWriter, partition_graph
from atta.partition.dataset import Dataset
from atta.partition.graph.needs import LEAST_BYTES

MIB, GIB = 1 << 20, 1 << 30
PARTS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("dividing"), np.random.default_rng(1)
    with GraphWriter(folder / "graph") as out:
        out.add_nodes("node", 4000, tables={"x": np.zeros((4000, 256), np.float32)})
        out.add_edges("node__to__node", rng.integers(0, 4000, 9000), rng.integers(0, 4000, 9000))
    partition_graph(folder / "graph", folder / "parts", parts=PARTS, method="random")
    return folder / "parts"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Memory of the machine, and what was claimed of it last."""
    found = {"limit": 16 * GIB, "free": 16 * GIB}

    def claim(nbytes: int) -> None:
        found["claimed"] = max(nbytes, found.get("claimed", 0))

    for module in (starting, loading):
        monkeypatch.setattr(module, "machine_room", lambda: contextlib.nullcontext((found["limit"], found["free"])))
        monkeypatch.setattr(module, "claim", claim)
    monkeypatch.setattr(starting, "available_bytes", lambda: found["free"])
    return found


def words(data: Path, *options: str, daemons: int = PARTS) -> list[str]:
    """What is added to ``options``."""
    groups = [range(PARTS * d // daemons, PARTS * (d + 1) // daemons) for d in range(daemons)]
    with divided_memory(Dataset.open(data), groups, options) as found:
        return found


def test_options_that_are_given_stay_as_they_are(data: Path, machine: dict[str, int], tmp_path: Path) -> None:
    everything = str(GIB)
    assert words(data) == ["--memory", "copy", "--cache", everything]
    assert words(data, "--threads", "2", "--memory", "map") == ["--cache", str(256 * MIB)]
    assert words(data, "--memory=map", "--cache=1MiB") == []
    assert words(data, "--cache", "0") == ["--memory", "copy"]
    assert words(data, "--cache-share", "0") == ["--memory", "copy", "--cache", "0"]
    assert words(data, daemons=2) == ["--cache", everything], "several partitions are always loaded"
    (tmp_path / "serve.toml").write_text('memory = "map"\ncache = "3MiB"\n')
    assert words(data, "--config", str(tmp_path / "serve.toml")) == []
    with pytest.raises(ConfigError, match="--cache much"):
        words(data, "--cache", "much")


def test_where_memory_is_short_a_line_says_what_was_chosen(
    data: Path, machine: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        words(data)
        assert not caplog.records
        machine |= {"limit": GIB, "free": GIB}
        assert words(data) == ["--memory", "map", "--cache", "0"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "memory: each daemon maps the files that it serves and keeps up to 0 MiB of others, because 4 of"
    )
    assert machine["claimed"] >= PARTS * LEAST_BYTES
    machine |= {"free": 300 * MIB}
    with pytest.raises(
        ConfigError, match=r"they need 512 MiB .*, and 4 of them have 197 MiB \(300 MiB of 1.0 GiB are free\)"
    ):
        words(data)


def opened(data: Path, **settings: object) -> tuple[bool, int]:
    """Whether a daemon that is started alone loads its partition, and bytes of its cache."""
    found = OpenedData.of(DaemonConfig(str(data), range(1), verify=False, **settings))  # type: ignore[arg-type]
    return found.resident, found.memory.cache


def test_a_daemon_alone_takes_what_is_left(data: Path, machine: dict[str, int]) -> None:
    assert opened(data) == (True, GIB)
    machine["free"] = machine["limit"] // 10 + LEAST_BYTES
    assert opened(data) == (False, 0)
    machine["free"] = 0  # others have been promised everything, and may never take it
    assert opened(data) == (False, 0)
    assert opened(data, cache_bytes=MIB) == (False, MIB)
    assert opened(data, memory="copy", cache_bytes=MIB) == (True, MIB), "nothing is left to decide"
    with pytest.raises(ConfigError, match="do not fit into memory"):
        opened(data, memory="copy")
