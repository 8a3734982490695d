"""The formulas of ``atta plan`` against measurements (bench/results) and against datasets made here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError, UnknownNameError
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.cutting.plan import METHODS, GraphSize, estimate

RESULTS = Path(__file__).parents[3] / "bench" / "results"


@pytest.mark.parametrize("name", ["partition-245k", "partition-2m"])
def test_formulas_fit_the_recorded_measurements(name: str) -> None:
    document = json.loads((RESULTS / f"{name}.json").read_text())
    config, compared = document["config"], 0
    size = GraphSize(config["nodes"], config["edges"])
    for method in METHODS:
        if (figures := document["results"].get(method)) is None:
            continue
        found = estimate(size, method, config["parts"])
        assert 0.75 < found.memory / 2**30 / figures["peak_gib"]["median"] < 1.3, method
        assert 0.5 < found.seconds / figures["seconds"]["median"] < 2.1, method
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize("parts", [1, 3])
def test_bytes_on_disk(tmp_path: Path, parts: int) -> None:
    rng, n, m = np.random.default_rng(0), 20_000, 200_000
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", n, tables={"x": rng.random((n, 5), dtype=np.float32)}, splits={"train": np.arange(100)})
        out.add_edges("node__to__node", rng.integers(0, n, m), rng.integers(0, n, m), tables={"weight": rng.random(m)})
    partition_graph(tmp_path / "g", tmp_path / "d", parts=parts, method="random")
    dataset = Dataset.open(tmp_path / "d")
    size = GraphSize(n, m, 20, 8, symmetric=False, halo_ratio=dataset.quality["halo_ratio"])
    graph_bytes = sum(record.size for record in Graph.open(tmp_path / "g").files.values())
    assert abs(size.folder_bytes / graph_bytes - 1) < 0.02
    assert abs(size.dataset_bytes / sum(record.size for record in dataset.files.values()) - 1) < 0.02


def test_wide_ids_count_twice() -> None:
    small, large = GraphSize(2**31 - 1, 10**9), GraphSize(2**31 + 1, 10**9)
    assert large.folder_bytes == 2 * small.folder_bytes
    assert estimate(large, "ldg", 8).memory > estimate(small, "ldg", 8).memory


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(UnknownNameError, match="metis"):
        estimate(GraphSize(1, 1), "metiss", 2)
    with pytest.raises(ConfigError, match="parts 0"):
        estimate(GraphSize(1, 1), "ldg", 0)
    with pytest.raises(ConfigError, match="negative"):
        GraphSize(-1, 1)
    for ratio in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match=f"the HALO ratio is {ratio}, must be finite"):
            GraphSize(1, 1, halo_ratio=ratio)


def test_command_line(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    arguments = ["plan", "--nodes", "111000000", "--edges", "3200000000", "--row-bytes", "512", "--parts", "16"]
    done = CliRunner().invoke(cli, [*arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    by_method = {e["method"]: e for e in document["methods"]}
    assert by_method["ldg"]["memory"] < by_method["metis:tame=no"]["memory"] / 3
    assert document["dataset_bytes"] > 3_200_000_000 * 12  # edge ids need 8 bytes here
    assert "ldg" in done.output
    assert CliRunner().invoke(cli, ["plan", "--nodes", "-1", "--edges", "5"]).exit_code != 0
