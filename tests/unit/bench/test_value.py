"""Cost and value of runs, as in the published tables of Dorylus; stops of trainers and faults of workers."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.train.dorylus.worker import WorkerFaults
from atta_bench.train.run import JITTER, StopPattern, Straggler, trainer_process
from atta_bench.train.strategies import values
from atta_bench.train.value import PriceList, value_of
from tests.waiting import eventually

C5, C5N, C5N4, P3 = "c5.2xlarge", "c5n.2xlarge", "c5n.4xlarge", "p3.2xlarge"
# Base instances of c5 and c5n cost 0.085 and 0.108 per hour (section 7.2); 2xlarge is four of them, 4xlarge eight.
# A Lambda costs 0.01125 per hour and 0.20 per million requests (section 7.2).
PRICES = {
    "instance": C5N,
    "instances": {C5: 4 * 0.085, C5N: 4 * 0.108, C5N4: 8 * 0.108, P3: 3.06},
    "worker": {"per_ms": 0.01125 / 3.6e6, "per_request": 0.20 / 1e6},
}
LIST = PriceList.parse(PRICES, "the paper")

# Tables 3 and 4, (model, graph): (servers, their instance); mode -> (seconds, cost as printed).
TABLE_4 = {
    ("gcn", "reddit-small"): (2, C5, {"dorylus": (860.6, "0.20"), "cpu": (1005.4, "0.19"), "gpu": (162.9, "0.28")}),
    ("gcn", "reddit-large"): (12, C5N, {"dorylus": (1020.1, "1.69"), "cpu": (1290.5, "1.85"), "gpu": (324.9, "3.31")}),
    ("gcn", "amazon"): (8, C5N, {"dorylus": (512.7, "0.79"), "cpu": (710.2, "0.68"), "gpu": (385.3, "2.62")}),
    ("gcn", "friendster"): (32, C5N4, {"dorylus": (1133.3, "13.8"), "cpu": (1990.8, "15.3"), "gpu": (1490.4, "40.5")}),
    ("gat", "reddit-small"): (10, C5, {"dorylus": (496.3, "1.15"), "cpu": (1270.4, "1.20"), "gpu": (130.9, "1.11")}),
    ("gat", "amazon"): (12, C5N, {"dorylus": (853.4, "2.67"), "cpu": (2092.7, "3.01"), "gpu": (1039.2, "10.60")}),
}
TABLE_5 = [  # (seconds, cost as printed, servers, instance); DGL alone has one machine
    *((566.33, "0.480", 1, P3), (33.64, "0.028", 1, P3)),  # reddit-small: DGL with sampling and without
    *((308.27, "2.096", 8, P3), (842.49, "5.728", 8, P3), (1560.66, "1.498", 8, C5N)),  # amazon: GPU, that, AliGraph
]


def close(computed: float, printed: str) -> bool:
    """Within 1 % of a printed number, which was rounded or cut to its last digit."""
    digit = 10.0 ** -len(printed.partition(".")[2])
    return abs(computed - float(printed)) <= max(0.01 * float(printed), digit)


def test_costs_of_tables_4_and_5_follow_from_prices() -> None:
    of_table_4 = [
        (*found[mode], n, P3 if mode == "gpu" else instance)
        for n, instance, found in TABLE_4.values()
        for mode in ("cpu", "gpu")
    ]
    for seconds, printed, count, instance in (*of_table_4, *TABLE_5):
        assert close(LIST.cost(seconds, count, instance=instance), printed), (seconds, instance)


def values_of(model: str, graph: str) -> dict[str, float]:
    return {mode: value_of(seconds, float(cost)) for mode, (seconds, cost) in TABLE_4[model, graph][2].items()}


def test_values_are_those_of_the_paper() -> None:
    """Section 7.4: GAT on Amazon has 2.75 times the value of CPU only, and 4.83 times that of GPU only.

    Figure 7: on large sparse graphs Dorylus has more value than GPUs; on small dense ones less. Section 7.5: on Amazon,
    17.7 times the value of DGL with sampling, and 8.6 times that of AliGraph.
    """
    gat = values_of("gat", "amazon")
    assert gat["dorylus"] / gat["cpu"] == pytest.approx(2.75, rel=0.01)
    assert gat["dorylus"] / gat["gpu"] == pytest.approx(4.83, rel=0.01)
    assert gat["dorylus"] == pytest.approx(1 / (853.4 * 2.67), rel=1e-12)
    for graph, better in (("amazon", True), ("friendster", True), ("reddit-small", False)):
        gcn = values_of("gcn", graph)
        assert (gcn["dorylus"] > gcn["gpu"]) is better
    (_, sampling, aligraph), dorylus = TABLE_5[2:], value_of(415.23, 0.654)
    assert dorylus / value_of(sampling[0], float(sampling[1])) == pytest.approx(17.7, rel=0.01)
    assert dorylus / value_of(aligraph[0], float(aligraph[1])) == pytest.approx(8.6, rel=0.01)


def test_workers_cost_time_and_requests_and_what_costs_nothing_is_worth_everything() -> None:
    assert LIST.cost(0.0, 8, worker_s=3600.0, requests=1_000_000) == pytest.approx(0.01125 + 0.20)
    servers = LIST.cost(415.23, 8)
    assert LIST.cost(415.23, 8, worker_s=7200.0) == pytest.approx(servers + 2 * 0.01125)
    assert value_of(2.0, 0.0) == math.inf
    with pytest.raises(ConfigError, match="time must be positive"):
        value_of(0.0, 1.0)
    with pytest.raises(ConfigError, match="cost at least 0"):
        value_of(1.0, -1.0)


@pytest.mark.parametrize(
    ("found", "error", "word"),
    [
        ({"server": "x"}, ConfigError, "unknown key 'server'"),
        ({}, ConfigError, r"\[instances\]"),
        ({"instances": 3}, ConfigError, "instances must be a table"),
        ({"instances": {"a": -1}}, ConfigError, "a = -1"),
        ({"instances": {"a": True}}, ConfigError, "a = True"),
        ({"instances": {"a": math.nan}}, ConfigError, "a = nan"),
        ({"instances": {"a": 1, "b": 2}}, ConfigError, "needs instance"),
        ({"instances": {"a": 1}, "instance": "b"}, UnknownNameError, "'b'"),
        ({"instances": {"a": 1}, "worker": {"per_s": 1}}, ConfigError, "'per_s'"),
    ],
)
def test_bad_price_lists(found: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        PriceList.parse(found, "prices.toml")


def test_a_price_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('[instances]\n"c5n.2xlarge" = 0.432\n[worker]\nper_ms = 3.125e-9\nper_request = 2e-7\n')
    found = PriceList.load(file)
    assert found.instance == C5N
    assert found.cost(3600, 2, worker_s=1.0, requests=10) == pytest.approx(0.864 + 3.125e-6 + 2e-6)
    file.write_text("[instances")
    with pytest.raises(DataError, match=r"prices\.toml"):
        PriceList.load(file)
    with pytest.raises(DataError, match="nowhere"):
        PriceList.load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        *((text, "write TRAINER") for text in ("3", "x:1/2", "3:1/2/3", "3:1..5/2", "-1:1/2")),
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


def test_bad_faults_of_workers() -> None:
    for text in ("", "rate=3", "kill=many", "kill=0.1,kill=0.2", "delay=1", "late=0.1"):
        with pytest.raises(ConfigError, match="cannot be read"):
            WorkerFaults.parse(text)
    for text in ("kill=1.0", "kill=nan", "delay=2:1", "late=2:1", "link=0"):
        with pytest.raises(ConfigError, match=f"{text.partition('=')[0]} is out of range"):
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
