"""bench/train/memory.py: both strategies have the same vertices per step, in Python and on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from atta.cli.train import train
from atta.errors import ConfigError
from atta.train import Nodes, TrainConfig
from atta_bench.train import memory


def test_the_same_training_vertices_per_step() -> None:
    shape = memory.Shape(nodes=5000, edges=10, features=3)  # 2000 training vertices
    assert shape.batch == 1000
    each = TrainConfig(data="x", **memory.options("minibatch", 28, shape.batch))
    assert each.batch_size * each.trainers == 1000
    shared = TrainConfig(data="x", **memory.options("cooperative", 28, shape.batch))
    assert 2000 / (shared.co_batches or 0) == 1000
    assert (each.depth, each.hidden, each.model) == (shared.depth, shared.hidden, shared.model)


@pytest.mark.parametrize("strategy", ["minibatch", "cooperative"])
def test_the_command_has_the_same_settings(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    seen: list[TrainConfig] = []

    def fit(config: TrainConfig, nodes: Nodes) -> None:
        assert nodes == Nodes()
        seen.append(config)
        raise ConfigError("seen enough")

    monkeypatch.setattr("atta.train.fit", fit)
    settings = memory.options(strategy, 28, 1000)
    CliRunner().invoke(train, ["--data", "x", *memory.as_arguments(settings)])
    assert seen == [TrainConfig(data="x", **settings)]
