"""Benchmarks of one process on tiny graphs, by command line: every figure that they promise, and their pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError
from atta.partition import GraphWriter, partition_graph
from atta_bench.pieces.cache import CacheReport, Point
from atta_bench.pieces.sampling import SamplingBench, run

PNG = b"\x89PNG\r\n\x1a\n"
VERTICES, EDGES = 400, 4000


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("alone") / "graph"
    with GraphWriter(folder) as out:
        x = rng.standard_normal((VERTICES, 4)).astype(np.float32)
        out.add_nodes("node", VERTICES, tables={"x": x}, splits={"train": np.arange(VERTICES)})
        out.add_edges("node__to__node", rng.integers(0, VERTICES, EDGES), rng.integers(0, VERTICES, EDGES))
    return folder


def measured(words: list[str], folder: Path) -> dict[str, Any]:
    """The document of ``atta bench``, which must have drawn its picture as well."""
    document, picture = folder / "found.json", folder / "found.png"
    done = CliRunner().invoke(cli, ["bench", *words, "--runs", "1", "--json", str(document), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(PNG)
    found: dict[str, Any] = json.loads(document.read_text())
    return found


def test_sampling_counts_the_edges_of_full_neighbourhoods(graph: Path, tmp_path: Path) -> None:
    partition_graph(graph, tmp_path / "data", parts=1, method="random", seed=0)
    words = [
        "--dataset",
        str(tmp_path / "data"),
        "--num-neighbors",
        str(EDGES),
        "--batch-size",
        "400",
        "--batches",
        "2",
    ]
    found = measured(["sampling", *words, "--threads", "1", "--variants", "labor"], tmp_path)["results"]
    assert len(found) == 2
    for figures in found.values():
        # One hop from all vertices reaches every edge once.
        assert figures["edges_per_seed"]["median"] == pytest.approx(EDGES / VERTICES)
        assert figures["vertices_per_seed"]["median"] == pytest.approx(1)
        assert figures["edges_per_s"]["median"] > 0


def test_seeds_of_sampling_are_distinct(graph: Path, tmp_path: Path) -> None:
    partition_graph(graph, tmp_path / "data", parts=1, method="random", seed=0)
    with pytest.raises(ConfigError, match="--batch-size 401: seeds are distinct, and there are 400 vertices"):
        run(SamplingBench(str(tmp_path / "data"), batch_size=401))


@pytest.mark.slow
def test_partitioning_counts_the_edges_that_it_cuts(graph: Path, tmp_path: Path) -> None:
    words = ["partition", "--graph", str(graph), "--parts", "2", "--methods", "random,ldg"]
    document = measured(words, tmp_path)
    assert set(document["results"]) == {"random", "ldg"}
    for figures in document["results"].values():
        assert 0 < figures["edge_cut"]["median"] < 1
        assert figures["seconds"]["median"] > 0
    assert set(document["ratios"]["edge_cut"]) == {"ldg"}


def test_hit_rates_of_caches_are_drawn(tmp_path: Path) -> None:
    report = CacheReport({}, ("degree",))
    for share, rows in ((10.0, 10), (50.0, 50)):
        report.add(share, Point(rows, 4 * rows, 100, rows, 90, 5, {"degree": rows - 5}, {"degree": 0.1}))
    report.plot(str(tmp_path / "rates.png"))
    assert (tmp_path / "rates.png").read_bytes().startswith(PNG)
    assert [row["hit_rate"]["degree"] for row in report.figures()] == [0.05, 0.45]
