"""The predictions of `atta inspect` for batches equal the daemons' counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.errors import ConfigError
from atta.partition import Dataset, GraphWriter, partition_graph
from atta.samplers.local.predict import predict


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two types, 6,000 vertices in communities, few of them with labels."""
    rng, n, m = np.random.default_rng(3), 5000, 40_000
    folder = tmp_path_factory.mktemp("predict")
    with GraphWriter(folder / "graph") as out:
        tables = {"x": rng.random((n, 8), dtype=np.float32)}
        out.add_nodes("item", n, tables=tables, splits={"train": rng.permutation(n)[:250]})
        out.add_nodes("tag", 1000, tables={"x": rng.random((1000, 2), dtype=np.float32)})
        src = rng.integers(0, n, m)
        dst = np.where(rng.random(m) < 0.8, src // 500 * 500 + rng.integers(0, 500, m), rng.integers(0, n, m))
        out.add_edges("item__near__item", np.concatenate([src, dst]), np.concatenate([dst, src]))
        out.add_edges("tag__on__item", rng.integers(0, 1000, 9000), rng.integers(0, n, 9000))
    return folder / "graph"


@pytest.mark.parametrize("method", ["ldg", "random"])
def test_prediction_is_within_a_tenth_of_a_real_run(graph: Path, tmp_path: Path, method: str) -> None:
    partition_graph(graph, tmp_path / "d", parts=2, method=method)
    dataset = Dataset.open(tmp_path / "d")
    predicted = predict(dataset, [8, 4], batch_size=40, batches=60)
    with atta.local(tmp_path / "d", threads=1, options=("--cache-share", "0", "--no-share-pulls")) as cluster:
        for prediction in predicted:
            rows, data, frontier, sizes = [], [], [], []
            loader = atta.NeighborLoader(
                cluster, [8, 4], ("item", "train"), batch_size=40, shuffle=True, rank=prediction.part, world_size=2,
                drop_last=True,
            )  # fmt: skip
            for _ in range(20):
                for batch in loader:
                    sizes.append(batch.num_nodes)
                    rows.append(batch.stats["remote_rows"])
                    frontier.append(batch.stats["remote_frontier"])
                    data.append(sum(
                        table["x"][~np.isin(batch.n_id(t), dataset.ids(t)[slice(*dataset.book.range(t, prediction.part))])].nbytes
                        for t, table in batch.tables.items()
                    ))  # fmt: skip
            for counted, (mean, error) in [
                (sizes, prediction.rows),
                (rows, prediction.remote_rows),
                (data, prediction.remote_bytes),
                (frontier, prediction.remote_frontier),
            ]:
                assert abs(mean / np.mean(counted) - 1) < 0.1
                assert 0 <= error < 0.1 * mean


def test_prediction_without_remote_rows_and_wrong_arguments(graph: Path, tmp_path: Path) -> None:
    partition_graph(graph, tmp_path / "d", parts=1, method="random")
    dataset = Dataset.open(tmp_path / "d")
    (only,) = predict(dataset, [5, 5], batch_size=10, batches=2)
    assert only.remote_rows == (0.0, 0.0)
    assert only.halo_per_hop == (0.0, 0.0)
    for wrong in ({"batch_size": 0}, {"batches": 0}):
        with pytest.raises(ConfigError):
            predict(dataset, [5], **wrong)
    with pytest.raises(ConfigError):
        predict(dataset, [-2])


def test_command_line(graph: Path, tmp_path: Path) -> None:
    runner, out, picture = CliRunner(), tmp_path / "c.json", tmp_path / "c.png"
    pytest.importorskip("matplotlib")
    arguments = ["partition", str(graph), str(tmp_path / "d"), "--parts", "3", "--compare", "ldg,block,random"]
    arguments += ["--num-neighbors", "5,5", "--json", str(out), "--plot", str(picture)]
    done = runner.invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = {e["method"]: e for e in json.loads(out.read_text())["methods"]}
    assert found["ldg"]["edge_cut"] < found["random"]["edge_cut"]
    assert found["ldg"]["remote_rows"] < found["random"]["remote_rows"]
    assert picture.stat().st_size > 1000
    assert "HALO" in done.output
    done = runner.invoke(cli, ["inspect", str(tmp_path / "d" / "ldg"), "--num-neighbors", "5,5", "--json", str(out)])
    assert done.exit_code == 0
    assert "Predicted" in done.output
    assert len(json.loads(out.read_text())["prediction"]["parts"]) == 3
    for wrong, words in [
        (["inspect", str(graph), "--num-neighbors", "5"], "partitioned dataset"),
        (["partition", str(graph), str(tmp_path / "e"), "--parts", "2", "--json", "-"], "--compare"),
        (["partition", str(graph), str(tmp_path / "e"), "--parts", "2", "--option", "x"], "KEY=VALUE"),
    ]:
        done = runner.invoke(cli, wrong)
        assert done.exit_code != 0
        assert words in done.output or words in str(done.exception)
