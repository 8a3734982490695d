"""Stops of a trainer and faults of workers: patterns, draws, and that whoever was stopped goes on."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError
from atta.train.dorylus.worker import WorkerFaults
from atta_bench.train.run import JITTER, StopPattern, Straggler, trainer_process
from atta_bench.train.strategies import values
from atta_bench.train.value import PriceList
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("3", "write TRAINER"),
        ("x:1/2", "write TRAINER"),
        ("3:1/2/3", "write TRAINER"),
        ("3:1..5/2", "write TRAINER"),
        ("-1:1/2", "write TRAINER"),
        ("3:2/2", "less than EVERY"),
        ("3:0/2", "more than 0"),
        ("3:1/9999", "at most an hour"),
    ],
)
def test_the_command_refuses_bad_patterns_in_one_line(text: str, word: str) -> None:
    answer = CliRunner().invoke(cli, ["bench", "strategies", "--data", "nowhere", f"--stop={text}"])
    assert isinstance(answer.exception, ConfigError)
    assert word in str(answer.exception)
    assert "\n" not in str(answer.exception)


def test_turns_follow_from_the_seed_and_stay_within_a_ninth() -> None:
    pattern = StopPattern.parse("3:0.9/1.0")
    turns = list(itertools.islice(pattern.turns(7), 200))
    assert turns == list(itertools.islice(pattern.turns(7), 200))
    assert turns != list(itertools.islice(pattern.turns(8), 200))
    assert all(abs(stopped - 0.9) <= 0.9 * JITTER for _, stopped in turns)
    assert all(abs(running - 0.1) <= 0.1 * JITTER for running, _ in turns)
    assert sum(stopped for _, stopped in turns) / 200 == pytest.approx(0.9, rel=0.03)


def test_a_trainer_is_found_stopped_and_continued_in_the_end() -> None:
    """Also when the block ends with an exception while it is stopped."""
    sleeping = "import time; time.sleep(60)"
    env = {"PATH": "/usr/bin:/bin", "RANK": "3"}
    # Words after the script make it look like a trainer.
    trainer = subprocess.Popen([sys.executable, "-c", sleeping, "atta.train.launching.worker"], env=env)
    try:
        me = psutil.Process().pid
        assert eventually(lambda: trainer_process([me], 3) is not None, 10)
        found = trainer_process([me], 3)
        assert found is not None
        assert found.pid == trainer.pid
        assert trainer_process([me], 2) is None
        straggler = Straggler(StopPattern(3, 30.0, 30.001), 0, lambda: found)
        with contextlib.suppress(KeyboardInterrupt), straggler:
            assert eventually(lambda: found.status() == psutil.STATUS_STOPPED, 10)
            raise KeyboardInterrupt
        assert straggler.stops == 1
        assert eventually(lambda: found.status() != psutil.STATUS_STOPPED, 10)
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()


def test_a_process_that_has_ended_is_left_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    child.wait()
    with Straggler(StopPattern(0, 0.01, 0.02), 0, lambda: process) as straggler:
        assert eventually(lambda: not straggler._thread.is_alive(), 10)
    assert straggler.stops == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "cannot be read"),
        ("rate=3", "cannot be read"),
        ("kill=many", "cannot be read"),
        ("kill=0.1,kill=0.2", "cannot be read"),
        ("delay=1", "cannot be read"),
        ("late=0.1", "cannot be read"),
        ("kill=1.0", "kill is out of range"),
        ("kill=nan", "kill is out of range"),
        ("delay=2:1", "delay is out of range"),
        ("late=2:1", "late is out of range"),
        ("link=0", "link is out of range"),
    ],
)
def test_bad_faults_of_workers(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        WorkerFaults.parse(text)


def test_messages_take_what_the_link_and_the_delay_take() -> None:
    faults = WorkerFaults.parse("link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2,seed=3")
    assert faults == WorkerFaults(20e6, (0.005, 0.05), 0.1, (0.1, 2.0), 3)
    worker, same, other = faults.of_worker(0, 5), faults.of_worker(0, 5), faults.of_worker(1, 5)
    drawn = [worker.seconds(250_000) for _ in range(50)]  # 0.1 s on the link
    assert drawn == [same.seconds(250_000) for _ in range(50)]
    assert drawn != [other.seconds(250_000) for _ in range(50)]
    assert all(0.105 <= seconds <= 0.15 for seconds in drawn)
    assert WorkerFaults.parse("kill=0").of_worker(0, 0).seconds(10**9) == 0


def test_cost_and_value_of_a_run() -> None:
    prices = PriceList.parse({"instances": {"m": 3600.0}, "worker": {"per_ms": 0.001, "per_request": 0.5}}, "prices")
    epochs = [
        {"seconds": 2.0, "test_accuracy": None, "pipeline": {"worker_s": 1.0, "tasks": 4}},
        {"seconds": 3.0, "test_accuracy": 0.8, "pipeline": {"worker_s": 2.0, "tasks": 6}},
        {"seconds": 5.0, "test_accuracy": 0.9, "pipeline": {}},
    ]
    whole = values(prices, 2, epochs)
    assert whole == {"cost": 20 + 3 + 5, "workers_cost": 8, "value": pytest.approx(1 / (10 * 28))}
    assert values(prices, 2, epochs, 0.75)["value"] == pytest.approx(1 / (5 * 18))
    assert values(prices, 2, epochs, 0.95) == {}
