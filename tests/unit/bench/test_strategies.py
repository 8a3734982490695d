"""The benchmark of strategies, and settings of all benchmarks that make no sense: the message names the option."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import click
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import ConfigError, UnknownNameError
from atta.train.reports.epochs import EpochReport
from atta_bench.lab.netlab import bits_per_s
from atta_bench.lab.processes import Measured, Usage
from atta_bench.lab.workload import BenchWorkload
from atta_bench.loader.benchmark import LoaderBench
from atta_bench.loader.scheduler import SchedulerBench
from atta_bench.pieces.cache import CacheBench
from atta_bench.pieces.kv import KvBench
from atta_bench.pieces.partition import PartitionBench
from atta_bench.pieces.sampling import SamplingBench
from atta_bench.scale.benchmark import ScaleBench
from atta_bench.train.benchmark import TrainBench
from atta_bench.train.run import StopPattern, Trained
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


TWICE = (Variant("a", ()), Variant("a", ()))
FOREIGN = (Variant("a", (), {"strategy": "exchange", "eps": 1.0}),)
UNEVEN = (Variant("a", (), {"strategy": "exchange", "trainers_per_server": 1}),)
BENCHES: dict[str, Any] = {
    "workload": BenchWorkload,
    "loader": partial(LoaderBench, data="d"),
    "scheduler": partial(SchedulerBench, data="d"),
    "train": partial(TrainBench, data="d"),
    "scale": ScaleBench,
    "kv": KvBench,
    "cache": partial(CacheBench, "d"),
    "sampling": partial(SamplingBench, "d"),
    "partition": partial(PartitionBench, "g"),
    "strategies": partial(StrategiesBench, "d"),
}
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "workload": [
        ({"num_neighbors": (0,)}, "--num-neighbors 0: each must be positive"),
        ({"num_neighbors": ()}, "--num-neighbors"),
        ({"epochs": 0}, "--epochs 0: must be at least 1"),
        ({"seconds": -1.0}, "--seconds -1.0: must be at least 0"),
        ({"timeout_s": 0.0}, "--timeout 0.0: must be at least"),
        ({"seeds": "near"}, "unknown seeds 'near'"),
    ],
    "loader": [
        ({"frontier": "old"}, "'old'"),
        ({"deliver": "pig"}, "did you mean 'pyg'"),
        ({"method": "lavor"}, "did you mean 'labor'"),
        ({"dependency": 0}, "--dependency 0: must be at least 1"),
        ({"aggregate": "max"}, "'max'"),
        ({"runs": 0}, "--runs 0"),
        ({"cache_share": 101}, "--cache-share 101"),
        ({"netns": "maybe"}, "maybe"),
        ({"link": "fast"}, "rate 'fast'"),
        ({"link": "1gbit", "netns": "off"}, "not with --netns off"),
        ({"vs": ("dlg",)}, "did you mean 'dgl'"),
        ({"batch_size": 0}, "--batch-size 0"),
    ],
    "scheduler": [
        ({"policies": ("fifo",)}, "two-level must be among them"),
        ({"policies": ("two-level", "sequentail")}, "sequential"),
        ({"depths": ()}, "--depths"),
        ({"depths": (2, 0)}, "--depths 0"),
        ({"rtt_ms": -1.0}, "--rtt -1"),
        ({"think_ms": -1.0}, "--think -1"),
        ({"think_ms": math.nan}, "--think nan"),
        ({"vs": ("dgl",), "rtt_ms": 1.0}, "--vs dgl: only Atta"),
        ({"link": "fast"}, "rate 'fast'"),
    ],
    "train": [
        ({"hidden": 0}, "--hidden 0"),
        ({"lr": 0.0}, "--lr 0"),
        ({"lr": math.nan}, "--lr nan"),
        ({"cache_share": 101}, "--cache-share 101"),
        ({"link": "1gbit", "netns": "off"}, "not with --netns off"),
    ],
    "scale": [
        ({"parts": ()}, "--parts"),
        ({"parts": (2, 0)}, "--parts 0"),
        ({"parts": (2, 2)}, "--parts 2,2"),
        ({"caches": ()}, "--caches"),
        ({"caches": ("on", "of")}, "did you mean 'off'"),
        ({"vs": ("dgll",)}, "did you mean 'dgl'"),
        ({"rounds": 0}, "--rounds 0"),
        ({"batch_sizes": (8, 8)}, "--batch-sizes 8,8"),
        ({"measured": 0}, "--batches 0"),
        ({"warm_up": 0}, "--warm-up 0"),
        ({"profiled": -1}, "--profiled -1"),
        ({"num_neighbors": (0,)}, "--num-neighbors 0"),
        ({"against": "/nowhere"}, "--against /nowhere"),
        ({"link": "1gbit", "netns": "off"}, "--link"),
    ],
    "kv": [
        ({"batch": -1}, "--batch -1"),
        ({"rows": 10, "batch": 11}, "--batch 11: rows are distinct, and there are 10"),
        ({"threads": ()}, "--threads"),
        ({"threads": (1, 0)}, "--threads 0"),
        ({"threads": (2, 2)}, "--threads 2,2: name different numbers"),
        ({"link": "fast"}, "rate 'fast'"),
        ({"vs": ("dlg",)}, "did you mean 'dgl'"),
    ],
    "cache": [
        ({"epochs": 1}, "--epochs 1: must be at least 2"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"shares": ()}, "--shares: name at least one"),
        ({"shares": (0.0,)}, "--shares 0"),
        ({"ranks": ("hott",)}, "unknown ranks 'hott'"),
    ],
    "sampling": [
        ({"threads": ()}, "--threads : each must be at least 1"),
        ({"num_neighbors": (-1,)}, "--num-neighbors -1: each must be at least 1"),
        ({"variants": ("hetro",)}, "did you mean 'hetero'"),
    ],
    "partition": [({"parts": 0}, "--parts 0"), ({"methods": ()}, "--methods: name at least one")],
    "strategies": [
        ({"strategies": ("ful",)}, "full"),
        ({"strategies": ()}, "--strategies"),
        ({"vs": ("pyg",)}, "pyg"),
        ({"vs": ("dgl",), "model": "gcn"}, "sage"),
        ({"servers": 0}, "--servers 0"),
        ({"external_share": 0.5, "link": "1gbit"}, "one of them"),
        ({"external_share": 1.0}, "--external-share 1.0"),
        ({"external_share": 0.5, "strategies": ("cooperative",)}, "name it"),
        ({"external_share": 0.5, "servers": 1}, "at least 2 servers"),
        ({"external_share": 0.5, "share_of": "sancus"}, "`sancus` between servers"),
        ({"variants": TWICE}, "--variant a: this name is given twice"),
        ({"variants": FOREIGN}, "--variant a: eps: belongs to"),
        ({"variants": UNEVEN}, "--variant a: --trainers 4 --trainers-per-server 1 make 4 servers"),
        ({"link": "fast"}, "fast"),
        ({"target": 1.5}, "--target 1.5"),
        ({"eas": (1,)}, "eas=1"),
        ({"num_neighbors": (5, 5)}, "2 hops for 3 layers"),
        ({"stop": StopPattern(4, 1, 2)}, "no trainer 4; there are 4"),
        ({"worker_faults": "kill=1"}, "kill is out of range"),
        ({"worker_faults": "kill=0.1,seed=3"}, "the seed is that of the round"),
    ],
}


@pytest.mark.parametrize(
    ("bench", "settings", "words"), [(name, *case) for name, cases in WRONG.items() for case in cases]
)
def test_settings_that_make_no_sense_are_refused(bench: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        BENCHES[bench](**settings)
