"""The blocks of the documents run as they stand, one after another. A block that cannot run says that it is a fragment.

A fragment is marked by ```` ```python fragment ````, or by ``<!-- fragment: why -->`` before indented commands. Python
marked as ```` ```python later ```` runs after the commands of its document. A command that ends with ``&`` runs beside
those that follow, and has to end by itself with the last of them, unless ``kill -9 %2`` has ended it (the second one).
``# exit code 1`` behind a command says how it ends. The test appends smaller figures (the last value of
an option counts) and creates the folders that commands name. All blocks share two daemons. The tables that tutorials invent
are there for all documents, and so are JSON files: ```` ```json NAME ````.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import atta
from atta.cli.main import cli
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from tests.addresses import held_port
from tests.unit.cli.test_documents import BESIDE, settings_files
from tests.waiting import connected, eventually

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = ("atta", "python", "make", "sed", "cp", "kill", "curl")

SMALLER = {
    "generate": "--nodes 400 --edges 4000 --features 4 --classes 3 --overwrite",
    "partition": "--overwrite",
    "import": "--overwrite",
    "train": "--epochs 1",
    "trace": "--seconds 0",
    "status": "--interval 100ms",
    "top": "--interval 100ms",
    "simulate": "--batches 5",
}
PRINTED = {
    "exact-layers.md": "first (GCNConv)",
    "cooperative.md": "\n",
    "README.md": "",
    "from-dgl.md": "validation accuracy 0.",
    "from-pyg.md": "50 validation vertices, accuracy 0.",
    "importing.md": "Strozzi",
    "index.md": "loss ",
    "inference.md": "(50, 8)",
    "samplers.md": "torch.Size",
    "tables.md": "torch.Size([1000, 16])",
    "training.md": "epoch 2: ",
    "tutorial-links.md": "4000 ratings in tables/films",
    "tutorial-own-data.md": "600 people in tables/social",
    "typed.md": "['test', 'train', 'val']",
}


@dataclass(frozen=True)
class Block:
    """Lines of Python or commands. ``mark``: ``fragment`` or ``later``; empty: they run as they come."""

    text: str
    mark: str = ""


def python_blocks(path: Path) -> list[Block]:
    found = re.findall(r"^```python ?(fragment|later)?\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(text, mark) for mark, text in found]


def command_blocks(path: Path, end: str = "") -> list[Block]:
    """Indented lines that begin with a command, and the text before them. A backslash continues a line. ``end``: the
    heading before which to stop."""
    found = []
    said = ""
    text = path.read_text().partition(f"\n## {end}\n")[0] if end else path.read_text()
    for paragraph in re.split(r"\n\s*\n", re.sub(r"\\\n +", "", text)):
        lines = [line.strip() for line in paragraph.splitlines() if re.match(rf" {{4}}({'|'.join(COMMANDS)}) ", line)]
        if lines:
            found.append(Block("\n".join(lines), "fragment" if said.startswith("<!-- fragment: ") else ""))
        said = paragraph.strip()
    return found


def running(blocks: list[Block], mark: str = "") -> list[str]:
    return [block.text for block in blocks if block.mark == mark]


LATER = {"tutorial-own-data.md": "'id': 'user-0", "tutorial-links.md": "4000 offers, the first:"}
"""What Python prints that runs after the commands of its document."""
ANSWERED = {
    "tutorial-cluster.md": ['{"ids": [5, 17], "version": 0, "what": "classes", "values": ['],
    "tutorial-links.md": [
        '{"ids": ["user-0007"], "version": 0, "targets": [["tt0',
        '{"ids": ["user-0007", "ada"], "version": 1, "targets": [["tt0',
        '{"ids": ["me"], "version": 1, "targets": [["tt0',
    ],
}
"""What a document's queries over HTTP are answered."""
FEW = {
    "tutorial-own-data.md": (8, "Where to go from here"),
    "tutorial-links.md": (8, "A service that follows new ratings"),
    "tutorial-cluster.md": (12, "Go on from a checkpoint"),
}
"""At most so many commands and settings files of one's own lead to the heading. Before that, a graph may be made."""
KEPT = {"tutorial-cluster.md": 4}
"""Documents whose runs keep their epochs, and how many their trainings have together."""
LONG = (
    *("planning.md", "strategies.md", "from-gigl.md", "from-graphstorm.md"),
    *(f"tutorial-{aim}.md" for aim in ("links", "cluster", "own-data")),
)
"""Documents whose commands `make test-all` runs; other tests run their like."""


def with_blocks(kind: str) -> list[Path]:
    find = python_blocks if kind == "python" else command_blocks
    return [path for path in DOCUMENTS if running(find(path))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng, n = tmp_path_factory.mktemp("documents"), np.random.default_rng(4), 400
    x, y = rng.random((n, 4), dtype=np.float32), rng.integers(0, 3, n)
    ends = rng.integers(0, n, (2, 4000))
    with GraphWriter(folder / "graphs/demo") as out:
        splits = {"train": np.arange(100), "val": np.arange(100, 150), "test": np.arange(150, 200)}
        out.add_nodes("node", n, tables={"x": x, "y": y}, splits=splits)
        out.add_edges("node__to__node", *ends)
    partition_graph(folder / "graphs/demo", folder / "data/demo-2p", parts=2, method="random")
    (folder / "data/big-2p").symlink_to("demo-2p")
    (folder / "my-graph").mkdir()
    np.savez(folder / "my-graph/graph.npz", edge_index=ends)
    np.save(folder / "my-graph/x.npy", x)
    np.save(folder / "my-graph/y.npy", y)
    for name, text in settings_files().items():
        (folder / name).write_text(text)
    with contextlib.chdir(folder):
        for name in ("tutorial-own-data.md", "tutorial-links.md"):
            exec(python_blocks(ROOT / "docs/guide" / name)[0].text, {})
        for document in DOCUMENTS:
            for name, text in re.findall(r"^```json (\S+)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def daemons(home: Path) -> Iterator[None]:
    """Two daemons, with snapshots and a table, and the cluster file that commands name. They serve a copy, since commands
    write the dataset anew."""
    shutil.copytree(home / "data/demo-2p", home / "served")
    with atta.local(home / "served", threads=1, options=("--snapshots", str(home / "snapshots"))) as cluster:
        (home / "cluster.toml").write_text(cluster.cluster_file.read_text())
        (home / "ip_config.txt").write_text("".join(f"{a.replace(':', ' ')}\n" for a in cluster.addresses))
        atta.DistTensor(cluster, (10, 2), name="kept")
        assert len(list(atta.NeighborLoader(cluster, [3, 2], "train", batch_size=10))) == 10
        yield


def test_the_documents_have_both_kinds() -> None:
    assert {path.name for path in with_blocks("python")} == set(PRINTED)
    assert {"quickstart.md", "watching.md", "partitioning.md"} <= {path.name for path in with_blocks("commands")}
    assert {path.name for path in DOCUMENTS if running(python_blocks(path), "later")} == set(LATER)


@pytest.mark.parametrize("path", with_blocks("python"), ids=lambda p: p.name)
def test_python_runs(
    path: Path, home: Path, daemons: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dgl" if path.name == "from-dgl.md" else "torch_geometric")
    monkeypatch.chdir(home)
    if path.name != "README.md":  # one document is enough to test that daemons start
        start = atta.local

        def local(data: str, **_: object) -> atta.Cluster:
            return atta.connect("cluster.toml") if data == "data/demo-2p" else start(data, threads=1, daemons=1)

        monkeypatch.setattr(atta, "local", local)
    names = {"__name__": "document"}
    try:
        exec(compile("\n".join(running(python_blocks(path))), path.name, "exec"), names)
    finally:
        for left in names.values():
            if isinstance(left, atta.Cluster):
                left.close()
    assert PRINTED[path.name] in capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_fragments_of_python_are_python(path: Path) -> None:
    for block in python_blocks(path):
        assert ast.parse(textwrap.dedent(block.text)).body


@pytest.mark.usefixtures("preloaded_trainers")
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.name, marks=[pytest.mark.slow] * (path.name in LONG)) for path in with_blocks("commands")
])  # fmt: skip
def test_commands_run(
    path: Path, home: Path, daemons: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    later = "\n".join(running(python_blocks(path), "later"))
    if "pyarrow" in later:
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas")
    lines = "\n".join(running(command_blocks(path))).splitlines()
    with contextlib.ExitStack() as beside:
        started: list[subprocess.Popen[bytes]] = []
        killed: list[subprocess.Popen[bytes]] = []
        for line in own_addresses(lines, home):
            if line.endswith(BESIDE):
                started.append(beside.enter_context(in_background(line.removesuffix(BESIDE))))
            elif line.startswith("kill "):
                killed.append(started[int(line.removeprefix("kill -9 %")) - 1])
                killed[-1].kill()
            elif line.startswith(("sed ", "cp ")):
                subprocess.run(line, shell=True, check=True)
            elif line.startswith("curl "):
                print(answer(line))
            else:
                run(line, path)
        for process in started:
            assert process.wait(30) == (-signal.SIGKILL if process in killed else 0)
    if path.name == "quickstart.md":
        assert sorted(os.listdir(home / "machine-1/demo-2p")) == ["manifest.json", "part-0001", "shared"]
    out, log = capfd.readouterr()
    if path.name in KEPT:  # a run that goes on repeats no epoch
        epochs = re.findall(r"^epoch +(\d+) ", f"{out}\n{log}", re.MULTILINE)
        assert epochs == [str(epoch) for epoch in range(KEPT[path.name])]
    exec(compile(later, path.name, "exec"), {"__name__": "document"})
    out += capfd.readouterr().out
    assert LATER.get(path.name, "") in out
    assert all(text in out for text in ANSWERED.get(path.name, ()))


def answer(line: str) -> str:
    """What a server answers ``curl [--cacert FILE] [-H "NAME: $(cat FILE)"] -d BODY URL``."""
    _, *words, url = shlex.split(re.sub(r"\$\(cat (\S+)\)", lambda found: Path(found[1]).read_text().strip(), line))
    given = dict(zip(words[::2], words[1::2], strict=True))
    headers = dict([given["-H"].split(": ")]) if "-H" in given else {}
    known = ssl.create_default_context(cafile=given.get("--cacert"))
    asked = urllib.request.Request(url, given["-d"].encode(), headers)
    with urllib.request.urlopen(asked, timeout=20, context=known) as reply:
        return str(reply.read().decode())


@pytest.mark.parametrize("name", FEW)
def test_few_commands_lead_to_the_aim_of_a_tutorial(name: str) -> None:
    path, (most, end) = ROOT / "docs/guide" / name, FEW[name]
    assert f"\n## {end}\n" in path.read_text()
    blocks = command_blocks(path, end)
    assert not any(block.mark for block in blocks)
    lines = [
        line
        for line in "\n".join(running(blocks)).splitlines()
        if not re.match("atta (generate|partition .*pair)", line)
    ]
    files = re.findall(r"^ {4}# [\w-]+\.toml$", path.read_text().partition(f"\n## {end}\n")[0], re.MULTILINE)
    assert 5 <= len(lines) + len(files) <= most, lines
    assert all(line.split()[0] in ("atta", "cp") for line in lines)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/guide").glob("from-*.md")), ids=lambda p: p.name)
def test_the_same_job_in_a_table_is_what_runs(path: Path) -> None:
    """Every line of code on Atta's side of the tables of "The same job" stands in a block that runs, but for links and
    what another document has."""
    text = path.read_text().partition("\n## The same job\n")[2].partition("\n## ")[0]
    shown = re.findall(r"^```(?:json \S+|python)\n.*?^```|^ {4}\S.*\n(?: {4}.*\n)*", text, re.MULTILINE | re.DOTALL)
    runs = re.sub(r"\s+", " ", re.sub(r"\\\n", "", "\n".join(shown)))
    rows = [row.strip("| \n").split(" | ") for row in re.findall(r"^\|.*\n", text, re.MULTILINE)]
    cells = [row[1] for row in rows if len(row) == 2 and "](" not in row[1] and ":" not in row[1].partition("`")[0]]
    code = [one for cell in cells for one in re.findall(r"`([^`]+)`", cell)]
    assert len(code) >= 5
    assert not [one for one in code if one not in runs], path.name


def run(line: str, path: Path) -> None:
    """Run one command in this process, with smaller figures."""
    name, *arguments = shlex.split(line, comments=True)
    assert name == "atta", f"{path.name}: mark it as a fragment, or run it here: {line}"
    smaller = [] if arguments[0] == "train" and path.name in KEPT else shlex.split(SMALLER.get(arguments[0], ""))
    if "--measure" in arguments:
        smaller = ["--epochs", "1", "--batch-size", "64"]
    if arguments[0] == "simulate" and "--strategy" in arguments:
        smaller = ["--epochs", "2"]
    assert exit_code([*arguments, *smaller]) == int((re.findall(r"# exit code (\d)$", line) or ["0"])[0]), line


def exit_code(arguments: list[str]) -> int:
    try:
        return int(cli.main(arguments, prog_name="atta", standalone_mode=False) or 0)
    except atta.AttaError as error:
        print(error, file=sys.stderr)
        return 1


@contextlib.contextmanager
def in_background(line: str) -> Iterator[subprocess.Popen[bytes]]:
    """``atta serve`` as a process, once it listens."""
    _, *words = shlex.split(line)
    host, _, port = words[words.index("--listen") + 1].rpartition(":")
    with subprocess.Popen([sys.executable, "-m", "atta.cli.main", *words]) as process:
        try:
            assert eventually(lambda: connected(host, int(port)), 60)
            yield process
        finally:
            process.kill()


def own_addresses(lines: list[str], home: Path) -> list[str]:
    """``lines`` with free ports in place of those where the document starts daemons, also in its settings files."""
    places = r"--(?:listen|metrics) \S+(:\d+)"
    for old in {at for line in lines if line.endswith(BESIDE) for at in re.findall(places, line)}:
        new = f":{held_port()}"
        lines = [line.replace(old, new) for line in lines]
        for name in {name for line in lines for name in re.findall(r"--peers ([\w.-]+) ", line)}:
            (home / name).write_text((home / name).read_text().replace(old, new))
    return lines


def test_the_parts_in_the_document_are_those_of_the_example() -> None:
    files = sorted((ROOT / "examples/own_parts/atta_own_parts").glob("*.py"))
    text = "\n".join(path.read_text() for path in files)
    without_docstrings = re.sub(r'^ +""".*"""\n(\n(?=    \w))?', "", text, flags=re.MULTILINE)
    blocks = [block.text.strip() for block in python_blocks(ROOT / "docs/guide/own-parts.md")]
    assert len(blocks) == 3
    for block in blocks:
        assert block.replace("\n", "") in without_docstrings.replace("\n", "")
