"""``atta plan --strategy auto`` on a small dataset with a short probe, and the input that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from atta.cli.main import cli
from atta.partition.cutting.run import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import GraphWriter
from atta.train.planning.probe import piece
from atta.train.planning.sizes import Expansion, PlannedModel


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planning")
    generate("sbm", folder / "graph", GenerateOptions(nodes=600, edges=4000, features=8, classes=3))
    partition_graph(folder / "graph", folder / "data", parts=2, method="random")
    return folder / "data"


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["plan", *map(str, arguments)])


@pytest.mark.usefixtures("preloaded_trainers")
def test_it_ranks_and_explains(data: Path, tmp_path: Path) -> None:
    common = ("--strategy", "auto", "--data", data, "--servers", 2, "--trainers-per-server", 2, "--hidden", 8)
    report = tmp_path / "plan.json"
    done = plan(*common, "--link", "100mbit", "--probe", "50ms", "--co-batches", "2", "--json", report)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(report.read_text())
    assert {f["kind"] for f in found["strategies"]} == {
        "mini-batch", "exchange", "sancus", "pipegcn", "digest", "sat", "preloading", "expansion-aware", "cooperative",
    }  # fmt: skip
    assert found["strategies"][0]["name"] == found["chosen"]
    assert found["rates"]["external"] == pytest.approx(100e6 / 8 / 32)
    assert found["rates"]["vertices"] or found["rates"]["edges"]
    assert found["rates"]["internal"] > 0
    assert found["rates"]["parameters"] == 2 * 8 * 8 + 8 + 2 * 8 * 8 + 8 + 2 * 8 * 3 + 3  # three SAGE layers
    assert found["sizes"]["vertices"] == 600
    assert found["sizes"]["exchanged"]["cut"] == pytest.approx(Dataset.open(data).quality["edge_cut"], abs=0.01)
    doubts = [bool(f["doubt"]) for f in found["strategies"] if f["fits"]]
    assert doubts == sorted(doubts)
    assert 0 < sum(doubts) < len(doubts)
    rows = {f["kind"]: f["row_bytes"] for f in found["strategies"]}
    assert rows["pipegcn"] == rows["exchange"] == found["sizes"]["exchanged"]["external"] * 2 * 2 * 8 * 4
    assert rows["sancus"] == 0.75 * rows["exchange"]
    assert rows["preloading"] == 0
    assert [s["max_hop"] for s in found["sizes"]["sampled"]] == [1, 1, 2, 3]
    assert found["command"] in done.output
    assert "per epoch" in done.output
    assert "--trainers 4" in found["command"]
    batch = found["sizes"]["mini_batch"]
    assert batch["summed"] <= batch["remote"]
    assert "mini-batches: --aggregate auto has owners sum the last hop's rows" in done.output


def test_a_deep_model_on_one_server(data: Path, tmp_path: Path) -> None:
    done = plan(
        *("--strategy", "auto", "--data", data, "--model", "resgcn+", "--layers", 6, "--hidden", 8),
        *("--probe", "20ms", "--co-batches", "2,9999", "--eas", "1,3", "--eas", "9,5"),
        *("--json", tmp_path / "plan.json"),
    )
    assert done.exit_code == 0, done.output
    assert "--eas 9,5: left out, it has more hops than the model has layers (6)" in done.output
    assert "--co-batches 9999: left out, no server has as many vertices to train on" in done.output
    found = json.loads((tmp_path / "plan.json").read_text())
    assert {f["kind"] for f in found["strategies"]} == {"mini-batch", "preloading", "expansion-aware", "cooperative"}
    assert found["rates"]["internal"] is None  # one trainer has no peers
    assert [(s["max_hop"], s["fanout"]) for s in found["sizes"]["sampled"]] == [(1, 3)]


AUTO = "--strategy auto --data {data} "
REFUSED = {
    "--strategy auto": "needs --data",
    AUTO + "--servers 2": "needs --link",
    AUTO + "--servers 3 --link 1gbit": "2 partitions for 3 servers",
    AUTO + "--probe 0": "--probe",
    AUTO + "--num-neighbors 5,5": "one per layer",
    AUTO + "--eas 1": "MAX_HOP,FANOUT",
    AUTO + "--eas 1,-2": "fanout",
    AUTO + "--aggregate on --model gat": "--aggregate on: not with --model gat",
    AUTO + "--nodes 9 --parts 4": "--nodes, --parts: goes without --strategy",
    "--data {data}": "--data: goes with --strategy auto",
    "--nodes 9 --edges 9 --servers 1 --link 1gbit": "--servers, --link: goes with --strategy auto",
    "--nodes 5": "Missing option '--edges'",
    "": "Missing option '--nodes'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(data: Path, words: str) -> None:
    done = plan(*words.format(data=data).split())
    assert done.exit_code != 0
    assert REFUSED[words] in done.output + str(done.exception)


def test_a_piece_has_the_degrees_of_the_graph_and_partitioning_is_planned(data: Path) -> None:
    from atta.partition.dataset import Dataset
    from atta.train.planning.count import open_servers

    whole = open_servers(Dataset.open(data), 2)
    some = piece(whole, PlannedModel("sage", 2, 8, inputs=8))
    assert len(some) == 600
    assert some.edges.shape[1] == len(whole.graph.indices)
    assert abs(piece(whole, PlannedModel("sage", 2, 8, 8), every=2).edges.shape[1] / some.edges.shape[1] - 0.5) < 0.1
    assert Expansion(1, 15) == (1, 15)
    done = plan("--nodes", 1000, "--edges", 10_000)
    assert done.exit_code == 0
    assert "Partitioning, estimated" in done.output


def test_labels_that_are_no_classes_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """A model with an output for each vertex would take gigabytes."""
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 3000, tables={"x": np.ones((3000, 4), np.float32), "y": np.arange(3000)})
        out.add_edges("node__to__node", np.arange(2999), np.arange(1, 3000))
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=1)
    done = plan("--strategy", "auto", "--data", tmp_path / "data", "--link", "100mbit")
    assert "table y has 3000 classes for 3000 vertices, so they are no classes" in str(done.exception)
