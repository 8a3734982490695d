"""The table of strategies: configuration, command line and planner follow each record."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from atta.cli.train import train
from atta.errors import ConfigError
from atta.observe.settings import NoOption, settings_of
from atta.train import Nodes, TrainConfig
from atta.train.settings import DorylusSettings, TrainSettings
from atta.train.strategies import STRATEGIES, strategies_with
from tests.unit.test_layers import imported_modules, within

STEP = ("atta.train.strategies", "atta.train.exchange", "atta.train.cooperative")
SOURCES = Path(__file__).parents[3] / "platform/atta"
READING = ["exchange", "sancus", "pipegcn", "digest", "sat", "digest-async"]
"""Strategies whose trainers read rows of others."""


def test_records_are_complete() -> None:
    assert list(STRATEGIES) == ["minibatch", "full", "cooperative", *READING, "dorylus"]
    for name, strategy in STRATEGIES.items():
        assert strategy.name == name
        assert issubclass(TrainConfig, strategy.settings)
        assert name in CliRunner().invoke(train, ["--help"]).output


def test_every_setting_belongs_to_all_strategies_or_to_some() -> None:
    every = {f.name for f in dataclasses.fields(TrainSettings)}
    own = {name for strategy in STRATEGIES.values() for name in strategy.own_settings}
    assert {f.name for f in dataclasses.fields(TrainConfig)} == every | own
    assert not every & own
    assert strategies_with("batch_size") == ["minibatch"]
    assert strategies_with("eas") == ["full", "cooperative"]
    assert strategies_with("trainers_per_server") == ["full", "cooperative", *READING, "dorylus"]
    assert strategies_with("rows") == READING
    assert strategies_with("stale_across") == READING[1:]
    assert strategies_with("eps") == ["sancus"]
    assert strategies_with("sync_every") == ["digest", "sat", "digest-async"]
    assert strategies_with("window") == ["sat"]
    assert strategies_with("max_delay") == ["digest-async"]
    assert strategies_with("staleness") == ["dorylus"]
    assert strategies_with("epochs") == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_sees_its_own_settings_only(name: str) -> None:
    needed = {
        "cooperative": {"co_batches": 2},
        "digest-async": {"trainers_per_server": 1},
        "dorylus": {"trainers_per_server": 1},
    }.get(name, {})
    config = TrainConfig(data="x", strategy=name, trainers=4, layers=3, **needed)  # type: ignore[arg-type]
    own = config.own
    assert type(own) is STRATEGIES[name].settings
    assert {f: getattr(config, f) for f in vars(own)} == vars(own)
    assert own.depth == 3
    assert (own.strategy, own.trainers) == (name, 4)


def test_staleness_in_deep_models_is_warned_of() -> None:
    for staleness, layers, warns in ((0, 3, False), (1, 2, False), (1, 3, True), (2, None, True)):
        config = TrainConfig(data="x", strategy="dorylus", staleness=staleness, layers=layers)
        own = config.own
        assert isinstance(own, DorylusSettings)
        assert (own.warning is not None) == warns
        assert not warns or f"staleness={staleness} with 3 layers" in str(own.warning)


def test_settings_without_an_option_say_why() -> None:
    reasons = {s.field: s.option.reason for s in settings_of(TrainConfig) if isinstance(s.option, NoOption)}
    assert list(reasons) == ["strategy", "verbose"]


def test_the_table_needs_neither_torch_nor_numpy() -> None:
    program = "import sys, atta.cli.train; print(sorted({'torch', 'numpy', 'grpc'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_no_other_module_asks_for_a_strategy_by_name() -> None:
    known = [f'strategy {sign} "{name}"' for sign in ("==", "!=") for name in STRATEGIES]
    places = [path for path in SOURCES.rglob("*.py") if path.parent.name != "strategies"]
    assert len(places) > 100
    assert [path.name for path in places if any(text in path.read_text() for text in known)] == []


def test_one_step_of_sancus_passes_few_files() -> None:
    """Imports from its record and its trainer on, closed within the packages of strategies; also those for type checking only."""
    seen, next_ = set[str](), {STRATEGIES["sancus"].check.__module__, "atta.train.exchange.trainer"}
    while next_:
        seen |= next_
        next_ = {other for name in next_ for other in imported_modules(name) if within(other, STEP)} - seen
    assert {"atta.train.exchange.messages", "atta.train.cooperative.source"} <= seen
    assert len(seen) <= 22, sorted(seen)


def test_a_file_is_the_same_as_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[TrainConfig] = []

    def fit(given: TrainConfig, nodes: Nodes) -> None:
        seen.append(given)
        raise ConfigError("seen enough")

    monkeypatch.setattr("atta.train.fit", fit)
    path = tmp_path / "run.toml"
    path.write_text(
        'data = "x"\nstrategy = "cooperative:memory=2GiB,eas=1,15,resample-every=2"\nlr = 0.1\n'
        "trainers = 4\ntrainers_per_server = 2\n"
    )
    words = "--data x --strategy cooperative:memory=2GiB,eas=1,15,resample-every=2 --lr 0.1 --trainers 4"
    CliRunner().invoke(train, ["--config", str(path)])
    CliRunner().invoke(train, [*words.split(), "--trainers-per-server", "2"])
    assert seen[0] == seen[1]
    assert seen[0].memory == 2 << 30
