"""The data commands on the command line: their output, their requirements, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from atta.cli.graphs import data, partition
from atta.cli.main import cli
from atta.client.local import local
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.exporters import EXPORTERS, PARTITIONED, export_graph
from atta.partition.importers import IMPORTERS
from atta.samplers.seed_plan import plan_seeds
from tests.unit.partition import carried as c
from tests.unit.partition.oracles import refused, refuses

GENERATE = ["generate", "powerlaw", "g", "--nodes", "500", "--edges", "4000", "--features", "8", "--classes", "3"]


def run(*arguments: object) -> Result:
    group = click.Group(commands={c.name: c for c in [*data.COMMANDS, *partition.COMMANDS]})
    result = CliRunner().invoke(group, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*GENERATE).exit_code == 0


@pytest.fixture
def parted(here):
    assert run("partition", "g", "d", "--parts", "2", "--method", "random", "-q").output == ""


@pytest.mark.usefixtures("parted")
def test_generate_partition_inspect():
    shown = run("inspect", "d").output
    assert "2 partitions" in shown
    assert "edge cut" in shown
    report = json.loads(run("inspect", "d", "--json", "-").output)
    assert report["kind"] == "dataset"
    assert report["num_parts"] == 2
    assert report["provenance"]["method"] == "random"
    assert report["provenance"]["graph"]["options"]["nodes"] == 500
    assert report["quality"]["balance"]["nodes"] == 1
    run("inspect", "g", "--json", "out.json", "-q")
    with open("out.json") as file:
        assert json.load(file)["kind"] == "graph"


@pytest.mark.usefixtures("here")
def test_placement_of_servers_and_trainers():
    run("partition", "g", "d", "--parts", "2", "--method", "metis", "-q")
    report = json.loads(run("inspect", "d", "--trainers-per-server", "3", "--json", "-").output)
    dataset = Dataset.open("d")
    offsets, train = dataset.book.offsets["node"], dataset.split("node", "train")
    for server, place in enumerate(report["placement"]):
        inside = (train >= offsets[server]) & (train < offsets[server + 1])
        part = dataset.part(server)
        assert place["server"] == server
        assert place["vertices"] == offsets[server + 1] - offsets[server]
        assert place["in_edges"] == len(part.csc("node__to__node").indices)
        assert place["training_vertices"] == inside.sum()
        assert place["halo"] == len(part.halo("node"))
        for number, trainer in enumerate(place["trainers"]):
            rank = 3 * server + number
            given = plan_seeds(train, train, batch_size=7, parts=2, rank=rank, world=6, pad=False)
            assert trainer == {"rank": rank, "training_vertices": len(given.seeds)}
    assert len(report["placement"]) == 2
    shown = run("inspect", "d", "--trainers-per-server", "3").output
    assert "Placement" in shown
    assert "3 to 5" in shown
    alone = json.loads(run("inspect", "d", "--json", "-").output)["placement"]
    assert [[t["rank"] for t in place["trainers"]] for place in alone] == [[0], [1]]
    for senseless in ("0", "-1", "1025"):
        with pytest.raises(ConfigError, match=f"--trainers-per-server {senseless}: must be 1 to 1024"):
            run("inspect", "d", "--trainers-per-server", senseless)
    with pytest.raises(ConfigError, match="--trainers-per-server: needs a partitioned dataset"):
        run("inspect", "g", "--trainers-per-server", "2")


@pytest.mark.usefixtures("parted")
def test_inspect_of_one_part(tmp_path):
    (tmp_path / "d/part-0001").rename(tmp_path / "elsewhere")
    assert run("inspect", "d", "--part", "0").exit_code == 0
    refuses(DataError, "holds partition 0, not 1", run, "inspect", "d")
    refuses(ConfigError, "--part: needs a partitioned dataset", run, "inspect", "g", "--part", "7")


@pytest.mark.usefixtures("parted")
def test_the_split_that_a_prediction_begins_with():
    inspect, seeds = ("inspect", "d", "--num-neighbors", "2", "--batch-size", "500", "--json", "-"), {}
    for split in ("train", "val", None):
        shown = run(*inspect, *(("--split", split) if split else ())).output
        seeds[split] = sum(part["seeds"] for part in json.loads(shown)["prediction"]["parts"])
    dataset = Dataset.open("d")
    train, val = (len(dataset.split("node", name)) for name in ("train", "val"))
    assert seeds == {"train": train, "val": val, None: train}
    refuses(UnknownNameError, "unknown split 'vall'; did you mean 'val'", run, *inspect, "--split", "vall")


@pytest.mark.usefixtures("here")
def test_a_fallback_is_told():
    given = ("partition", "g", "d", "--parts", "2", "--method", "given:path=none.npy")
    done = run(*given, "--fallback", "ldg")
    assert done.stdout == "d: 2 partitions by ldg; look at it with `atta inspect d`\n"
    assert done.stderr == "note: given: none.npy: the file is missing; ldg took its place\n"
    with pytest.raises(ConfigError, match="the method random balances nodes only"):
        run(*given[:5], "--fallback", "random", "--balance", "edges")


@pytest.mark.usefixtures("here")
def test_wrong_usage():
    assert run("partition", "g", "d").exit_code == 2
    assert run("generate", "lattice", "g", "--nodes", "5", "--edges", "5").exit_code == 2
    refuses(DataError, "none: no such folder", run, "partition", "none", "d", "--parts", "2")
    refuses(ConfigError, "--overwrite", run, *GENERATE)
    assert run(*GENERATE, "--overwrite").exit_code == 0


def test_help():
    shown = run("generate", "--help").output
    for option in ("--communities", "--inter", "--exponent", "--signal", "--train", "--val", "--test", "Example:"):
        assert option in shown
    shown = " ".join(importing("--help").split())
    assert ", ".join(sorted(IMPORTERS)) in shown
    assert "--drop NAME" in shown


@pytest.mark.usefixtures("here")
def test_the_engine_ray_says_what_it_needs(monkeypatch):
    wanted = ("partition", "g", "d", "--parts", "2", "--engine", "ray")
    for others in (("--method", "metis"), (), ("--method", "ldg", "--fallback", "random"), ("--compare", "ldg,random")):
        refuses(ConfigError, "--engine ray: takes --method ldg alone", run, *wanted, *others)
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(ConfigError, r"Ray needs ray: install atta\[ray\]", run, *wanted, "--method", "ldg")


@pytest.mark.usefixtures("here")
def test_what_a_comparison_balances_and_what_it_refuses():
    compare = ("partition", "g", "d", "--parts", "3", "--compare", "ldg,random", "-q")
    for option in (("--method", "ldg:passes=1"), ("--fallback", "random")):
        refuses(ConfigError, "--compare: goes without options of --method and --fallback", run, *compare, *option)
    with pytest.raises(UnknownNameError, match="nonsense"):
        run(*(word.replace("random", "fennel") for word in compare), "--balance", "nonsense")
    with pytest.raises(ConfigError, match="--balance nodes,edges: the method random balances nodes only"):
        run(*compare, "--balance", "nodes,edges")
    assert not os.path.exists("d")
    assert run(*compare, "--balance", "nodes", "--overwrite").exit_code == 0
    assert [Dataset.open(f"d/{method}").provenance["balance"] for method in ("ldg", "random")] == [["nodes"]] * 2


def importing(*arguments: object) -> str:
    return run("import", *arguments).output


def test_what_is_left_out_is_named_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    source = c.npz(tmp_path / "s", {"features", "edge ids", "other node tables"})
    shown = importing("npz", source, tmp_path / "g", "--drop", "e_id", "--drop", "age.npy")
    assert shown.endswith(f"imported from {source}\n")
    assert Graph.open(tmp_path / "g").provenance["dropped"] == ["age.npy", "e_id"]


def test_notes_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    source = c.dgl_parts(tmp_path / "s", {"features"})
    shown = importing("dgl", source, tmp_path / "g", "--quiet")
    assert "note: vertex ids are the numbers that DistDGL has given: no nid_map beside the parts" in shown
    notes = [line[6:] for line in shown.splitlines() if line.startswith("note: ")]
    assert Graph.open(tmp_path / "g").provenance["notes"] == notes


def test_the_format_is_guessed_and_the_contents_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, npz = tmp_path / "e.txt", c.npz(tmp_path, {"features", "labels", "splits"})
    path.write_text("1 2\n2 3\n")
    shown = importing(path, tmp_path / "g")
    assert shown.startswith(f"{path}: taken for edges (lines with the same number of columns, two or more); --format ")
    rows = [re.findall(r"[\w,]+", line) for line in shown.splitlines()]
    of_types = [row for row in rows if row[:1] in (["node"], ["node__to__node"])]
    assert of_types == [["node", "3"], ["node__to__node", "2"]]
    assert shown.endswith(f"{tmp_path / 'g'}: imported from {path}\n")
    shown = importing(npz, tmp_path / "h")
    assert "taken for npz" in shown
    assert "x f4[2]" in " ".join(shown.split())
    assert "train 2" in " ".join(shown.split())
    assert importing(path, tmp_path / "g", "--overwrite", "--quiet") == ""


def test_a_set_of_many_relations_is_shown_in_few_lines(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "facts.tsv").write_text("".join(f"a\tr{i % 30}\tb\n" for i in range(300)))
    shown = re.findall(r"(node__r\d+__node|more edge types)\W+(\d+)", importing(tmp_path / "facts.tsv", tmp_path / "g"))
    assert [count for _, count in shown] == ["10"] * 20 + ["100"]


def test_a_named_format_is_not_guessed(tmp_path: Path) -> None:
    path = c.npz(tmp_path, {"features"})
    for given in (["npz", path, tmp_path / "a"], [path, tmp_path / "b", "--format", "npz"]):
        assert "taken for" not in importing(*given)
    refuses(DataError, r"wanted is one of the files data\.npz", importing, "--format", "ogb", path, tmp_path / "c")


def test_several_files_of_edges(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, text in (("a", "1,2\n"), ("b", "3,1\n")):
        (tmp_path / name).write_text(text)
    paths = [tmp_path / "a", tmp_path / "b"]
    for given in (["edges", *paths], paths, ["--columns", "src=2,dst=1", *paths]):
        assert "imported from" in importing("--overwrite", *given, tmp_path / "g")
        assert Graph.open(tmp_path / "g").schema.edge_counts == {"node__to__node": 2}
    assert Graph.open(tmp_path / "g").edges("node__to__node").src.tolist() == [1, 0]
    refuses(ConfigError, "only the format edges has several files", importing, "npz", *paths, tmp_path / "g")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nothing", "src", "dst"], "unknown format 'nothing'; there are: dgl, "),
        (["npz"], "Missing argument 'DST'"),
        ([], "Missing argument"),
        (["npz", "src", "dst", "--columns", "src"], "'src' is not a list such as src=a,dst=b"),
        (["npz", "src", "dst", "--columns", "src=1,src=2"], "is not a list such as src=a,dst=b"),
    ],
)
def test_wrong_usage_of_imports(given: list[str], said: str) -> None:
    assert said in " ".join(importing(*given).split())


NEEDS = {  # format: the package that it needs, and the extra that installs it
    "dgl": ("dgl", "dgl"), "pyg": ("torch_geometric.data", "train"), "pyg-parts": ("torch", "train"), "table": ("pyarrow", "table"),
    "edges": ("pyarrow", "table"),
}  # fmt: skip


@pytest.mark.parametrize("fmt", NEEDS)
def test_a_missing_package_is_named_with_its_extra_before_the_source_is_read(fmt, tmp_path, monkeypatch):
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
    refuses(ConfigError, rf"needs .*: install atta\[{extra}\]", export_graph, fmt, source, tmp_path / "out")
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
        command = [sys.executable, "-m", "atta.cli.main", *arguments, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
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
