"""How trainers are started: machines, signs of life, and what follows when they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.errors import AttaError, ConfigError, DataError, NonFiniteError, TrainerLostError, UnavailableError
from atta.observe.lastwords import record_of
from atta.observe.machine.threads import YIELDING, yielding_thread
from atta.partition import GraphWriter, partition_graph
from atta.train import Nodes, TrainConfig
from atta.train.launching import worker
from atta.train.launching.failure import Lives, failure_file, first_cause
from atta.train.launching.launch import _checkpoints
from atta.train.launching.trainers import Processes, Silence, _Trainers, pulse_file, signs_of_life
from atta.train.launching.worker import compute_threads, main

NODE = Nodes(2, 1, "127.0.0.1:29400")


def test_one_run_at_a_time_writes_a_folder_of_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    run = TrainConfig(data="d", checkpoint=str(folder), resume=True)
    with _checkpoints(run, Nodes()):
        assert capsys.readouterr().err == f"atta: {folder}: no checkpoint yet: begins anew\n"
        words = rf"run: another process is writing it \(process {os.getpid()}\)"
        with pytest.raises(ConfigError, match=words), _checkpoints(run, Nodes()):
            pass
        assert folder.is_dir()
        with _checkpoints(run, NODE):  # the first machine has looked
            pass
    assert not folder.exists(), "nothing was written"
    code = "import sys, time; from pathlib import Path; from atta.partition.disk.staging import held\n"
    code += "with held(Path(sys.argv[1])):\n    print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        words = rf"run: another process is writing it \(process {other.pid}\)"
        with pytest.raises(ConfigError, match=words), _checkpoints(run, Nodes()):
            pass
        other.kill()
        other.wait()
    (folder / "checkpoint.pt").write_bytes(b"")
    capsys.readouterr()
    with _checkpoints(run, Nodes()):  # a run that was killed holds nothing
        assert capsys.readouterr().err == ""
    assert folder.is_dir()


def test_nonsense_is_refused_and_trainers_are_divided_among_the_nodes() -> None:
    for settings, word in (
        ((0, 0, None), "--nnodes 0"),
        ((2, 2, "a:1"), "--node-rank 2"),
        ((2, -1, "a:1"), "--node-rank -1"),
        ((2, 0, None), "--rdzv-endpoint"),
        ((1, 0, "a:1"), "--nnodes"),
        ((2, 0, "a"), "--rdzv-endpoint 'a' .* host:port, such as 10"),
        ((2, 0, "a:0"), "--rdzv-endpoint a:0: name a port"),
        ((2, 0, "a:65536"), "host:port"),
        ((2, 0, ":1"), "host:port"),
        ((2, 0, "::1:29400"), r"\[::1\]:29400"),
    ):
        with pytest.raises(ConfigError, match=word):
            Nodes(*settings)
    assert Nodes().trainers_here(TrainConfig(data="d", trainers=3)) == 3
    assert NODE.trainers_here(TrainConfig(cluster="c", trainers=6)) == 3
    with pytest.raises(ConfigError, match="which --nnodes 2 must divide"):
        NODE.trainers_here(TrainConfig(cluster="c", trainers=3))
    with pytest.raises(ConfigError, match="--cluster"):
        NODE.trainers_here(TrainConfig(data="d", trainers=4))


def test_what_a_run_would_refuse_is_not_explained(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "g") as out:
        out.add_nodes(
            "node", 8, tables={"x": np.eye(8, dtype=np.float32), "y": np.arange(8) % 2}, splits={"train": [0, 1]}
        )
        out.add_edges("node__to__node", np.arange(8), np.arange(8)[::-1])
    partition_graph(tmp_path / "g", tmp_path / "p", parts=2, method="random")
    cluster = tmp_path / "c.toml"
    cluster.write_text('[[daemon]]\npart = 0\naddress = "a:1"\n')
    for words, told in (
        ("--data {}/p --strategy exchange --trainers 4 --trainers-per-server 1", "make 4 servers, the dataset has 2 "),
        (
            "--cluster {}/c.toml --strategy exchange --trainers 2 --trainers-per-server 1",
            "make 2 servers, the dataset has 1 ",
        ),
        ("--data {}/p --early-stop val_f1:3", "unknown metric of --task classes 'f1'"),
        ("--data {}/p --target paper", "--target"),
        ("--data {}/none", "no such folder"),
        ("--data {}/p --nnodes 2 --rdzv-endpoint a:1", "--nnodes: give --cluster"),
    ):
        with pytest.raises(AttaError, match=told):
            cli.main(["train", *words.format(tmp_path).split(), "--explain"], standalone_mode=False)
    shown = CliRunner().invoke(cli, ["train", "--data", str(tmp_path / "p"), "--explain"])
    assert shown.stdout == "minibatch: sampled batches per trainer\n"


def test_a_trainer_is_gone_before_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DDP is the last to let go of the group, torch may wait forever."""
    there, at_the_end = list[Any](), list[Any]()

    class Trainer:
        def __init__(self, *_: Any) -> None:
            self.hook = self  # as DDP, which only the collector of cycles frees
            there.append(weakref.ref(self))

        def fit(self) -> list[str]:
            return ["epoch"]

    monkeypatch.setattr(worker, "STRATEGIES", {"minibatch": SimpleNamespace(trainer=Trainer)})
    monkeypatch.setattr(worker, "connect_handed", nullcontext)
    monkeypatch.setattr(worker, "compute_threads", lambda _: torch.get_num_threads())
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: at_the_end.append(there[0]()))
    assert worker.run(TrainConfig(cluster="c", device="cpu"), []) == ["epoch"]
    assert at_the_end == [None]


def test_gloo_is_told_the_interface_for_the_time_being(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with NODE.interface_named():
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    with Nodes().interface_named():
        assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")  # the user's choice wins
    with NODE.interface_named():
        assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    nowhere = Nodes(2, 0, "no-such-host.invalid:1")
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid:1"), nowhere.interface_named():
        raise AssertionError("must not get here")


def test_threads_of_trainers_spin_little_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place: Any = SimpleNamespace(address="h:1", run="r")
    trainers, given = _Trainers(tmp_path, place, Nodes(), range(1), 0), list[str | None]()
    monkeypatch.setattr(trainers, "start", lambda _rank, _words, told: given.append(told.get("GOMP_SPINCOUNT")))
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    trainers.start_trainer(0)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    trainers.start_trainer(0)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    trainers.start_trainer(0)
    assert given == ["10000", "7", None]


LIMIT, START, PAUSE = 5.0, 20.0, 0.5


def test_only_the_silent_one_is_given_up() -> None:
    silence = Silence(LIMIT, START, PAUSE)
    given_up = {}
    for look in range(60):
        signs = {0: 1 + look, 1: 1 + min(look, 10), 2: 0, 3: 0 if look > 30 else 1 + look}
        for rank, seconds in silence.look(look * PAUSE, signs).items():
            given_up.setdefault(rank, (look * PAUSE, seconds))
    assert given_up == {1: (5.0 + LIMIT, LIMIT), 2: (START, START)}  # its last sign came at 5 s
    assert Silence(None).look(1e9, {0: 1}) == {}


@given(st.lists(st.floats(0.01, 3600.0), min_size=1, max_size=50))
def test_time_in_which_nobody_looked_is_not_silence(pauses: list[float]) -> None:
    """A launcher that was stopped finds trainers as they were: each of its looks counts two pauses at most."""
    silence = Silence(LIMIT, START, PAUSE)
    now, silent = 0.0, 0.0
    silence.look(now, {0: 7})
    for pause in pauses:
        now, silent = now + pause, silent + min(pause, 2 * PAUSE)
        found = silence.look(now, {0: 7})
        assert (0 in found) == (silent >= LIMIT) or abs(silent - LIMIT) < 1e-6


def test_signs_come_from_a_thread_and_end_with_the_block(tmp_path: Path) -> None:
    file, seen = pulse_file(tmp_path, 3), set[int]()
    with signs_of_life(tmp_path, 3, 0.1):
        until = time.monotonic() + 30
        while len(seen) < 3:
            assert time.monotonic() < until
            seen |= {file.stat().st_mtime_ns} if file.exists() else set()
            time.sleep(0.005)
        assert file.read_text() == str(os.getpid())
    assert not file.exists()


def test_processes_end_with_the_block_and_a_stopped_one_can_be_killed() -> None:
    with Processes() as processes:
        for number in range(2):
            processes.start(number, ["timeit", "-n", "1", "import time; time.sleep(60)"], {})
        stopped, other = (processes.running[number] for number in range(2))
        processes.send(signal.SIGSTOP, [0])
        processes.send(signal.SIGKILL, [0, 7])
        assert stopped.wait(30) == -9
        assert processes.ended() == {0: -9}
        assert processes.ended() == {}
    assert other.poll() == -9


GLOO = "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26540: Connection reset by peer"


def record(folder: Path, rank: int, error: str | Exception, message: str, time: float) -> None:
    """``error``: an exception, or the name of a class."""
    found = record_of(error) if isinstance(error, Exception) else {"kind": error, "message": message, "fields": {}}
    failure_file(folder, rank).write_text(json.dumps({**found, "time": time, "traceback": "tb"}))


LOST, GONE = ("RuntimeError", GLOO), (UnavailableError("h:1", "gone"), "")
LATE = "RuntimeError", "[/build/gloo/unbound_buffer.cc:86] Timed out waiting 3000ms for recv operation to complete"
ROOM = (
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 25554944 bytes. Error code 12 (Cannot allocate)"
)
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7 GiB"
FINITE, TERM, KILL = NonFiniteError(1, 4, 0, "rows"), -signal.SIGTERM, -signal.SIGKILL
ELSEWHERE = "trainers 0, 1 lost those of another machine: the cause is reported there"
CAUSES: list[tuple[dict[int, Any], dict[int, int], dict[str, Any], type[Exception], str]] = [
    ({0: LOST, 1: (DataError("a.pt", "is damaged"), "")}, {0: 1, 1: 1}, {}, DataError, "a.pt: is damaged"),
    ({1: LOST, 0: GONE}, {0: 1, 1: 1}, {}, UnavailableError, "h:1: gone"),
    ({1: (FINITE, "")}, {1: 1}, {}, NonFiniteError, str(FINITE)),
    *(({0: LOST}, {0: 1, 1: -n, 2: TERM}, {}, TrainerLostError, f"trainer 1 was killed by {n.name}")
      for n in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)),
    ({0: LOST}, {0: 1, 1: TERM}, {}, TrainerLostError, "trainer 1 was stopped by SIGTERM"),
    *(({0: LOST, 1: GONE, 2: words}, {0: 1, 1: 1, 2: 1}, {}, AttaError, f"trainer 2 ran out of memory{asked} take")
      for words, asked in ((("RuntimeError", ROOM), " when it asked for 25554944 bytes more;"),
                           (("OutOfMemoryError", CUDA), " when it asked for 2.00 GiB more;"),
                           (("MemoryError", ""), ";"), (("RuntimeError", "std::bad_alloc"), ";"))),
    ({0: LOST, 2: ("ZeroDivisionError", "first"), 1: ("ValueError", "second")}, {0: 1, 1: 1, 2: 1}, {}, AttaError,
     "trainer 2 failed: ZeroDivisionError: first"),
    # 0 and 2 waited for 1, which the launcher has ended, or for 1 and 3, which still ran.
    ({0: LATE, 2: LATE}, {0: 1, 2: 1, 1: TERM}, {"ranks": range(3)}, TrainerLostError,
     "trainer 1 did not answer the others in time (--rank-timeout)"),
    ({0: LATE, 2: LATE}, {0: 1, 2: 1, 1: TERM}, {"ranks": range(4)}, TrainerLostError, "trainers 1, 3 did not answer"),
    ({0: LATE, 2: LATE}, {0: 1, 2: 1, 1: KILL}, {"silent": {1: 3.04}, "ranks": range(3)}, TrainerLostError,
     "trainer 1 gave no sign of life for 3.0 s: stopped, or cut off?"),
    ({1: LOST, 0: ("DistBackendError", "gone")}, {0: 1, 1: 1}, {"others": True}, AttaError, ELSEWHERE),
    ({1: LOST}, {0: 1, 1: KILL}, {"others": True}, TrainerLostError, "trainer 1 was killed"),
    ({1: LOST, 0: ("ZeroDivisionError", "")}, {0: 1, 1: 1}, {"others": True}, AttaError, "trainer 0 failed: ZeroDiv"),
    ({0: None}, {3: 7}, {}, AttaError, "trainer 3 ended with exit code 7"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "codes", "more", "kind", "said"), CAUSES, ids=[case[-1] for case in CAUSES])
def test_the_cause_is_named_among_what_follows_from_it(
    tmp_path: Path, records: dict[int, Any], codes: dict[int, int], more: dict[str, Any], kind: Any, said: str
) -> None:
    for place, (rank, words) in enumerate(records.items()):
        if words is None:
            failure_file(tmp_path, rank).write_text('{"kind": "Val')  # stopped while it was writing
        else:
            record(tmp_path, rank, *words, float(place))
    error = first_cause(tmp_path, codes, **more)
    assert type(error) is kind
    assert str(error).startswith(said)
    for told in (words[0] for words in records.values() if words is not None and type(words[0]) is kind):
        assert vars(error).items() >= {k: v for k, v in vars(told).items() if k != "__notes__"}.items()


def test_a_trainer_writes_down_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.train.launching.worker._prepare", lambda: None)
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "task.json").write_text(json.dumps({"config": {"data": "x", "lr": -1}, "addresses": []}))
    assert main(str(tmp_path)) == 1
    error = first_cause(tmp_path, {1: 1})
    assert type(error) is ConfigError
    assert "--lr -1" in str(error)


def test_signals_and_unknown_errors_start_a_trainer_again_up_to_the_limit() -> None:
    lives = Lives(range(2), most=2)
    assert [lives.again(1, error) for error in (None, "RuntimeError", None)] == [True, True, False]
    assert lives.again(0, None), "each trainer has its own limit"
    assert lives.restarts == {0: 1, 1: 2}
    assert not Lives([0], most=0).again(0, None)
    for error in ("ConfigError", "DataError", "RestartedError", "UnknownNameError", "NonFiniteError"):
        lives = Lives([0], most=2)  # an error of Atta would come again
        assert not lives.again(0, error)
        assert lives.restarts == {0: 0}


def test_trainers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(6))
    for asked in ("3", "", "0", "-2", "two"):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert [compute_threads(trainers) for trainers in (1, 4)] == ([3, 3] if asked == "3" else [6, 1])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness per thread")
def test_a_yielding_thread_leaves_others_alone() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with yielding_thread("atta-test") as threads:
        found = threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()
    assert found == max(before, YIELDING)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


PROGRAM = """
import signal, sys, time
from atta.observe.machine.ending import heed_interrupts

class Dies:
    def __del__(self):
        {what}

heed_interrupts()
dies = Dies()
del dies
try:
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_in_a_destructor_is_repeated_and_other_errors_are_printed() -> None:
    later = "signal.alarm(1); signal.signal(signal.SIGALRM, signal.default_int_handler); 1 / 0"
    for what, said in (("signal.raise_signal(signal.SIGINT)", ""), (later, "ZeroDivisionError")):
        program = [sys.executable, "-c", PROGRAM.format(what=what)]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.stdout, ended.returncode) == ("interrupted\n", 0)
        assert said in ended.stderr
        assert bool(ended.stderr) == bool(said)
