"""What processes leave to others: lines of logs, temporary folders, held addresses, files of all kinds."""

from __future__ import annotations

import fcntl
import io
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atta.errors import DataError
from atta.observe.logs import LogSink
from atta.observe.machine.held import HeldAddresses, OwnFolder
from atta.train.checkpoint.files import seal
from atta.wire.parts import read_toml
from tests.churn import opened
from tests.forking import in_fork
from tests.fuzz.files import Files, sealed
from tests.fuzz.targets import kept
from tests.waiting import connected, eventually


def told(count: int) -> str:
    return f"<{count} left out>"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def sent(ours: int, sink: LogSink) -> str:
    """What has come, now that all is sent."""
    assert sink.drain(10)
    return os.read(ours, 1 << 16).decode()


def test_lines_arrive_in_order_and_what_a_terminal_would_obey_is_escaped(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    sink = LogSink(theirs, told=told)
    for number in range(50):
        print(f"line {number} ü", file=sink, flush=True)
    assert sent(ours, sink) == "".join(f"line {number} ü\n" for number in range(50))
    sink.write("job=\x1b[2J \x9b1m\u202e\udcff\r ü\n\tin line 3\n")
    assert sent(ours, sink) == r"job=\x1b[2J \x9b1m\u202e\udcff\r ü" + "\n\tin line 3\n"
    assert sink.dropped == 0


def test_a_pipe_that_nobody_reads_costs_lines_and_not_time(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    sink, written, found = LogSink(theirs, told=told, limit_bytes=10_000), list[str](), ""

    def fill() -> bool:
        """Write more lines than the queue holds, until the pipe is full and the rest must wait."""
        for _ in range(1000):
            written.append(f"{len(written):07d}\n")
            sink.write(written[-1])
        return not sink.drain(0.05)

    writer = threading.Thread(target=lambda: eventually(fill), daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
    assert sink.dropped > 0
    assert not sink.drain(0.01)

    def read_all() -> bool:
        nonlocal found
        found += os.read(ours, 1 << 16).decode()
        return sink.drain(0)

    assert eventually(read_all)
    lost = sink.dropped
    sink.write("the last\n")
    lines = (found + sent(ours, sink)).splitlines()  # and the number of lines that were left out before it
    kept = [line for line in lines if line.isdecimal()]
    assert kept == sorted(set(kept))  # each once, in order
    assert len(kept) == len(written) - lost
    assert lines[-1] == "the last"
    assert sum(int(line.strip("<").split()[0]) for line in lines if line.startswith("<")) == lost


def test_a_full_disk_or_a_missing_reader_raises_nothing() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    for lost in (os.open("/dev/full", os.O_WRONLY), theirs):
        sink = LogSink(lost, told=told)
        sink.write("lost\n")
        assert sink.drain(10)
        assert sink.dropped == 1
        os.close(lost)


def test_a_file_that_does_not_wait_is_waited_for(pipe: tuple[int, int]) -> None:
    ours, theirs = pipe
    os.set_blocking(theirs, False)
    sink = LogSink(theirs, told=told)
    sink.write("x" * 200_000)
    found = 0
    while found < 200_000:
        found += len(os.read(ours, 1 << 16))
    assert sink.drain(10)
    assert sink.dropped == 0


HOLDER = """
import sys
from atta.observe.machine.held import OwnFolder
folder = OwnFolder("atta-test-")
print(folder.name, flush=True)
sys.stdin.read()
"""

FORKING = """
import os, sys
from pathlib import Path
from atta.observe.machine.held import OwnFolder
folder = OwnFolder("atta-test-")
if not (child := os.fork()):
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert Path(folder.name).is_dir()
print(folder.name)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    os.utime(folder, (0, 0))
    return folder


def test_what_a_killed_process_leaves_is_removed_by_the_next(temporary: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True) as holder:
        held = Path(holder.stdout.readline().strip())
        stranger = aged(Path(tempfile.mkdtemp(prefix="atta-test-")))
        with OwnFolder("atta-test-") as mine:
            aged(held)
            with OwnFolder("atta-test-"):
                assert held.exists(), "its process lives"
            holder.kill()
            holder.wait()
            with OwnFolder("atta-test-"):
                assert not held.exists()
            assert Path(mine).exists()
        assert not Path(mine).exists()
        assert stranger.exists(), "nobody has ever locked it"


def test_a_young_folder_may_not_be_locked_yet(temporary: Path) -> None:
    young = temporary / "atta-test-young"
    young.mkdir()
    (young / "lock").touch()
    with OwnFolder("atta-test-"):
        assert young.exists()
    aged(young)
    with OwnFolder("atta-test-"):
        assert not young.exists()


def test_a_forked_child_leaves_the_folder(temporary: Path) -> None:
    folder = OwnFolder("atta-test-")
    assert in_fork(folder.cleanup)
    assert Path(folder.name).is_dir()
    folder.cleanup()
    folder.cleanup()
    assert not Path(folder.name).exists()


@pytest.mark.usefixtures("temporary")
def test_only_the_process_of_a_folder_removes_it_at_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()


def test_the_kernel_gives_their_ports_to_nobody() -> None:
    """Of some 28,000 ports a hundredth is held: of 2000 others, some twenty would be among them."""
    with HeldAddresses(300) as held:
        others = [*itertools.islice(opened(), 2000)]
        taken = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
    assert len(set(held.ports)) == 300
    assert not taken & {*held.ports}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "0.0.0.0"])
def test_servers_come_and_go_there(host: str) -> None:
    with HeldAddresses(2, host) as held:
        assert len({*held.addresses}) == 2
        assert held.addresses[0] == (f"[{host}]:{held.ports[0]}" if ":" in host else f"{host}:{held.ports[0]}")
        reached = "127.0.0.1" if host == "0.0.0.0" else host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for _ in range(2):
            assert not connected(reached, held.ports[0])
            server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
            assert server.add_insecure_port(held.addresses[0]) == held.ports[0]
            server.start()
            assert connected(reached, held.ports[0])
            with pytest.raises(OSError, match="in use"):  # one server at a time
                socket.create_server((reached, held.ports[0]), family=family)
            server.stop(None).wait()


def test_ports_are_held_at_all_addresses_until_they_are_let_go() -> None:
    """A server that listens at all of them, as the store of torch, meets nobody at another address."""
    with HeldAddresses() as held:
        for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0"):
            with socket.socket() as plain, pytest.raises(OSError, match="in use"):
                plain.bind((host, held.ports[0]))
    with socket.socket() as plain:
        plain.bind(("0.0.0.0", held.ports[0]))


KINDS = (
    "best", "checkpoint", "cluster.toml", "graph.json", "log", "manifest.json", "profile", "rank",
    "store.json", "tables.log", "token", "tokens.toml", "version.json", "votes",
)  # fmt: skip


SEALED, SAVED = ("graph.json", "manifest.json", "store.json", "version.json", "votes"), ("best", "checkpoint", "rank")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("fuzz") / "files")


def test_the_corpus_is_read_or_refused(files: Files) -> None:
    inputs = [*kept("files")]
    assert len(inputs) >= 3
    for kind, data in inputs:
        files.again(kind, data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
def test_a_changed_file_is_read_or_refused(files: Files, kind: str, seed: int) -> None:
    assert files.changed(kind, random.Random(seed))


def test_every_kind_is_covered(files: Files) -> None:
    assert sorted(files.kinds) == sorted(KINDS)


def entry(name: str, value: Any) -> Callable[[bytes], bytes]:
    """Another value under a right checksum."""
    return lambda good: sealed({**{k: v for k, v in json.loads(good).items() if k != "checksum"}, name: value})


def saved(name: str, value: Any) -> Callable[[bytes], bytes]:
    """Another value in a checkpoint, under a right checksum."""

    def change(good: bytes) -> bytes:
        content = io.BytesIO()
        torch.save({**torch.load(io.BytesIO(good), weights_only=True), name: value}, content)
        return seal(content.getvalue())

    return change


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("store.json", entry("id", "zz"), "does not tell the id"),
        ("store.json", entry("id", 3), "does not tell the id"),
        ("manifest.json", entry("provenance", [1]), "does not say how it was made"),
        ("graph.json", entry("provenance", [1]), "does not say how it was made"),
        ("manifest.json", entry("quality", "x"), "does not say how it was made"),
        *((kind, entry("version", 99), "format version 99; this release reads version") for kind in SEALED),
        ("checkpoint", saved("model", {"w": 3}), "no tensor|does not fit"),
        ("checkpoint", saved("optimizer", "x"), "does not fit"),
        ("checkpoint", saved("shape", 3), "its model"),
        ("best", saved("embedding_ids", None), "does not tell whose embeddings"),
        ("best", saved("embedding_ids", [3, 5, 9]), "does not tell whose embeddings"),
        ("best", saved("embedding_ids", {"author": 3}), "no tensor"),
        *((kind, saved("version", 1), "checkpoint version 1; this release reads") for kind in SAVED),
        (
            "log",
            lambda good: good[:8] + (1).to_bytes(4, "little") + good[12:],
            "version 1; this release reads version 2",
        ),
    ],
)
def test_a_wrong_entry_is_an_error(files: Files, kind: str, change: Callable[[bytes], bytes], words: str) -> None:
    file = files.kinds[kind]
    good = file.path.read_bytes()
    try:
        file.path.write_bytes(change(good))
        with pytest.raises(DataError, match=words):
            file.read()
    finally:
        file.path.write_bytes(good)


def test_values_that_are_nested_too_deeply_are_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("a = " + "[" * 5000)
    with pytest.raises(DataError, match="nested too deeply"):
        read_toml(tmp_path / "c.toml")
