"""Loggers: what ``--logger`` says, and what they are told of a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from atta.errors import ConfigError, DataError
from atta.train.config import TrainConfig
from atta.train.reports.epochs import PHASES, EpochReport
from atta.train.reports.loggers import CsvLogger, RunLog, figures_of, make_logger
from atta.train.settings.common import parse_logger


def report(epoch: int, **metrics: float) -> EpochReport:
    return EpochReport(epoch, 1.5, 0.25, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.125)).evaluated(metrics)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


class Recorder:
    """What a logger of somebody else may be: it remembers what it is told."""

    def __init__(self, where: str = "here", **more: Any) -> None:
        self.told: list[Any] = [(where, more)]

    def log_hyperparams(self, params: dict[str, Any]) -> None:
        self.told.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.told.append((step, metrics["loss"]))

    def finalize(self, status: str) -> None:
        self.told.append(status)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("csv save_dir=runs/a", "csv", {"save_dir": "runs/a"}),
        ("a.b.C", "a.b.C", {}),
        ("a.C x=3 y=true z='two words' u=http://h:1/p?q=1", "a.C",
         {"x": 3, "y": True, "z": "two words", "u": "http://h:1/p?q=1"}),
    ],
)  # fmt: skip
def test_a_logger_is_named_with_its_arguments(text: str, name: str, arguments: dict[str, Any]) -> None:
    found = parse_logger(text)
    assert (found.name, found.arguments) == (name, arguments)
    assert TrainConfig(data="x", logger=(text,)).logger == (text,)


@pytest.mark.parametrize("text", ["", "tsv", "csv runs", "a..b", "a.b =3", "a.b 'x", "a.b 3x=1"])
def test_what_names_no_logger_is_refused_before_training(text: str) -> None:
    with pytest.raises(ConfigError, match="--logger"):
        TrainConfig(data="x", logger=(text,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("csv", "missing a required argument: 'save_dir'"),
        ("csv save_dir=a x=1", "unexpected keyword argument 'x'"),
        ("atta.nothing.Here", "cannot be imported"),
        ("atta.train.Nothing", "cannot be imported"),
        ("atta.errors.LONGEST_NAME", "no class or function"),
        ("pathlib.Path", "has no log_hyperparams, log_metrics, finalize"),
    ],
)
def test_what_makes_no_logger_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_logger(parse_logger(text))


def test_a_class_of_somebody_else_is_told_of_the_run() -> None:
    logger: Any = make_logger(parse_logger(f"{__name__}.Recorder where=there deep=2"))
    with RunLog([logger], {"lr": 0.1}) as log:
        log.epoch(report(0))
        log.epoch(report(1))
    assert logger.told == [("there", {"deep": 2}), {"lr": 0.1}, (0, 0.25), (1, 0.25), "success"]
    with pytest.raises(KeyError), RunLog([logger], {}):
        raise KeyError
    assert logger.told[-1] == "failed"


def test_figures_that_are_not_known_are_left_out() -> None:
    found = figures_of(report(2, val_accuracy=0.5, test_accuracy=0.75))
    assert found["loss"] == 0.25
    assert found["seconds_compute"] == 0.125
    assert (found["val_accuracy"], found["test_accuracy"]) == (0.5, 0.75)
    assert "learning_rate" not in found
    assert all(type(value) is float for value in found.values())


def test_the_table_is_complete_after_each_epoch_and_goes_on_when_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with RunLog([CsvLogger(str(folder))], {"lr": 0.1, "cluster": None}) as log:
        for epoch in range(4):
            log.epoch(report(epoch, **({"val_accuracy": epoch / 8} if epoch % 2 else {})))
            assert [row["step"] for row in rows(folder)] == [str(e) for e in range(epoch + 1)]
    assert json.loads((folder / "hparams.json").read_text()) == {"lr": 0.1, "cluster": None}
    assert [row["val_accuracy"] for row in rows(folder)] == ["", "0.125", "", "0.375"]
    assert {float(row["seeds_per_s"]) for row in rows(folder)} == {10.0}
    with RunLog([CsvLogger(str(folder))], {}) as log:
        log.epoch(report(2, test_mae=1.0))
    assert [(row["step"], row["val_accuracy"], row["test_mae"]) for row in rows(folder)] == [
        ("0", "", ""), ("1", "0.125", ""), ("2", "", "1.0"),
    ]  # fmt: skip
    (folder / "metrics.csv").write_text("epoch,x\n1,2\n")
    with pytest.raises(DataError, match="figures of an earlier run"):
        CsvLogger(str(folder))
