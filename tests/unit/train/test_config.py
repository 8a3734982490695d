"""Settings: refused values and their names, fan-outs per layer, the round trip to the trainer processes."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.options import _key
from atta.cli.train import OPTION_GROUPS, train
from atta.errors import ConfigError, UnknownNameError
from atta.observe.settings import NoOption, Setting, settings_of
from atta.samplers.operators import Closure, ExpansionAware
from atta.train import Nodes, TrainConfig
from atta.train.exchange.policies import Cut, doubt
from atta.train.settings.common import TrainSettings, epoch_seed
from atta.train.strategies import STRATEGIES, strategies_with
from tests.unit.test_layers import imported_modules, within


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"data": "somewhere", **settings})


COUNTS = ["trainers", "batch_size", "eval_every", "eval_batch_size", "patience", "threads", "accumulate"]
KEPT = ["resume", "overwrite", "checkpoint_steps", "max_restarts"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        *(({name: 0}, f"--{name.replace('_', '-')} 0") for name in COUNTS),
        ({"trainers": 10_000_000}, "--trainers 10000000: must be at most 1024"),
        ({"trainers": 4, "trainers_per_server": 5000}, "--trainers-per-server 5000: must be at most 1024"),
        ({"threads": 100_000}, "--threads 100000: must be at most 1024"),
        ({"epochs": -1}, "--epochs -1"),
        ({"metrics": "9091"}, "'9091' is not an address"),
        ({"metrics": "127.0.0.1:0"}, "--metrics 127.0.0.1:0: name a port"),
        ({"metrics": "127.0.0.1:9091", "strategy": "digest-async"}, "--metrics: does not go with digest-async"),
        ({"num_neighbors": ()}, "--num-neighbors"),
        ({"num_neighbors": (5, -2)}, "--num-neighbors 5,-2"),
        ({"num_neighbors": (5, 5), "layers": 3}, "2 hops for 3 layers"),
        ({"num_neighbors": (5, 5), "eval_num_neighbors": (1, 2, 3)}, "--eval-num-neighbors 1,2,3"),
        ({"dropout": 1.0}, "--dropout 1.0"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"strategy": "exchange", "budget": -1.0}, "--accuracy-loss -1.0: must be at least 0"),
        ({"strategy": "sancus", "budget": 1.0}, "--accuracy-loss: belongs to --strategy exchange, not sancus"),
        ({"strategy": "exchange", "budget": 1.0, "codec": "bf16"}, "codec=bf16: does not go with --accuracy-loss"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"weight_decay": -1e-3}, "--weight-decay -0.001"),
        ({"seed": -1}, "--seed -1"),
        *(({name: 1}, f"--{name.replace('_', '-')} needs --checkpoint DIR") for name in KEPT),
        ({"checkpoint": "x", "resume": True, "overwrite": True}, "give either --resume (go on with a run) or --over"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"rank_timeout": 0.5}, "--rank-timeout"),
        ({"strategy": "full", "layers": 2, "checkpoint": "x", "checkpoint_steps": 5}, "--checkpoint-steps"),
        ({"data": None}, "--cluster"),
        ({"cluster": "both.toml"}, "--data"),
        ({"strategy": "full", "batch_size": 5}, "--batch-size: belongs to --strategy minibatch or historical, not full"),
        ({"eas": (1, 15)}, "eas: belongs to --strategy full or cooperative, not minibatch"),
        ({"trainers_per_server": 1}, "--trainers-per-server: belongs to --strategy full or cooperative"),
        ({"checkpoint_layers": True}, "--checkpoint-layers: only for --model resgcn+ and deepergcn, not auto"),
        ({"strategy": "sat", "codec": "delta-int8"}, "codec=delta-int8: a daemon does not know what each reader has"),
        ({"strategy": "digest", "layers": 1, "model": "gcn"}, "--layers 1: a single layer of gcn reads features only"),
        ({"strategy": "sat", "layers": 1}, "take more layers, or --strategy exchange"),
        ({"strategy": "digest-async", "layers": 1, "trainers_per_server": 1}, "--layers 1: a single layer"),
        ({"strategy": "cooperative"}, "co-batches=R (steps per epoch) or memory=SIZE"),
        ({"strategy": "cooperative", "co_batches": 2, "memory": 10**9}, "give either co-batches"),
        ({"strategy": "cooperative", "co_batches": 0}, "co-batches=0"),
        ({"method": "last"}, "method=last: needs a time for each seed"),
        ({"method": "labr"}, "unknown neighbour method 'labr'; did you mean 'labor'"),
        ({"strategy": "full", "resample_every": 5}, "resample-every: goes with eas"),
        ({"strategy": "full", "eas": (1, 5), "resample_every": -1}, "resample-every=-1"),
        ({"strategy": "full", "eas": (1,)}, "eas=1: give MAX_HOP,FANOUT"),
        ({"strategy": "full", "eas": (-1, 5)}, "eas=-1,5: max_hop"),
        ({"strategy": "full", "layers": 1001}, "--layers 1001"),
        ({"num_neighbors": (5,), "layers": 129}, "--layers 129: mini-batches have a hop per layer, at most 128"),
        ({"model": "gat", "hidden": 10, "heads": 4}, "--hidden 10: gat divides it among --heads 4"),
        ({"model": "hgt", "hidden": 9, "heads": 2}, "hgt divides it among --heads 2"),
        ({"model": "rgcn", "strategy": "full"}, "--model rgcn: belongs to --strategy minibatch, not full"),
        ({"model": "sage", "target": "paper"}, "--target: goes with --model rgcn"),
        ({"model": "sage", "num_neighbors_by_type": "a=1"}, "--num-neighbors-by-type: goes with --model rgcn"),
        ({"clip_grad_norm": 0.0}, "--clip-grad-norm 0.0: must be positive"),
        ({"clip_grad_norm": float("nan")}, "--clip-grad-norm nan: must be a finite number"),
        ({"lr_schedule": "step", "lr_factor": 1.0}, "--lr-factor 1.0: must lie between 0 and 1"),
        ({"lr_every": 3}, "--lr-every 3: goes with --lr-schedule step or plateau"),
        ({"lr_schedule": "cosine", "lr_factor": 0.5}, "--lr-factor 0.5: goes with --lr-schedule step or plateau"),
        ({"strategy": "digest", "trainers": 2, "average": "weights", "clip_grad_norm": 1.0},
         "--clip-grad-norm: there is no gradient of all trainers with average=weights"),
        ({"strategy": "historical", "model": "gat"}, "--model gat: historical goes with sage and gcn, whose layers only"),
        ({"strategy": "historical", "layers": 1}, "--layers 1: a single layer of sage reads features only"),
        ({"strategy": "historical", "trainers": 2}, "--trainers-per-server above 1: trainers sample apart"),
        ({"strategy": "historical", "send_features": True}, "send-features: does not go with historical"),
        ({"strategy": "historical", "trainers_per_server": 1, "fan_out": 0}, "fan-out=0: must be -1 (all) or at least 1"),
        ({"strategy": "historical", "fan_out": -2}, "fan-out=-2: must be at least -1"),
        ({"strategy": "historical", "momentum": 0.0}, "momentum=0.0: must be above 0 and at most 1"),
        ({"strategy": "historical", "momentum": float("nan")}, "momentum=nan: must be a finite number"),
        ({"strategy": "historical", "max_age": -1}, "max-age=-1: must be at least 0"),
        ({"strategy": "historical", "codec": "delta-int8"}, "codec=delta-int8: a daemon does not know"),
        ({"strategy": "historical", "task": "link"}, "--task link: goes with --strategy minibatch, not historical"),
    ],
)  # fmt: skip
def test_senseless_settings_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert named in str(caught.value)


@pytest.mark.parametrize("settings", [{"send_features": True}, {"model": "resgcn+"}, {"strategy": "exchange"}])
def test_one_layer_is_enough_where_its_rows_travel(settings: dict[str, Any]) -> None:
    assert config(**{"strategy": "digest", "model": "gcn", "layers": 1, **settings}).own.depth == 1


@pytest.mark.parametrize("seed", [0, 1764243660000000000, (1 << 63) - 1])
def test_every_seed_gives_each_rank_and_epoch_one_that_torch_takes(seed: int) -> None:
    drawn = [[epoch_seed(seed, epoch, rank, 2) for rank in range(2)] for epoch in range(3)]
    assert len({torch.Generator().manual_seed(one).initial_seed() for row in drawn for one in row}) == 6


@given(st.integers(0, (1 << 40) - 1), st.integers(0, 1000), st.integers(0, 3))
def test_small_seeds_are_as_they_always_were(seed: int, epoch: int, rank: int) -> None:
    assert epoch_seed(seed, epoch, rank, 4) == (seed * 1_000_003 + epoch) * 4 + rank


def test_unknown_names_come_with_those_that_exist() -> None:
    known = {"model": ("sagee", "sage"), "device": ("cud", "cuda"), "seed_policy": ("locl", "local")}
    for name, (given_name, nearest) in (known | {"strategy": ("x", "mini")}).items():
        with pytest.raises(UnknownNameError, match=nearest):
            config(**{name: given_name})


def test_one_fan_out_holds_for_every_layer_and_a_rule_says_who_joins_a_server() -> None:
    assert config(num_neighbors=(7,), layers=3).fan_outs == (7, 7, 7)
    assert config(num_neighbors=(7, 5), eval_num_neighbors=(-1,)).eval_fan_outs == (-1, -1)
    assert config(num_neighbors=(7, 5)).eval_fan_outs == (7, 5)
    assert config(num_neighbors=(7, 5), layers=2).depth == 2
    assert config(strategy="full").rule(7) == Closure(3)
    assert config(strategy="full", layers=112).rule(0) == Closure(112)
    assert config(strategy="full", eas=(2, 5)).rule(7) == ExpansionAware(2, 5)
    drawn = [config(strategy="full", eas=(2, 5), resample_every=3).rule(epoch) for epoch in range(7)]
    assert [getattr(rule, "resample", None) for rule in drawn] == [0, 0, 0, 1, 1, 1, 2]


def test_evaluations_draw_as_training_does_but_anew_in_each_batch() -> None:
    own = config(strategy="minibatch", method="labor", dependency=64).own
    assert own.drawing(train=True) == {"method": "labor", "dependency": 64}
    assert own.drawing(train=False) == {"method": "labor", "dependency": 1}
    assert config(method="weighted").own.drawing(train=True) == {"weight_attr": "weight", "dependency": 1}


def test_servers_follow_from_trainers_and_partitions() -> None:
    assert config(strategy="full", trainers=4).servers == 1
    two = config(strategy="full", trainers=4, trainers_per_server=2)
    assert (two.servers, two.server_size) == (2, 2)
    two.check_parts(2)
    with pytest.raises(ConfigError, match="make 2 servers, the dataset has 3 partitions; take --trainers 6 "):
        two.check_parts(3)
    config(strategy="full", trainers=4).check_parts(3)
    config(trainers=2).check_parts(3)
    exchange = config(strategy="exchange", trainers=4, trainers_per_server=2)
    exchange.check_parts(2)
    with pytest.raises(
        ConfigError, match="make 2 servers, the dataset has 3 partitions, and each server takes one; take --trainers 6 "
    ):
        exchange.check_parts(3)
    with pytest.raises(ConfigError, match=r"--trainers 4 without --trainers-per-server make 1 .*-per-server 2$"):
        config(strategy="exchange", trainers=4).check_parts(2)


FAN_OUTS = st.lists(st.integers(1, 50) | st.just(-1), min_size=1, max_size=5).map(tuple)
SOME = {"num_neighbors": FAN_OUTS, "lr": st.floats(1e-9, 10), "seed": st.integers(0, 2**63 - 1)}


@given(
    st.fixed_dictionaries(
        {**SOME, "model": st.sampled_from(["sage", "gat"]), "patience": st.none() | st.integers(1, 9)}
    )
)
def test_settings_survive_the_way_to_the_trainers(settings: dict[str, Any]) -> None:
    servers = {"eas": (1, 15), "resample_every": 2, "model": "resgcn+", "checkpoint_layers": True}
    for before in (config(**settings), config(strategy="full", **servers)):
        assert TrainConfig.from_dict(json.loads(json.dumps(before.to_dict()))) == before
    with pytest.raises(UnknownNameError, match="batch_size"):
        TrainConfig.from_dict({"data": "x", "batch_sise": 3})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    found: list[TrainConfig] = []

    def fit(given_config: TrainConfig, nodes: Nodes, so_far: object) -> None:
        assert nodes == Nodes()
        found.append(given_config)
        raise ConfigError("seen enough")

    monkeypatch.setattr("atta.train.fit", fit)
    monkeypatch.setattr(TrainConfig, "check_named", lambda _: None)
    return found


def test_the_command_line_offers_every_setting_with_the_same_default(seen: list[TrainConfig]) -> None:
    CliRunner().invoke(train, ["--data", "somewhere"])
    assert seen == [config()]
    offered = {p.name for p in train.params if not p.hidden} - {"json_file", "quiet", "help", "config", "plugin"}
    where = {"nnodes", "node_rank", "rdzv_endpoint"}
    settings = {s.field for s in settings_of(TrainConfig) if not isinstance(s.option, Setting | NoOption)}
    assert offered == settings | where | {"strategy", "explain", "plot"}
    grouped = [name for names in OPTION_GROUPS.values() for name in names.split()]
    assert sorted(grouped) == sorted({_key(p) for p in train.get_params(click.Context(train))})


STEP = ("atta.train.strategies", "atta.train.exchange", "atta.train.cooperative")
SOURCES = Path(__file__).parents[3] / "platform/atta"
READING = ["exchange", "sancus", "pipegcn", "digest", "sat", "digest-async", "historical"]
"""Strategies whose trainers read rows of others."""


def test_records_are_complete_and_each_setting_belongs_to_all_or_to_some() -> None:
    assert list(STRATEGIES) == ["minibatch", "full", "cooperative", *READING, "dorylus"]
    for name, strategy in STRATEGIES.items():
        assert strategy.name == name
        assert issubclass(TrainConfig, strategy.settings)
        assert name in CliRunner().invoke(train, ["--help"]).output
    every = {f.name for f in dataclasses.fields(TrainSettings)}
    own = {name for strategy in STRATEGIES.values() for name in strategy.own_settings}
    assert {f.name for f in dataclasses.fields(TrainConfig)} == every | own | {"more"}
    assert not every & own
    assert strategies_with("trainers_per_server") == ["full", "cooperative", *READING, "dorylus"]
    assert strategies_with("stale_across") == READING[1:]
    assert strategies_with("sync_every") == ["digest", "sat", "digest-async"]
    assert strategies_with("epochs") == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_sees_its_own_settings_only(name: str) -> None:
    needed = {
        "cooperative": {"co_batches": 2},
        "digest-async": {"trainers_per_server": 1},
        "historical": {"trainers_per_server": 1},
        "dorylus": {"trainers_per_server": 1},
    }.get(name, {})
    config = TrainConfig(data="x", model="gcn", strategy=name, trainers=4, layers=3, **needed)  # type: ignore[arg-type]
    own = config.own
    assert type(own) is STRATEGIES[name].settings
    assert {f: getattr(config, f) for f in vars(own)} == vars(own)
    assert own.depth == 3
    assert (own.strategy, own.trainers) == (name, 4)


@pytest.mark.parametrize(
    ("strategy", "given", "cut", "said"),
    [
        ("minibatch", {}, 0.9, None),
        ("exchange", {"layers": 1}, 0.0, None),
        ("sancus", {}, 0.9, None),
        ("sancus", {}, 0.0, "no edge is cut"),
        ("sancus", {"layers": 1}, 0.2, "one layer reads features alone"),
        ("sancus", {"layers": 1, "send_features": True}, 0.2, None),
        ("sancus", {"layers": 1, "model": "deepergcn"}, 0.2, None),
        ("sancus", {"warmup": 50}, 0.2, "warmup=50 with 10 epochs: never skips"),
        ("sancus", {"eps": 0.0}, 0.2, "eps=0: never skips"),
        ("exchange", {}, 0.0, None),
        ("exchange", {"budget": 0.5, "epochs": 100}, 0.2, None),
        ("exchange", {"budget": 0.5, "epochs": 100}, 0.0, "no edge is cut: --accuracy-loss has no rows"),
        ("exchange", {"budget": 0.5, "layers": 1}, 0.2, "one layer reads features alone"),
        ("exchange", {"budget": 0.5}, 0.2, "--accuracy-loss with 10 epochs: too few to measure"),
        ("pipegcn", {}, 0.2, "3 layers: rows and gradients of the epoch before cost"),
        ("pipegcn", {"layers": 2}, 0.9, None),
        ("pipegcn", {"layers": 2, "epochs": 1}, 0.2, "the first epoch is exact"),
        ("digest", {}, math.nan, None),
        ("digest", {}, 0.2, None),
        ("digest", {}, 0.3, "30% of the edges are cut, and no gradient crosses them: with 3 layers"),
        ("digest", {"layers": 2}, 0.3, None),
        ("digest", {"sync_every": 10}, 0.2, "sync-every=10 with 10 epochs: all read rows of the first weights"),
        ("sat", {}, 0.2, None),
        ("sat", {"train_every": 10}, 0.2, "train-every=10 and sync-every=2 with 10 epochs: never predicts"),
        ("sat", {"sync_every": 10}, 0.2, "all read rows of the first weights; take a smaller"),
        ("sat", {"sync_every": 10}, 0.9, "90% of the edges are cut"),
        ("pipegcn", {}, 0.0, "no edge is cut"),
        ("digest", {"grad_sync_every": 1}, 0.9, None),
        ("digest-async", {}, 0.2, None),
        ("digest-async", {}, 0.875, "88% of the edges are cut"),
        ("historical", {"batch_size": 64, "layers": 2}, 0.2, None),
        ("historical", {"batch_size": 64}, 0.2, "batches of 64 of 1000 targets: 3 layers of rows get old"),
        ("dorylus", {}, 0.9, None),
        ("dorylus", {"mode": "async"}, 0.2, "mode=async with 3 layers: rows get older in every layer"),
        ("dorylus", {"staleness": 1}, 0.2, "take mode=pipe"),
        ("dorylus", {"mode": "async", "layers": 2}, 0.2, None),
    ],
)
def test_what_a_strategy_cannot_do_is_one_line(
    strategy: str, given: dict[str, Any], cut: float, said: str | None
) -> None:
    servers = {} if strategy == "minibatch" else {"trainers": 2, "trainers_per_server": 1}
    found = doubt(config(strategy=strategy, **servers, **given).own, Cut(cut, 1000))
    assert bool(found) == (said is not None)
    assert not found or (found.startswith(f"{strategy}: ") and str(said) in found and "\n" not in found)


@pytest.mark.parametrize(
    ("degree", "drawn", "warned"),
    [
        (15, "15,10,5", False),
        (36, "15,10,5", True),
        (36, "15,10,9", False),
        (36, "-1,-1,-1", False),
        (math.nan, "15,10,5", False),
    ],
)
def test_sampling_few_of_many_neighbours_is_said(degree: float, drawn: str, warned: bool) -> None:
    found = doubt(config(num_neighbors=tuple(map(int, drawn.split(",")))).own, Cut(0.0, degree=degree))
    assert found.startswith("minibatch: a vertex has 36 in-neighbours, of which hops draw (15, 10, 5)") == warned
    assert bool(found) == warned


def test_no_other_module_names_a_strategy_and_the_table_needs_no_torch() -> None:
    known = [f'strategy {sign} "{name}"' for sign in ("==", "!=") for name in STRATEGIES]
    places = [path for path in SOURCES.rglob("*.py") if path.parent.name != "strategies"]
    assert len(places) > 100
    assert [path.name for path in places if any(text in path.read_text() for text in known)] == []
    program = "import sys, atta.cli.train; print(sorted({'torch', 'numpy', 'grpc'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_one_step_of_sancus_passes_few_files() -> None:
    """Imports from its record and its trainer on, closed within the packages of strategies; also those for type checking only."""
    seen, next_ = set[str](), {STRATEGIES["sancus"].check.__module__, "atta.train.exchange.trainer"}
    while next_:
        seen |= next_
        next_ = {other for name in next_ for other in imported_modules(name) if within(other, STEP)} - seen
    assert {"atta.train.exchange.messages", "atta.train.cooperative.source"} <= seen
    assert len(seen) <= 22, sorted(seen)


def test_a_file_is_the_same_as_the_command_line(seen: list[TrainConfig], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'data = "x"\nstrategy = "cooperative:memory=2GiB,eas=1,15,resample-every=2"\nlr = 0.1\n'
        'trainers = 4\ntrainers_per_server = 2\nlogger = ["csv:save_dir=a,b", "mlflow:save_dir=c"]\n'
    )
    words = "--data x --strategy cooperative:memory=2GiB,eas=1,15,resample-every=2 --lr 0.1 --trainers 4 "
    words += "--logger csv:save_dir=a,b --logger mlflow:save_dir=c"
    CliRunner().invoke(train, ["--config", str(path)])
    CliRunner().invoke(train, [*words.split(), "--trainers-per-server", "2"])
    assert seen[0] == seen[1]
    assert seen[0].memory == 2 << 30
    assert seen[0].logger == ("csv:save_dir=a,b", "mlflow:save_dir=c"), "each gets everything"
