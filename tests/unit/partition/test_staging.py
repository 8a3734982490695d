"""Folders and files that replace others: if the writer dies or the disk fills up, the old one or the new one is whole."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atta.cli.figures import save_figure
from atta.errors import ConfigError, DataError, DiskFullError
from atta.kvstore.spec import MutableSpec
from atta.kvstore.tables import Tables
from atta.partition import Dataset, Graph, GraphWriter, partition_graph
from atta.partition.disk import staging
from atta.partition.disk.staging import StagedFile, Staging, recover
from atta.partition.exporters import EXPORTERS, export_graph
from atta.simulate.profile import HopSize, Profile, save_profile
from tests.unit.partition.exports import need, target
from tests.unit.partition.oracles import files_of, refuses

MARKER = "graph.json"
STATE_CHANGES = ("os.", "shutil.", "fcntl.", "open", "pathlib.")


def write(dst: Path, value: int) -> None:
    """A folder that shows whether it is whole: 3 files, and their checksums in the marker."""
    with Staging(dst, MARKER, overwrite=True) as folder:
        sums = []
        for name in ("a.npy", "nodes/b.npy", "nodes/c.npy"):
            content = random.Random(f"{value}{name}").randbytes(2000)
            (folder.path / name).parent.mkdir(exist_ok=True)
            (folder.path / name).write_bytes(content)
            sums.append(f"{name} {hashlib.sha256(content).hexdigest()}")
        (folder.path / MARKER).write_text("\n".join([str(value), *sums]))


def read(dst: Path) -> int | None:
    """The value in the folder; None: there is no such folder. Fails if the folder is not whole."""
    recover(dst)
    if not dst.exists():
        return None
    value, *sums = (dst / MARKER).read_text().splitlines()
    for line in sums:
        name, digest = line.split()
        assert hashlib.sha256((dst / name).read_bytes()).hexdigest() == digest, name
    assert len(sums) == 3
    return int(value)


def rewritten(dst: Path, value: int) -> None:
    write(dst, value)
    assert read(dst) == value
    assert [p.name for p in dst.parent.iterdir()] == [dst.name]


def in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException):
        work()
        os._exit(0)
    os._exit(1)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying_at(step: int) -> None:
    """Die before the ``step``-th call that the interpreter announces as one to the file system."""
    left = step

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event.startswith(STATE_CHANGES):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(hook)


def died_at_each_step(work: Callable[[int], None]) -> Iterator[int]:
    """Run in a child that dies at its first call, in one that dies at its second, until a child lives to the end."""
    for step in range(1000):

        def dying(step: int = step) -> None:
            dying_at(step)
            work(step)

        code = exit_code(in_child(dying))
        assert code in (0, 9)
        yield step
        if code == 0:
            return
    raise AssertionError("it never ends")


def write_file(dst: Path, value: int) -> None:
    content = random.Random(value).randbytes(3000)
    with StagedFile(dst, overwrite=True) as path:
        path.write_bytes(value.to_bytes(8, "little") + content)


def read_file(dst: Path) -> int | None:
    if not dst.exists():
        return None
    value = int.from_bytes(dst.read_bytes()[:8], "little")
    assert dst.read_bytes()[8:] == random.Random(value).randbytes(3000)
    return value


@pytest.fixture(params=["exchanged", "renamed twice"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a file system that can swap two folders."""
    if request.param == "renamed twice":
        monkeypatch.setattr(staging, "_exchange", lambda one, other: False)


@pytest.mark.usefixtures("both")
def test_killed_at_every_step_of_a_replacement(tmp_path: Path) -> None:
    """A reader comes next, or a writer, to a copy of what is left."""
    dst, seen = tmp_path / "all/g", set()
    dst.parent.mkdir()
    write(dst, 0)
    for step in died_at_each_step(lambda step: write(dst, step + 1)):
        copied = shutil.copytree(dst.parent, tmp_path / f"{step}") / "g"
        value = read(copied)
        assert value in (step, step + 1)
        assert [p.name for p in copied.parent.iterdir()] == ["g"]
        seen.add(value == step + 1)
        rewritten(dst, step + 1)
    assert step > 20
    assert seen == {False, True}


def test_a_file_whose_writer_is_killed_at_every_step(tmp_path: Path) -> None:
    dst = tmp_path / "f"
    write_file(dst, 0)
    for step in died_at_each_step(lambda step: write_file(dst, step + 1)):
        assert read_file(dst) in (step, step + 1)
        write_file(dst, step + 1)
        assert read_file(dst) == step + 1
        assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert step > 3


def test_killed_at_every_step_of_a_first_writing(tmp_path: Path) -> None:
    dst = tmp_path / "g"
    for _ in died_at_each_step(lambda _: write(dst, 1)):
        assert read(dst) in (None, 1)
        rewritten(dst, 2)
        shutil.rmtree(dst)


@pytest.mark.usefixtures("both")
def test_interrupted_or_failed_at_every_step_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dst = tmp_path / "g"
    write(dst, 0)
    for name in ("_sync", "_exchange", "_vacant", "_take", "_same", "Path.rename"):
        for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")):
            for at in range(1, 9):
                owner, attribute = (Path, "rename") if name == "Path.rename" else (staging, name)
                original, calls = getattr(owner, attribute), 0

                def fails(*args, original=original, at=at, error=error):
                    nonlocal calls
                    calls += 1
                    if calls == at:
                        raise error
                    return original(*args)

                with monkeypatch.context() as patch:
                    patch.setattr(owner, attribute, fails)
                    with contextlib.suppress(KeyboardInterrupt, DataError, OSError):
                        write(dst, 1)
                if calls >= at and name in ("_sync", "_exchange", "Path.rename"):
                    assert [p.name for p in tmp_path.iterdir()] == ["g"], (name, error, at)
                assert read(dst) in (0, 1)
                rewritten(dst, 0)


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink()
    assert read(tmp_path / "real") == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_link_in_place_of_the_folder_under_construction_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dear").write_text("")
    (tmp_path / "g.partial").symlink_to("mine")
    refuses(ConfigError, r"g\.partial", write, tmp_path / "g", 1)
    assert (tmp_path / "mine" / "dear").exists()


def test_readers_remove_only_what_looks_like_atta(tmp_path: Path) -> None:
    write(tmp_path / "g", 1)
    (tmp_path / "g.partial").mkdir()
    (tmp_path / "g.partial" / "thesis.tex").write_text("")
    assert read(tmp_path / "g") == 1
    assert (tmp_path / "g.partial" / "thesis.tex").exists()


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    dst = tmp_path / "g"
    write(dst, 1)
    with Staging(dst, MARKER, overwrite=True) as folder:
        (folder.path / MARKER).write_text("2")
        assert read(dst) == 1  # a separate process would see the same
        assert (folder.path / MARKER).exists()
        refuses(ConfigError, "another process", write, dst, 3)
        refuses(ConfigError, "another process", Staging, dst, MARKER, overwrite=True)
    assert (dst / MARKER).read_text() == "2"


def test_folders_that_a_user_keeps_aside_stay(tmp_path: Path) -> None:
    write(tmp_path / "g.old", 7)
    for value in (1, 2):
        write(tmp_path / "g", value)
    assert read(tmp_path / "g.old") == 7


def test_all_is_forced_to_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "g", 1)
    forced: list[str] = []
    monkeypatch.setattr(staging, "_sync", lambda path: forced.append(str(path.relative_to(tmp_path))))
    exchange = staging._exchange

    def noted(one: Path, other: Path) -> bool:
        forced.append("exchange")
        return exchange(one, other)

    monkeypatch.setattr(staging, "_exchange", noted)
    write(tmp_path / "g", 2)
    names = {"a.npy", "nodes", "nodes/b.npy", "nodes/c.npy", MARKER}
    assert set(forced[: forced.index("exchange")]) == {"g.partial", *(f"g.partial/{name}" for name in names)}
    assert forced[forced.index("exchange") :] == ["exchange", "."]


def test_a_file_whose_writing_fails(tmp_path: Path) -> None:
    write_file(tmp_path / "f", 1)
    full = OSError(errno.ENOSPC, "No space left on device")
    for error, raised in ((KeyboardInterrupt(), KeyboardInterrupt), (full, DataError), (ValueError("x"), ValueError)):
        with pytest.raises(raised), StagedFile(tmp_path / "f", overwrite=True) as path:  # noqa: PT012
            path.write_text("half")
            refuses(ConfigError, "another process", StagedFile, tmp_path / "f", overwrite=True)
            raise error
        assert [p.name for p in tmp_path.iterdir()] == ["f"]
        assert read_file(tmp_path / "f") == 1


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refuses(ConfigError, "pipe: not a regular file", StagedFile, tmp_path / "pipe", overwrite=True)
    write_file(tmp_path / "f", 1)
    refuses(ConfigError, "cannot be written", StagedFile, tmp_path / "f/g")


NAMES = ["graph", "dataset", "snapshot", "figure", "profile", *sorted(EXPORTERS), "pyg-parts"]


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Writing past a limit in one file fails, as on a file system with such a limit (EFBIG)."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("disk")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", path], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def write_graph(path: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    with GraphWriter(path, overwrite=True) as out:
        x, y = rng.normal(size=(n, 8)).astype(np.float32), rng.integers(0, 3, n)
        splits = {"train": np.arange(n // 2), "val": np.arange(n // 2, n), "test": np.arange(0)}
        out.add_nodes("node", n, tables={"x": x, "y": y}, splits=splits)
        out.add_edges("node__to__node", rng.integers(0, n, 2 * n), rng.integers(0, n, 2 * n))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``few`` fits on the small disk in every format, ``many`` in none."""
    folder = tmp_path_factory.mktemp("sources")
    for name, count in (("few", 60), ("many", 20_000)):
        write_graph(folder / name, count)
        partition_graph(folder / name, folder / f"{name}-2p", parts=2, method="random")
    return folder


def writer(name: str, sources: Path) -> Callable[[str, Path], object]:
    if name == "graph":
        return lambda size, dst: write_graph(dst, Graph.open(sources / size).schema.node_counts["node"])
    if name == "dataset":
        return lambda size, dst: partition_graph(sources / size, dst, parts=2, method="random", overwrite=True)
    if name == "snapshot":
        tables = Tables(1 << 30)

        def snapshot(size: str, dst: Path) -> None:
            tables.delete("t")
            tables.create(MutableSpec("t", 60 if size == "few" else 20_000, "<f4", (8,)))
            tables.snapshot(dst, overwrite=True)

        return snapshot
    lengths = {"few": 1000, "many": 1 << 20}
    if name == "figure":

        def figure(size: str) -> Any:
            return SimpleNamespace(savefig=lambda path, **_: path.write_bytes(bytes(lengths[size])))

        return lambda size, dst: save_figure(figure(size), dst)
    if name == "profile":
        few = Profile(1, (), (HopSize(1.0),), {})
        return lambda size, dst: save_profile(dst, replace(few, measured={"by": "x" * lengths[size]}))
    source = "{}-2p" if name == "pyg-parts" else "{}"
    return lambda size, dst: export_graph(name, sources / source.format(size), dst, overwrite=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_disk_is_full(name: str, sources: Path, small_disk: Path) -> None:
    need("pyg" if name == "pyg-parts" else name)
    dst = target(name, small_disk)
    write = writer(name, sources)
    write("few", dst)
    before = files_of(small_disk)
    assert before
    try:
        refuses(DiskFullError, f"{dst}: no space left", write, "many", dst)
        assert files_of(small_disk) == before
        assert [p.name for p in small_disk.iterdir()] == [dst.name]
        gc.collect()  # the error's traceback holds torch's writer, which keeps its removed file open
        write("few", dst)
    finally:
        subprocess.run(["rm", "-rf", *small_disk.iterdir()], check=True)


@pytest.mark.parametrize("name", ["graph", "dataset", "snapshot"])
def test_a_file_is_larger_than_files_may_be(name: str, sources: Path, tmp_path: Path) -> None:
    write = writer(name, sources)
    write("few", tmp_path / "d")
    before = files_of(tmp_path)
    with files_up_to(10_000), pytest.raises(DiskFullError, match="d: no space left"):
        write("many", tmp_path / "d")
    assert files_of(tmp_path) == before
    if name == "dataset":
        assert Dataset.open(tmp_path / "d", verify=True)
