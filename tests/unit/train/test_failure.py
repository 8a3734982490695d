"""Several trainers fail at once: the message must name the first one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from atta.errors import ConfigError, DataError, NonFiniteError, TrainerLostError, UnavailableError
from atta.observe.lastwords import record_of
from atta.train.launching.failure import failure_file, first_cause
from atta.train.launching.worker import main

GLOO = "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26540: Connection reset by peer"


def record(folder: Path, rank: int, error: str | Exception, message: str, time: float) -> None:
    """``error``: an exception, or the name of a class."""
    found = record_of(error) if isinstance(error, Exception) else {"kind": error, "message": message, "fields": {}}
    failure_file(folder, rank).write_text(json.dumps({**found, "time": time, "traceback": "tb"}))


def test_attas_own_errors_keep_their_type(tmp_path: Path) -> None:
    record(tmp_path, 0, "RuntimeError", GLOO, 1.0)
    record(tmp_path, 1, DataError("a.pt", "is damaged"), "", 2.0)
    error = first_cause(tmp_path, {0: 1, 1: 1})
    assert isinstance(error, DataError)
    assert (error.path, error.cause) == ("a.pt", "is damaged")
    assert "In trainer 1" in error.__notes__[0]


def test_a_daemon_that_is_gone_is_named(tmp_path: Path) -> None:
    record(tmp_path, 0, UnavailableError("h:1", "gone"), "", 2.0)
    record(tmp_path, 1, "RuntimeError", GLOO, 1.0)
    error = first_cause(tmp_path, {0: 1, 1: 1})
    assert isinstance(error, UnavailableError)
    assert error.peer == "h:1"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
def test_a_killed_trainer_comes_before_broken_connections(tmp_path: Path, number: signal.Signals) -> None:
    record(tmp_path, 0, "RuntimeError", GLOO, 1.0)
    error = first_cause(tmp_path, {0: 1, 1: -number, 2: -signal.SIGTERM})
    assert str(error).startswith(f"trainer 1 was killed by {number.name}")


def test_a_stopped_trainer_comes_before_broken_connections(tmp_path: Path) -> None:
    record(tmp_path, 0, "RuntimeError", GLOO, 1.0)
    assert str(first_cause(tmp_path, {0: 1, 1: -signal.SIGTERM})) == "trainer 1 was stopped by SIGTERM"


@pytest.mark.parametrize(
    ("kind", "message", "asked"),
    [
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
            "25554944 bytes. Error code 12 (Cannot allocate memory)",
            " when it asked for 25554944 bytes more;",
        ),
        (
            "OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7 GiB",
            " when it asked for 2.00 GiB more;",
        ),
        ("MemoryError", "", ";"),
        ("RuntimeError", "std::bad_alloc", ";"),
    ],
)
def test_want_of_memory_is_named_as_such(tmp_path: Path, kind: str, message: str, asked: str) -> None:
    record(tmp_path, 0, "RuntimeError", GLOO, 1.0)
    record(tmp_path, 1, UnavailableError("h:1", "gone"), "", 2.0)
    record(tmp_path, 2, kind, message, 3.0)
    assert str(first_cause(tmp_path, {0: 1, 1: 1, 2: 1})).startswith(f"trainer 2 ran out of memory{asked} take smaller")


def test_the_earliest_of_other_errors(tmp_path: Path) -> None:
    record(tmp_path, 0, "RuntimeError", GLOO, 1.0)
    record(tmp_path, 1, "ValueError", "second", 3.0)
    record(tmp_path, 2, "ZeroDivisionError", "first", 2.0)
    assert str(first_cause(tmp_path, {0: 1, 1: 1, 2: 1})) == "trainer 2 failed: ZeroDivisionError: first"


def test_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "failure-0.json").write_text('{"kind": "Val')  # stopped while it was writing
    assert str(first_cause(tmp_path, {3: 7})) == "trainer 3 ended with exit code 7"


def test_a_trainer_writes_down_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atta.train.launching.worker._prepare", lambda: None)
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "task.json").write_text(json.dumps({"config": {"data": "x", "lr": -1}, "addresses": []}))
    assert main(str(tmp_path)) == 1
    error = first_cause(tmp_path, {1: 1})
    assert type(error) is ConfigError
    assert "--lr -1" in str(error)


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    """0 and 2 waited for 1, which the launcher has ended, or for 1 and 3, which still ran."""
    late = "[/build/gloo/transport/tcp/unbound_buffer.cc:86] Timed out waiting 3000ms for recv operation to complete"
    for rank in (0, 2):
        record(tmp_path, rank, "RuntimeError", late, 1.0)
    codes = {0: 1, 2: 1, 1: -signal.SIGTERM}
    error = first_cause(tmp_path, codes, ranks=range(3))
    assert isinstance(error, TrainerLostError)
    assert str(error) == "trainer 1 did not answer the others within --rank-timeout"
    assert str(first_cause(tmp_path, codes, ranks=range(4))).startswith("trainers 1, 3 did not answer")
    error = first_cause(tmp_path, {**codes, 1: -signal.SIGKILL}, silent={1: 3.04}, ranks=range(3))
    assert isinstance(error, TrainerLostError)
    assert str(error) == "trainer 1 gave no sign of life for 3.0 s: stopped, or cut off?"


@pytest.mark.parametrize("error", [NonFiniteError(1, 4, 0, "rows"), NonFiniteError(None, 4, None, "losses")])
def test_numbers_that_are_not_finite_keep_their_type(tmp_path: Path, error: NonFiniteError) -> None:
    """So the launcher knows that another attempt would fail in the same way."""
    record(tmp_path, 1, error, "", 1.0)
    found = first_cause(tmp_path, {1: 1})
    assert isinstance(found, NonFiniteError)
    assert (str(found), vars(found)["epoch"]) == (str(error), 4)


def test_what_happened_on_another_machine_is_told_there(tmp_path: Path) -> None:
    record(tmp_path, 1, "RuntimeError", GLOO, 1.0)
    record(tmp_path, 0, "DistBackendError", "peer is gone", 2.0)
    expected = "trainers 0, 1 lost those of another machine: the cause is reported there"
    assert str(first_cause(tmp_path, {0: 1, 1: 1}, others=True)) == expected
    assert str(first_cause(tmp_path, {0: 1, 1: -signal.SIGKILL}, others=True)).startswith("trainer 1 was killed")
    record(tmp_path, 0, "ZeroDivisionError", "by zero", 3.0)
    assert "ZeroDivisionError" in str(first_cause(tmp_path, {0: 1, 1: 1}, others=True))
