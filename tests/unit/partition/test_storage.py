"""Datasets, checkpoints and other files on object storage: fetched in pieces, verified, sent whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.observe.progress import Silent
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.deploy import local_dataset, local_graph, sent
from atta.partition.disk import mirror as fetching
from atta.partition.disk.files import describe_file, write_array
from atta.partition.disk.mirror import Mirror, fetch_files, send_files
from atta.partition.disk.staging import StagedFile
from atta.partition.disk.store import BrokenTransferError, RemoteFolder, is_url
from atta.partition.generate import GenerateOptions, generate
from atta.partition.graph import Graph, GraphWriter
from atta.partition.importers import import_graph
from atta.partition.importers.networkx import from_networkx
from atta.train.reports.epochs import EpochReport
from atta.train.reports.loggers import CsvLogger, RunLog
from tests.unit.partition.oracles import files_of, refuses

fsspec = pytest.importorskip("fsspec")
URL = "s3://bucket/data"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/atta"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """The file system ``memory://``, empty before and after."""
    found = fsspec.filesystem("memory")
    found.store.clear()
    found.pseudo_dirs[:] = [""]
    yield found
    found.store.clear()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("storage")
    generate("sbm", folder / "graph", GenerateOptions(nodes=200, edges=900, features=3, classes=2, seed=1))
    partition_graph(folder / "graph", folder / "parts", parts=2, method="random", seed=0)
    return folder


class Asked:
    """Counts what is read from ``memory://``, and breaks off the reads that it is told to."""

    def __init__(self, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        self.broken: list[Exception] = []
        self.most = self._now = 0
        self.together: threading.Barrier | None = None
        self._lock, real = threading.Lock(), memory.cat_file

        def cat_file(path: str, start: int | None = None, end: int | None = None, **given: Any) -> bytes:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
                error = self.broken.pop() if self.broken and start is not None else None
            try:
                if self.together is not None:
                    self.together.wait(30)
                if error is not None:
                    raise error
                if start is not None:
                    self.ranges.append((path, start, end or 0))
                return bytes(real(path, start=start, end=end, **given))
            finally:
                with self._lock:
                    self._now -= 1

        monkeypatch.setattr(type(memory), "cat_file", lambda _, *words, **given: cat_file(*words, **given))


@pytest.fixture
def asked(memory: Any, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(memory, monkeypatch)


def store(folder: Path, url: str = "memory://bucket/data") -> RemoteFolder:
    there = RemoteFolder(url)
    send_files(there, folder, "manifest.json", Silent())
    return there


@pytest.mark.parametrize(
    ("place", "remote"),
    [("s3://b/x", True), ("file:///x", True), ("/x/y", False), ("x", False), (Path("/x"), False), ("a:1", False)],
)
def test_what_a_url_is(place: object, remote: bool) -> None:
    assert is_url(place) is remote


def test_a_daemon_gets_what_it_needs_and_no_more(folders: Path, asked: Asked) -> None:
    store(folders / "parts")
    assert set(files_of(local_dataset("memory://bucket/data", []))) == {"manifest.json"}
    assert asked.ranges == []
    here = local_dataset("memory://bucket/data", [1])
    wanted = {n: c for n, c in files_of(folders / "parts").items() if not n.startswith("part-0000")}
    assert files_of(here) == wanted
    assert Dataset.open(here, parts=[1]).dataset_id == here.name
    asked.ranges.clear()
    assert local_dataset("memory://bucket/data", [1]) == here
    assert asked.ranges == []  # it is there
    assert files_of(local_dataset("memory://bucket/data", None)) == files_of(folders / "parts")
    assert {path.split("/")[3] for path, _, _ in asked.ranges} == {"part-0000"}


def test_a_new_dataset_at_the_same_place_has_a_folder_of_its_own(folders: Path, tmp_path: Path) -> None:
    store(folders / "parts")
    first = local_dataset("memory://bucket/data", [0])
    partition_graph(folders / "graph", "memory://bucket/data", parts=2, method="random", seed=7, overwrite=True)
    second = local_dataset("memory://bucket/data", [0])
    assert first != second
    assert Dataset.open(first, parts=[0]).dataset_id != Dataset.open(second, parts=[0]).dataset_id


def one_array(tmp_path: Path) -> tuple[RemoteFolder, bytes, dict[str, Any]]:
    """An array in the store, its content and its record. ``here`` is an empty folder."""
    write_array(tmp_path / "a.npy", np.arange(60))
    there = RemoteFolder("memory://bucket/x")
    there.write(tmp_path / "a.npy", "a.npy")
    (tmp_path / "here").mkdir()
    return there, (tmp_path / "a.npy").read_bytes(), {"a.npy": describe_file(tmp_path / "a.npy")}


def test_a_broken_download_goes_on_where_it_was(tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BLOCK", 100)
    there, content, records = one_array(tmp_path)
    (tmp_path / "here/a.npy.partial").write_bytes(bytes(100))  # what is left of another object is fetched again
    fetch_files(there, records, tmp_path / "here", Silent())
    assert files_of(tmp_path / "here") == {"a.npy": content}
    (tmp_path / "here/a.npy").unlink()
    asked.ranges.clear()
    asked.broken = [OSError("reset by peer")] * fetching.TRIES
    waits: list[float] = []
    with pytest.raises(BrokenTransferError, match="reset by peer"):
        fetch_files(there, records, tmp_path / "here", Silent(), sleep=waits.append)
    assert waits == [fetching.PAUSE_S * 2**n for n in range(fetching.TRIES - 1)]
    (tmp_path / "here/a.npy.partial").write_bytes(content[:250])  # what a killed process leaves
    asked.broken = [OSError("reset by peer")] * (fetching.TRIES - 1)
    fetch_files(there, records, tmp_path / "here", Silent(), sleep=waits.append)
    assert [start for _, start, _ in asked.ranges] == [*range(250, len(content), 100)]
    assert files_of(tmp_path / "here") == {"a.npy": content}


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_object_is_refused_by_its_url(folders: Path, memory: Any, damage: str) -> None:
    there = store(folders / "parts")
    name = next(n for n in there.names() if n.startswith("shared/") and n.endswith("/ids.npy"))
    path = f"/bucket/data/{name}"
    content = memory.cat_file(path)
    if damage == "missing":
        memory.rm_file(path)
    else:
        memory.pipe_file(path, content[:-1] + (b"" if damage == "truncated" else bytes([content[-1] ^ 1])))
    refuses(DataError, rf"memory://bucket/data/{name}: .*{damage}", local_dataset, "memory://bucket/data", [0])
    memory.pipe_file(path, content)
    Dataset.open(local_dataset("memory://bucket/data", [0]), parts=[0])  # nothing wrong was kept


def test_several_objects_come_at_a_time_but_not_all(tmp_path: Path, asked: Asked) -> None:
    there, _, records = one_array(tmp_path)
    names = [f"{number}.npy" for number in range(3 * fetching.AT_ONCE)]
    for name in names:
        there.write(tmp_path / "a.npy", name)
    asked.together = threading.Barrier(fetching.AT_ONCE)  # each read waits until so many have begun
    fetch_files(there, dict.fromkeys(names, records["a.npy"]), tmp_path / "here", Silent())
    assert asked.most == fetching.AT_ONCE
    assert set(files_of(tmp_path / "here")) == {*names}


def test_names_that_would_leave_the_folder_are_refused(tmp_path: Path) -> None:
    there, _, records = one_array(tmp_path)
    for name in ("../a.npy", "shared/../../a.npy", "/a.npy"):
        refuses(DataError, "no name within", fetch_files, there, {name: records["a.npy"]}, tmp_path, Silent())


def test_bad_places_are_clear_errors(folders: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(DataError, r"memory://bucket/none/manifest.json: is missing", local_dataset, "memory://bucket/none", [0])
    refuses(ConfigError, "nosuch", local_dataset, "nosuch://bucket/none", [0])
    store(folders / "parts")
    refuses(ConfigError, "partition 2 does not exist", local_dataset, "memory://bucket/data", [2])
    asked.broken = [PermissionError("403 Forbidden")]  # it is not tried again
    refuses(DataError, r"may not be accessed: 403", local_dataset, "memory://bucket/data", [0])
    monkeypatch.setattr(fetching, "_check_room", lambda *_: (_ for _ in ()).throw(QuotaExceededError("full")))
    with pytest.raises(QuotaExceededError):
        local_dataset("memory://bucket/data", [0])
    monkeypatch.setitem(sys.modules, "fsspec", None)
    refuses(ConfigError, r"atta\[storage\]", local_dataset, "memory://bucket/data", [0])


def test_partitions_from_storage_to_storage_are_those_made_here(folders: Path) -> None:
    send_files(RemoteFolder("memory://bucket/graph"), folders / "graph", "graph.json", Silent())
    how: dict[str, Any] = {"parts": 2, "method": "random", "seed": 0}
    partition_graph("memory://bucket/graph", "memory://bucket/out", **how)
    made = local_dataset("memory://bucket/out", None)
    there = Dataset.open(made)
    assert there.dataset_id == Dataset.open(folders / "parts").dataset_id
    assert files_of(made).keys() == files_of(folders / "parts").keys()
    assert files_of(local_graph("memory://bucket/graph")) == files_of(folders / "graph")
    refuses(ConfigError, "exists already", partition_graph, "memory://bucket/graph", "memory://bucket/out", **how)


def test_graph_folders_are_written_to_storage_as_to_this_machine(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    networkx.write_graphml(networkx.path_graph(5), tmp_path / "path.graphml")
    writers: dict[str, Callable[..., Any]] = {
        "generated": lambda dst, **how: generate("sbm", dst, GenerateOptions(nodes=20, edges=40, seed=1), **how),
        "from_networkx": lambda dst, **how: from_networkx(networkx.path_graph(5), dst, **how),
        "imported": lambda dst, **how: import_graph("networkx", tmp_path / "path.graphml", dst, **how),
    }
    for name, write in writers.items():
        there = f"memory://bucket/{name}"
        write(tmp_path / name)
        write(there)
        refuses(ConfigError, "exists already", write, there)
        write(there, overwrite=True)
        assert files_of(local_graph(there)) == files_of(tmp_path / name)


def test_a_csv_logger_goes_on_where_its_files_are(tmp_path: Path, home: Path) -> None:
    run = "memory://bucket/run"
    with RunLog([CsvLogger(run)], {"lr": 0.5}) as log:
        log.epoch(EpochReport(0, 1.0, 0.25, 1.0, 1.0, 1.0, {}))
    shutil.rmtree(home)  # another machine goes on
    resumed = CsvLogger(run)
    resumed.log_metrics({"loss": 0.5}, 1)
    assert sorted(RemoteFolder(run).names()) == ["hparams.json", "metrics.csv"]
    lines = RemoteFolder(run).read("metrics.csv").decode().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "0", "1"]


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", URL),
        ("inspect", URL, "--sample", "1"),
        ("deploy", URL, "here", "--part", "0"),
        ("deploy", "{parts}", URL, "--part", "0"),
        ("export", "npz", URL, "here"),
        ("export", "npz", "{graph}", URL),
        ("import", "npz", URL, "here"),
        ("render", "slurm", "--data", URL, "--insecure"),
    ],
    ids=" ".join,
)
def test_commands_that_take_no_url_say_so(folders, tmp_path, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [word.format(parts=folders / "parts", graph=folders / "graph") for word in words]
    found = CliRunner().invoke(cli, given).exception
    assert isinstance(found, ConfigError)
    assert str(found) == f"{URL}: a URL; {words[0]} needs a path of this machine"
    assert [*tmp_path.iterdir()] == []


def test_no_writer_makes_a_folder_of_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (lambda: GraphWriter(URL), lambda: StagedFile(URL)):
        refuses(ConfigError, "a URL; writing needs a path of this machine", write)
    for read in (Graph.open, Dataset.open):
        refuses(ConfigError, rf"{URL}: a URL", read, URL)
    assert [*tmp_path.iterdir()] == []


def test_a_bucket_that_is_not_there_is_named_as_the_cause(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_file(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(type(memory), "put_file", put_file)
    with pytest.raises(DataError, match=r"memory://none/x/.*: cannot be written: there is no such bucket or folder"):
        generate("sbm", "memory://none/x", GenerateOptions(nodes=20, edges=40))


def test_the_manifest_goes_last_and_goes_first_when_a_dataset_is_replaced(memory: Any, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    real = memory.put_file

    def put_file(source: str, path: str, **given: Any) -> None:
        seen.append({p.rpartition("/")[2] for p in memory.store})
        real(source, path, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(memory), "put_file", lambda _, *words, **given: put_file(*words, **given))
        for content in (b"1", b"2"):
            with sent("memory://bucket/y", "manifest.json", overwrite=True) as folder:
                folder.mkdir()
                for name in ("a.npy", "b.npy", "manifest.json"):
                    (folder / name).write_bytes(content)
    assert all("manifest.json" not in names for names in seen)
    assert seen[2] == seen[5] == {"a.npy", "b.npy"}
    assert {p: bytes(f.getvalue()) for p, f in memory.store.items()} == dict.fromkeys(memory.store, b"2")


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_a_mirror_is_a_folder_wherever_it_lies(tmp_path: Path, home: Path, kind: str) -> None:
    folder = {"path": str(tmp_path / "x"), "file": f"file://{tmp_path}/x", "memory": "memory://bucket/run"}[kind]
    place = Mirror(folder)
    assert (place.names(), place.has("a"), place.version("a")) == ([], False, "")
    place.path.mkdir(parents=True, exist_ok=True)
    (place.path / "a").write_bytes(b"one")
    place.push("a")
    first = place.version("a")
    assert (place.names(), place.has("a"), bool(first)) == (["a"], True, True)
    if kind != "path":
        for left in home.rglob("a"):
            left.unlink()
    other = Mirror(folder)
    assert other.pull("a").read_bytes() == b"one"
    (other.path / "a").unlink()
    (other.path / "a").write_bytes(b"other")
    other.push("a")
    assert place.pull("a").read_bytes() == b"other"
    assert place.version("a") != first
    place.remove("a")
    assert (other.names(), other.pull("a").exists()) == ([], False)
    place.check_writable()
    assert place.names() == []


def test_a_file_on_a_disk_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = RemoteFolder(f"file://{tmp_path}/x")
    (tmp_path / "a").write_bytes(b"12")
    names: list[str] = []
    local = type(fsspec.filesystem("file"))
    real = local.put_file
    monkeypatch.setattr(local, "put_file", lambda fs, a, b, **k: (names.append(b), real(fs, a, b, **k))[1])
    there.write(tmp_path / "a", "deep/a")
    assert [name.rpartition("/")[2] for name in names] == ["a.partial"]
    assert there.names() == ["deep/a"]


def test_nothing_of_storage_is_imported_for_paths_of_this_machine(folders: Path) -> None:
    program = (
        "import sys\nfrom atta.partition.deploy import local_dataset\nfrom atta.partition.disk.mirror import Mirror\n"
        f"local_dataset({str(folders / 'parts')!r}, [0]); Mirror('/tmp').names(); print('fsspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).stdout == b"False\n"
