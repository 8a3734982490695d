"""Graph folders written in other formats: reading them gives the same graph, and nothing is lost silently."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.disk.staging import StagedFile
from atta.partition.exporters import EXPORTERS, export_graph
from atta.partition.importers import import_graph
from tests.unit.partition.exports import CAN, ETYPE, Drawn, assert_same, need, plain, target

formats = pytest.mark.parametrize("fmt", sorted(EXPORTERS))


@formats
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_round_trip(fmt: str, data: st.DataObject) -> None:
    need(fmt)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = Drawn(data.draw, CAN[fmt]).write(folder / "g")
        export_graph(fmt, folder / "g", target(fmt, folder))
        assert {p.name for p in folder.iterdir()} == {"g", target(fmt, folder).name}
        import_graph(fmt, target(fmt, folder), folder / "back")
        assert_same(graph, Graph.open(folder / "back"))


@formats
def test_more_rows_than_one_chunk(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(fmt)
    monkeypatch.setattr("atta.partition.exporters.common._CHUNK_ROWS", 3)
    monkeypatch.setattr("atta.partition.exporters.table._ROWS", 4)
    plain(tmp_path / "g", weight=fmt != "ogb")
    export_graph(fmt, tmp_path / "g", target(fmt, tmp_path))
    import_graph(fmt, target(fmt, tmp_path), tmp_path / "back")
    assert_same(Graph.open(tmp_path / "g"), Graph.open(tmp_path / "back"))


def lossy(path: Path, fmt: str) -> str:
    """Write a graph that does not fit the format and return the parts that would be lost."""
    with GraphWriter(path) as out:
        tables = {"x": np.zeros((2, 2, 2), np.float32), "y": np.array([0, 1]), "feat": np.zeros((2, 1))}
        names = {"n_id": np.arange(2)} if fmt == "pyg" else {}
        out.add_nodes("node", 2, tables={**tables, **names}, splits={"train": [0], "odd": [1]})
        out.add_edges(ETYPE, np.array([0]), np.array([1]), tables={"weight": np.ones(1), "edge_weight": np.ones(1)})
        out.add_edges("node__attr__node", np.array([0]), np.array([1]), tables={"edge_weight": np.ones(1)})
        out.num_classes = 5
    return {
        "npz": r"node table 'feat' of 'node'.*edge table 'weight' of 'node__to__node'",
        "pyg": r"node table 'n_id'.*edge table 'edge_weight'",
        "dgl": r"node table 'feat'",
        "table": r"node table 'x' of 'node' \(<f4\[2, 2\]\)",
        "ogb": r"several or named types",
    }[fmt]


@formats
def test_a_lossy_export_is_refused(fmt: str, tmp_path: Path) -> None:
    need(fmt)
    words = lossy(tmp_path / "g", fmt)
    with pytest.raises(ConfigError, match=words):
        export_graph(fmt, tmp_path / "g", target(fmt, tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize(
    ("fmt", "y", "odd", "says"),
    [
        ("pyg", np.ones((2, 1), np.int64), False, "cannot hold the node table 'y' of 'node'"),
        ("ogb", np.ones((2, 3), np.int8), False, "cannot hold the node table 'y' of 'node'"),
        ("ogb", np.zeros(2, np.float32), True, r"node table 'y'.*edge table 'weight'.*split 'odd'"),
        *((fmt, None, False, "without edge types|named types") for fmt in ("npz", "pyg", "dgl", "ogb")),
    ],
)
def test_what_would_come_back_otherwise(fmt: str, y: Any, odd: bool, says: str, tmp_path: Path) -> None:
    need(fmt)
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes("node", 2, tables={} if y is None else {"y": y}, splits={"odd": [1]} if odd else {})
        if y is not None:
            out.add_edges(ETYPE, np.array([0]), np.array([1]), tables={"weight": np.ones(1)} if odd else {})
    with pytest.raises(ConfigError, match=says):
        export_graph(fmt, tmp_path / "g", target(fmt, tmp_path))


@formats
def test_what_exists_is_kept(fmt: str, tmp_path: Path) -> None:
    need(fmt)
    plain(tmp_path / "g", weight=False)
    dst = target(fmt, tmp_path)
    export_graph(fmt, tmp_path / "g", dst)
    with pytest.raises(ConfigError, match=r"exists already.*--overwrite"):
        export_graph(fmt, tmp_path / "g", dst)
    export_graph(fmt, tmp_path / "g", dst, overwrite=True)
    with pytest.raises(ConfigError, match=r"so it is not overwritten|wanted is the name of a file"):
        export_graph(fmt, tmp_path / "g", tmp_path / "g", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["g", dst.name])


def test_single_files_are_staged(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/f.partial").write_text("left by a writer that died")
    with StagedFile(tmp_path / "deep/f") as path:
        path.write_text("new")
        assert not (tmp_path / "deep/f").exists()
        with pytest.raises(ConfigError, match="another process"):
            StagedFile(tmp_path / "deep/f")
    assert (tmp_path / "deep/f").read_text() == "new"
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["f"]
    with pytest.raises(ConfigError, match="cannot be written"):
        StagedFile(tmp_path / "deep/f/g")


def test_wrong_sources_and_formats(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'npz'"):
        export_graph("nzp", tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="no such folder"):
        export_graph("npz", tmp_path / "g", tmp_path / "out")
    plain(tmp_path / "g")
    partition_graph(tmp_path / "g", tmp_path / "d", parts=2, method="random")
    with pytest.raises(ConfigError, match="d: a partitioned dataset; export the graph folder"):
        export_graph("npz", tmp_path / "d", tmp_path / "out")
    (tmp_path / "g/nodes/node/x.npy").write_bytes(b"short")
    with pytest.raises(DataError, match=r"x\.npy: truncated"):
        export_graph("npz", tmp_path / "g", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d", "g"]


def test_the_command(tmp_path: Path) -> None:
    plain(tmp_path / "g")
    arguments = ["export", "npz", str(tmp_path / "g"), str(tmp_path / "out")]
    done = CliRunner().invoke(cli, arguments)
    assert done.output == f"{tmp_path}/out: exported from {tmp_path}/g\n"
    assert isinstance(CliRunner().invoke(cli, arguments).exception, ConfigError)
    assert CliRunner().invoke(cli, [*arguments, "--overwrite", "--quiet"]).output == ""
    import_graph("npz", tmp_path / "out", tmp_path / "back")
    assert_same(Graph.open(tmp_path / "g"), Graph.open(tmp_path / "back"))
