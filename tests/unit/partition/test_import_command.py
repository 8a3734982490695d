"""``atta import`` and ``atta export`` as commands: their output, their requirements, and how they end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from atta.cli.graphs import data
from atta.cli.main import cli
from atta.client.local import local
from atta.errors import ConfigError, DataError
from atta.partition import Graph, GraphWriter, partition_graph
from atta.partition.exporters import EXPORTERS, PARTITIONED, export_graph
from atta.partition.importers import IMPORTERS
from tests.unit.partition import carried as c
from tests.unit.partition.oracles import refused

COMMAND = next(command for command in data.COMMANDS if command.name == "import")


def atta(*arguments: object) -> str:
    result = CliRunner().invoke(COMMAND, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_help_lists_the_formats() -> None:
    shown = " ".join(atta("--help").split())
    assert ", ".join(sorted(IMPORTERS)) in shown
    assert "--drop NAME" in shown


def test_what_is_left_out_is_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"features", "edge ids", "other node tables"})
    assert atta("npz", source, tmp_path / "g", "--drop", "e_id", "--drop", "age.npy").endswith(
        f"imported from {source}\n"
    )
    assert Graph.open(tmp_path / "g").provenance["dropped"] == ["age.npy", "e_id"]


def test_notes_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    source = c.dgl_parts(tmp_path / "s", {"features"})
    shown = atta("dgl", source, tmp_path / "g", "--quiet")
    assert "note: vertex ids are the numbers that DistDGL has given: no nid_map beside the parts" in shown
    assert Graph.open(tmp_path / "g").provenance["notes"] == [
        line[6:] for line in shown.splitlines() if line.startswith("note: ")
    ]


def test_the_format_is_guessed_and_the_contents_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, npz = tmp_path / "e.txt", c.npz(tmp_path, {"features", "labels", "splits"})
    path.write_text("1 2\n2 3\n")
    shown = atta(path, tmp_path / "g")
    assert shown.startswith(f"{path}: taken for edges (lines with the same number of columns, two or more); --format ")
    rows = [re.findall(r"[\w,]+", line) for line in shown.splitlines()]
    assert [row for row in rows if row[:1] in (["node"], ["node__to__node"])] == [
        ["node", "3"],
        ["node__to__node", "2"],
    ]
    assert shown.endswith(f"{tmp_path / 'g'}: imported from {path}\n")
    shown = atta(npz, tmp_path / "h")
    assert "taken for npz" in shown
    assert "x f4[2]" in " ".join(shown.split())
    assert "train 2" in " ".join(shown.split())
    assert atta(path, tmp_path / "g", "--overwrite", "--quiet") == ""


def test_a_set_of_many_relations_is_shown_in_few_lines(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "facts.tsv").write_text("".join(f"a\tr{i % 30}\tb\n" for i in range(300)))
    shown = re.findall(r"(node__r\d+__node|more edge types)\W+(\d+)", atta(tmp_path / "facts.tsv", tmp_path / "g"))
    assert [count for _, count in shown] == ["10"] * 20 + ["100"]


def test_a_named_format_is_not_guessed(tmp_path: Path) -> None:
    path = c.npz(tmp_path, {"features"})
    for given in (["npz", path, tmp_path / "a"], [path, tmp_path / "b", "--format", "npz"]):
        assert "taken for" not in atta(*given)
    with pytest.raises(DataError, match=r"wanted is one of the files data\.npz"):
        atta("--format", "ogb", path, tmp_path / "c")


def test_several_files_of_edges(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, text in (("a", "1,2\n"), ("b", "3,1\n")):
        (tmp_path / name).write_text(text)
    paths = [tmp_path / "a", tmp_path / "b"]
    for given in (["edges", *paths], paths, ["--columns", "src=2,dst=1", *paths]):
        assert "imported from" in atta("--overwrite", *given, tmp_path / "g")
        assert Graph.open(tmp_path / "g").schema.edge_counts == {"node__to__node": 2}
    assert Graph.open(tmp_path / "g").edges("node__to__node").src.tolist() == [1, 0]
    with pytest.raises(ConfigError, match="only the format edges has several files"):
        atta("npz", *paths, tmp_path / "g")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nothing", "src", "dst"], "'nothing' is not one of 'dgl', "),
        (["npz"], "Missing argument 'DST'"),
        ([], "Missing argument"),
        (["npz", "src", "dst", "--columns", "src"], "'src' is not a list such as src=a,dst=b"),
        (["npz", "src", "dst", "--columns", "src=1,src=2"], "is not a list such as src=a,dst=b"),
    ],
)
def test_wrong_usage(given: list[str], said: str) -> None:
    assert said in " ".join(atta(*given).split())


NEEDS = {  # format: the package that it needs, and the extra that installs it
    "dgl": ("dgl", "dgl"), "pyg": ("torch_geometric.data", "train"), "pyg-parts": ("torch", "train"), "table": ("pyarrow", "table"),
    "edges": ("pyarrow", "table"),
}  # fmt: skip


@pytest.mark.parametrize("fmt", NEEDS)
def test_a_missing_package_is_named_with_its_extra_before_the_source_is_read(
    fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = NEEDS[fmt]
    (tmp_path / "source.json").write_text("this is no source of any format")
    monkeypatch.setitem(sys.modules, package, None)  # Python does this for a missing package
    refused(fmt, tmp_path / "source.json", tmp_path, rf"needs .*: install atta\[{extra}\]", ConfigError)
    assert [path.name for path in tmp_path.iterdir()] == ["source.json"]


@pytest.mark.parametrize("fmt", [fmt for fmt in NEEDS if fmt in EXPORTERS.keys() | PARTITIONED.keys()])
def test_exports_name_the_extra_as_well(fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 4)
        out.add_edges("node__to__node", [0, 1], [1, 2])
    source = tmp_path / "graph"
    if fmt in PARTITIONED:
        partition_graph(source, tmp_path / "data", parts=2, method="random")
        source = tmp_path / "data"
    package, extra = NEEDS[fmt]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs .*: install atta\[{extra}\]"):
        export_graph(fmt, source, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_formats_that_need_nothing_more() -> None:
    assert set(IMPORTERS) - NEEDS.keys() == {"dorylus", "matrix", "networkx", "npz", "ogb", "planetoid", "tgb"}


def test_interrupting_an_import_leaves_nothing(tmp_path: Path) -> None:
    source, many = tmp_path / "s", 4_000_000  # enough edges to interrupt the writing
    source.mkdir()
    ends = np.random.default_rng(1).integers(0, 1000, (2, many))
    np.savez(source / "graph.npz", edge_index=ends)
    np.save(source / "x.npy", np.zeros((1000, 2), np.float32))
    done = subprocess.Popen(
        [sys.executable, "-m", "atta.cli.main", "import", "npz", str(source), str(tmp_path / "g")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not [*(tmp_path / "g.partial").glob("*")]:
            assert done.poll() is None, done.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        done.send_signal(signal.SIGINT)
        out, err = done.communicate(timeout=60)
    finally:
        done.kill()
    assert (done.returncode, out, err.split()) == (130, "", ["atta:", "interrupted"])
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_refusals_are_one_line_and_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"edge ids"})
    np.save(source / "ids.npy", np.array([1, 2, 3, 4, 5, 2**63 + 7], np.uint64))
    arguments = ["import", "npz", str(source), str(tmp_path / "g")]
    for more, says in ((), "'e_id' is not imported"), (("--drop", "e_id"), f"{2**63 + 7} at position 5"):
        done = subprocess.run(
            [sys.executable, "-m", "atta.cli.main", *arguments, *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert says in done.stderr


@pytest.mark.parametrize(
    ("graphs", "what"),
    [("part_graph_graphbolt", "partitions with GraphBolt's graphs"), ("part_graph", "partitions of DistDGL")],
)
def test_a_graph_that_is_not_imported_yet_is_called_what_it_is(tmp_path: Path, graphs: str, what: str) -> None:
    """By every command that takes an imported one."""
    parts = {"num_parts": 1, "part_method": "random", "node_map": {}, "edge_map": {}, "ntypes": {}, "etypes": {}}
    (tmp_path / "g").mkdir()
    (tmp_path / "g/g.json").write_text(json.dumps({**parts, "part-0": {graphs: "part0/graph"}}))
    folder = str(tmp_path / "g")
    said = f"taken for dgl ({what}), which is not imported yet: run atta import dgl {folder} {folder}-graph"
    for ask in (
        lambda: cli.main(["partition", folder, str(tmp_path / "d"), "--parts", "2"], standalone_mode=False),
        lambda: cli.main(["inspect", folder], standalone_mode=False),
        lambda: local(folder),
    ):
        with pytest.raises(DataError) as caught:
            ask()
        assert said in str(caught.value)
