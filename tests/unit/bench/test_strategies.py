"""The benchmark of strategies: settings, the rate of the links, figures of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError
from atta.train.reports.epochs import EpochReport
from atta_bench.lab.netlab import bits_per_s
from atta_bench.lab.processes import Measured, Usage
from atta_bench.train.run import Trained
from atta_bench.train.settings import SHARE, STRATEGIES, VARIANT, StrategiesBench, Variant
from atta_bench.train.strategies import accuracies, epochs_of, external_rate, figures


def test_every_strategy_is_a_command() -> None:
    bench = StrategiesBench("d", strategies=STRATEGIES, num_neighbors=(5,))
    options = {name: " ".join(bench.options(name, 7)) for name in STRATEGIES}
    assert "--trainers-per-server 4 --strategy full" in options["full"]  # both servers are one group
    assert "--trainers-per-server 2 --strategy full" in options["preload"]
    assert "--trainers-per-server 2 --strategy cooperative:eas=1,15,co-batches=1" in options["cooperative"]
    assert "--num-neighbors 5,5,5 --batch-size 1024 --strategy minibatch" in options["minibatch"]
    assert all("--epochs 12 --eval-every 12" in words and "--trainers " not in words for words in options.values())
    assert all(words.startswith("--seed 7 ") for words in options.values())
    assert "--eval-every 4" in " ".join(StrategiesBench("d", eval_every=4).options("full", 0))


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("", {}, "a name has"),
        ("a/b", {}, "a name has"),
        ("full", {}, "this name is taken"),
        ("dgl", {}, "this name is taken"),
        ("a", {"seed": 4}, "--seed is the same for all systems"),
        ("a", {"eval_every": 4}, "--eval-every is the same"),
    ],
)
def test_bad_variants_are_refused(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Variant(name, (), settings)


def test_a_variant_is_a_command_whose_options_win() -> None:
    words = ("--strategy", "sancus:eps=1", "--hidden", "8")
    variant = Variant("s1", words, {"strategy": "sancus", "eps": 1.0, "hidden": 8})
    plain = Variant("mini", (), {})
    bench = StrategiesBench("d", strategies=("full",), variants=(variant, plain), external_share=0.8, share_of="s1")
    assert bench.names == ("full", "s1", "mini")
    options = bench.options("s1", 7)
    assert options[:2] == ["--seed", "7"]
    assert options[-4:] == [*words]
    assert options.count("--hidden") == options.count("--strategy") == 1
    assert "--trainers-per-server 2" in " ".join(options)
    assert "--trainers-per-server" not in bench.options("mini", 7)  # mini-batches have no servers
    assert bench.settings("s1")["hidden"] == 8
    assert bench.settings("full")["hidden"] == 64


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ("sancus", "write NAME='OPTIONS'"),
        ("a=--strategy exchang", "unknown strategy 'exchang'; did you mean"),
        ("a=--nope", "No such option"),
        ("a=--help", "not --help"),
        ("a=--strategy 'exchange", "cannot be read"),
        ("a=--json f", "--json is not for variants"),
        ("a=--quiet", "--quiet is not for variants"),
        ("a=--strategy sancus:eps=nan", "eps=nan"),
        ("a=--strategy exchange --trainers 3", "--trainers is the same"),
    ],
)
def test_the_command_refuses_bad_variants_in_one_line(given: str, word: str) -> None:
    answer = CliRunner().invoke(cli, ["bench", "strategies", "--data", "nowhere", "--variant", given])
    assert isinstance(answer.exception, ConfigError)
    said = str(answer.exception)
    assert word in said
    assert "\n" not in said
    assert said.startswith("--variant ")


def test_the_command_reads_variants_and_shares() -> None:
    found = VARIANT.convert("c=--strategy exchange:rows=all,send-features,codec=bf16", None, None)
    assert found.name == "c"
    assert found.settings == {"strategy": "exchange", "rows": "all", "send_features": True, "codec": "bf16"}
    assert found.words == ("--strategy", "exchange:rows=all,send-features,codec=bf16")
    assert SHARE.convert("0.65", None, None) == ("full", 0.65)
    assert SHARE.convert("exchange=0.8", None, None) == ("exchange", 0.8)
    with pytest.raises(click.BadParameter, match=r"such as 0\.65 or exchange"):
        SHARE.convert("exchange=much", None, None)
    rate = external_rate(2.0, 1e6, 0.8)  # 8 s more for 1 MB
    assert rate == pytest.approx(1e6)
    assert [bits_per_s(r) for r in ("1gbit", "1.5mbit", "20kbit", "8bit")] == [1e9, 1.5e6, 2e4, 8.0]


def test_payload_and_waiting_are_means_because_stale_strategies_do_not_send_in_every_epoch() -> None:
    waits = {"compute": 1.0, "exchange": 2.0, "sync": 0.5, "external": 0.5}
    epochs = [
        epoch(9.0, None, crossed_bytes=1000.0),
        epoch(4.0, None, crossed_bytes=30.0, crossed_feature_bytes=10.0) | {"breakdown": waits},
        epoch(2.0, None) | {"remote_bytes": 8.0, "breakdown": {**waits, "exchange": 0.0}},
    ]
    found = figures(Trained(epochs, [[500, 500], [40, 50], [5, 7]]), 1)
    assert found["payload/rows_bytes"] == 10
    assert found["payload/features_bytes"] == 5
    assert found["payload/daemon_bytes"] == 4
    assert found["payload/interface_bytes"] == 51
    assert found["waiting_share"] == pytest.approx(4 / 6)
    assert found["mean_epoch_seconds"] == 3


def epoch(seconds: float, accuracy: float | None, **more: Any) -> dict[str, Any]:
    report = EpochReport(
        *(0, seconds, 0.5, 1.0, 1.0, 0.0, {"compute": seconds / 2, "external": seconds / 4}),
        **{"val_accuracy": accuracy, "test_accuracy": accuracy, "steps": 2, "exchanged_bytes": 7.0},
        peak_memory_bytes=[3, 9, 4],
        **more,
    )
    return asdict(report)


def test_figures_are_of_the_epochs_after_the_warm_up() -> None:
    run = Trained(
        [epoch(9.0, 0.1), epoch(1.0, 0.5), epoch(3.0, 0.8), epoch(2.0, 0.7)], [[100, 900], [10, 20], [40, 30], [1, 2]]
    )
    found = figures(run, 1, target=0.7)
    assert found["epoch_seconds"] == 2.0
    assert found["link_bytes"] == 20
    assert found["set_up_link_bytes"] == 900
    assert (found["peak_memory_bytes"], found["test_accuracy"], found["phases/compute_s"]) == (9, 0.8, 1.0)
    assert (found["seconds_to_target"], found["epochs_to_target"]) == (13.0, 3)
    assert "seconds_to_target" not in figures(run, 1, target=0.95)
    without = figures(Trained([epoch(1.0, None)] * 2, [[0], [0]]), 1)
    assert "test_accuracy" not in without


def test_the_first_of_equally_good_epochs_counts_and_time_goes_on_between_evaluations() -> None:
    seen = ((1.0, None, None), (2.0, 0.6, 0.5), (4.0, None, None), (8.0, 0.6, 0.7))
    epochs = [{"seconds": s, "val_accuracy": val, "test_accuracy": test} for s, val, test in seen]
    assert accuracies(epochs) == {"val_accuracy": 0.6, "test_accuracy": 0.5}
    assert accuracies(epochs, 0.5)["seconds_to_target"] == 3.0
    assert accuracies(epochs, 0.55)["seconds_to_target"] == 15.0
    assert "seconds_to_target" not in accuracies(epochs, 0.75)
    assert accuracies(epochs[:1], 0.1) == {}


def test_an_epoch_of_distdgl_lasts_from_the_first_trainer_to_the_last() -> None:
    def epoch(rank: int, number: int, start: float, stop: float, *, sent: int, val: float | None) -> dict[str, Any]:
        accuracy = {"val_accuracy": val, "test_accuracy": val}
        return {"rank": rank, "epoch": number, "start": start, "stop": stop, "sent_bytes": sent, **accuracy}

    warm = [epoch(0, 0, 0.0, 5.0, sent=10, val=None), epoch(1, 0, 1.0, 6.0, sent=30, val=None)]
    reported = [epoch(r, e, 10.0 * e, 10.0 * e + 3 + r, sent=e + r, val=0.5) for e in range(2) for r in range(2)]
    usage = Usage(1.0, 1.0, 1.0, (0, 0))
    found = epochs_of(Measured(warm, reported, usage, usage))
    told = [(e["seconds"], e["sent_bytes"], e["val_accuracy"]) for e in found]
    assert told == [(6.0, 30, None), (4.0, 1, 0.5), (4.0, 2, 0.5)]
