"""Cost and value of runs: the published tables of Dorylus, and bad price lists."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from atta.errors import ConfigError, DataError, UnknownNameError
from atta_bench.train.value import PriceList, value_of

C5, C5N, C5N4, P3 = "c5.2xlarge", "c5n.2xlarge", "c5n.4xlarge", "p3.2xlarge"
# Base instances of c5 and c5n cost 0.085 and 0.108 per hour (section 7.2); 2xlarge is four of them, 4xlarge eight.
# A Lambda costs 0.01125 per hour and 0.20 per million requests (section 7.2).
PRICES = {
    "instance": C5N,
    "instances": {C5: 4 * 0.085, C5N: 4 * 0.108, C5N4: 8 * 0.108, P3: 3.06},
    "worker": {"per_ms": 0.01125 / 3.6e6, "per_request": 0.20 / 1e6},
}
LIST = PriceList.parse(PRICES, "the paper")

# (model, graph): mode -> (seconds, cost as printed), and what runs on servers only: (how many, of which instance).
TABLE_4 = {
    ("gcn", "reddit-small"): {"dorylus": (860.6, "0.20"), "cpu": (1005.4, "0.19"), "gpu": (162.9, "0.28")},
    ("gcn", "reddit-large"): {"dorylus": (1020.1, "1.69"), "cpu": (1290.5, "1.85"), "gpu": (324.9, "3.31")},
    ("gcn", "amazon"): {"dorylus": (512.7, "0.79"), "cpu": (710.2, "0.68"), "gpu": (385.3, "2.62")},
    ("gcn", "friendster"): {"dorylus": (1133.3, "13.8"), "cpu": (1990.8, "15.3"), "gpu": (1490.4, "40.5")},
    ("gat", "reddit-small"): {"dorylus": (496.3, "1.15"), "cpu": (1270.4, "1.20"), "gpu": (130.9, "1.11")},
    ("gat", "amazon"): {"dorylus": (853.4, "2.67"), "cpu": (2092.7, "3.01"), "gpu": (1039.2, "10.60")},
}
SERVERS = {  # table 3
    ("gcn", "reddit-small"): (2, C5),
    ("gcn", "reddit-large"): (12, C5N),
    ("gcn", "amazon"): (8, C5N),
    ("gcn", "friendster"): (32, C5N4),
    ("gat", "reddit-small"): (10, C5),
    ("gat", "amazon"): (12, C5N),
}
TABLE_5 = {  # graph: system -> (seconds, cost as printed, servers, instance); DGL alone has one machine
    "reddit-small": {"dgl-sampling": (566.33, "0.480", 1, P3), "dgl": (33.64, "0.028", 1, P3)},
    "amazon": {
        "gpu": (308.27, "2.096", 8, P3),
        "dgl-sampling": (842.49, "5.728", 8, P3),
        "aligraph": (1560.66, "1.498", 8, C5N),
    },
}


def close(computed: float, printed: str) -> bool:
    """Within 1 % of a printed number, which was rounded or cut to its last digit."""
    digit = 10.0 ** -len(printed.partition(".")[2])
    return abs(computed - float(printed)) <= max(0.01 * float(printed), digit)


@pytest.mark.parametrize("where", TABLE_4)
def test_costs_of_table_4_follow_from_prices(where: tuple[str, str]) -> None:
    count, instance = SERVERS[where]
    for mode, kind in (("cpu", instance), ("gpu", P3)):
        seconds, printed = TABLE_4[where][mode]
        assert close(LIST.cost(seconds, count, instance=kind), printed), mode


@pytest.mark.parametrize(("graph", "system"), [(g, s) for g, found in TABLE_5.items() for s in found])
def test_costs_of_table_5_follow_from_prices(graph: str, system: str) -> None:
    seconds, printed, count, instance = TABLE_5[graph][system]
    assert close(LIST.cost(seconds, count, instance=instance), printed)


def test_values_of_table_4() -> None:
    """Section 7.4: GAT on Amazon has 2.75 times the value of CPU only, and 4.83 times that of GPU only."""
    value = {mode: value_of(s, float(c)) for mode, (s, c) in TABLE_4["gat", "amazon"].items()}
    assert value["dorylus"] / value["cpu"] == pytest.approx(2.75, rel=0.01)
    assert value["dorylus"] / value["gpu"] == pytest.approx(4.83, rel=0.01)
    assert value["dorylus"] == pytest.approx(1 / (853.4 * 2.67), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "cheaper_than_gpu"), [("amazon", True), ("friendster", True), ("reddit-small", False)]
)
def test_values_of_figure_7_have_the_order_of_the_paper(model: str, cheaper_than_gpu: bool) -> None:
    """Large sparse graphs: Dorylus has more value than GPUs; small dense ones: less."""
    value = {mode: value_of(s, float(c)) for mode, (s, c) in TABLE_4["gcn", model].items()}
    assert (value["dorylus"] > value["gpu"]) is cheaper_than_gpu


def test_values_of_table_5() -> None:
    """Section 7.5: on Amazon, 17.7 times the value of DGL with sampling, and 8.6 times that of AliGraph."""
    dorylus = value_of(415.23, 0.654)
    by = {name: value_of(s, float(c)) for name, (s, c, *_) in TABLE_5["amazon"].items()}
    assert dorylus / by["dgl-sampling"] == pytest.approx(17.7, rel=0.01)
    assert dorylus / by["aligraph"] == pytest.approx(8.6, rel=0.01)


def test_workers_cost_time_and_requests() -> None:
    assert LIST.cost(0.0, 8, worker_s=3600.0, requests=1_000_000) == pytest.approx(0.01125 + 0.20)
    servers = LIST.cost(415.23, 8)
    assert LIST.cost(415.23, 8, worker_s=7200.0) == pytest.approx(servers + 2 * 0.01125)


def test_a_run_that_costs_nothing_is_worth_everything() -> None:
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
