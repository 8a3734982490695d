"""bench/memory.py: both strategies train on the same vertices per step, by the same settings in Python and on the command line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atta.cli.train import train
from atta.errors import ConfigError
from atta.train import Nodes, TrainConfig

FOLDER = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))  # it imports its neighbour
    spec = importlib.util.spec_from_file_location("bench_memory", FOLDER / "memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_memory", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_same_training_vertices_per_step(memory: Any) -> None:
    shape = memory.Shape(nodes=5000, edges=10, features=3)  # 2000 training vertices
    assert shape.batch == 1000
    each = TrainConfig(data="x", **memory.options("minibatch", 28, shape.batch))
    assert each.batch_size * each.trainers == 1000
    shared = TrainConfig(data="x", **memory.options("cooperative", 28, shape.batch))
    assert 2000 / (shared.co_batches or 0) == 1000
    assert (each.depth, each.hidden, each.model) == (shared.depth, shared.hidden, shared.model)


@pytest.mark.parametrize("strategy", ["minibatch", "cooperative"])
def test_the_command_has_the_same_settings(memory: Any, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    seen: list[TrainConfig] = []

    def fit(config: TrainConfig, nodes: Nodes) -> None:
        assert nodes == Nodes()
        seen.append(config)
        raise ConfigError("seen enough")

    monkeypatch.setattr("atta.train.fit", fit)
    settings = memory.options(strategy, 28, 1000)
    CliRunner().invoke(train, ["--data", "x", *memory.as_arguments(settings)])
    assert seen == [TrainConfig(data="x", **settings)]
