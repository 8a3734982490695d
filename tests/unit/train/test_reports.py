"""Reports: best epoch, patience, contents of the JSON, what a person sees, and what loggers are told."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.main import cli
from atta.cli.train import _print
from atta.errors import AttaError, ConfigError, DataError, NonFiniteError
from atta.train import EpochReport, TrainConfig, TrainReport
from atta.train.reports.display import Display
from atta.train.reports.epochs import PHASES, Watched, best_epoch, stalled
from atta.train.reports.loggers import CsvLogger, RunLog, figures_of, make_logger
from atta.train.settings.common import parse_logger

Curve = list[float | None]
curves = st.lists(st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


def epochs(curve: Curve) -> list[EpochReport]:
    phases = dict.fromkeys(PHASES, 0.1)
    return [EpochReport(i, 1.0, 0.5, 10.0, 20.0, 30.0, phases, val_accuracy=v) for i, v in enumerate(curve)]


def measured(metric: str, curve: Curve) -> list[EpochReport]:
    return [e if v is None else e.evaluated({metric: v}) for e, v in zip(epochs([None] * 12), curve, strict=False)]


@given(curves, st.booleans())
def test_best_is_the_first_of_the_best(curve: Curve, rises: bool) -> None:
    found, watched = measured("val_mae", curve), Watched("val_mae", rises=rises)
    validated, best = [v for v in curve if v is not None], best_epoch(found, watched)
    assert best_epoch(found) is None  # nothing has an accuracy
    if not validated:
        assert best is None
        assert TrainReport(TrainConfig(data="x"), found).best.epoch == len(curve) - 1
    else:
        assert best.epoch == curve.index((max if rises else min)(validated))


@given(curves, st.integers(1, 5), st.booleans())
def test_patience_counts_validations_since_the_best(curve: Curve, patience: int, rises: bool) -> None:
    best, since = None, 0
    for value in curve:
        if value is not None:
            better = best is None or (value > best if rises else value < best)
            best, since = (value, 0) if better else (best, since + 1)
    assert stalled(measured("val_mae", curve), patience, Watched("val_mae", rises=rises)) == (since >= patience)


def test_losses_are_finite_and_lines_go_to_terminals_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for loss in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(NonFiniteError, match=r"^epoch 1: losses have an infinity or NaN"):
            replace(epochs([None, None])[1], loss=loss).check_loss()
    assert "val" not in epochs([None])[0].line()
    whole = epochs([0.5])[0].line()
    assert "val 50.00 %" in whole
    assert whole.endswith("sync 0.10]")
    monkeypatch.setenv("TERM", "xterm")
    found = []
    for screen, enabled in ((Terminal(), True), (io.StringIO(), True), (Terminal(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        display = Display(enabled)
        with display.batches("epoch 3", 2) as step:
            step()
            step()
        display.line("epoch 3 is done")
        found.append(screen.getvalue())
    assert "2/2" in found[0]
    assert found[0].endswith("epoch 3 is done\n")
    assert found[1:] == ["epoch 3 is done\n", ""]
    read, written = os.pipe()
    os.close(read)
    with contextlib.suppress(BrokenPipeError), open(written, "w") as nobody:  # closing it fails, too
        monkeypatch.setattr(sys, "stderr", nobody)
        Display(True).line("epoch 4 is done")
        found.append("nobody reads it")
    assert found[-1] == "nobody reads it"
    for screen, columns, line in (
        (Terminal(), len(whole), whole),
        (Terminal(), len(whole) - 1, whole.partition("  [s:")[0]),
        (io.StringIO(), 40, whole),
    ):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stderr", screen)
        Display(True).epoch(epochs([0.5])[0])
        assert screen.getvalue() == f"{line}\n"


def test_json_holds_what_scripts_read() -> None:
    report = TrainReport(TrainConfig(data="x", model="gcn"), epochs([None, 0.5, 0.25]))
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (value["schema"], value["strategy"], value["model"]) == (1, "minibatch", "gcn")
    assert value["best"] == {"epoch": 1, "val_accuracy": 0.5, "test_accuracy": None, "metrics": {}}
    assert set(value["epochs"][0]["breakdown"]) >= {"sample", "fetch", "copy", "compute", "sync"}
    assert value["config"]["num_neighbors"] == [15, 10, 5]
    assert value["machine"]["cores"] >= 1
    assert "torch" in value["versions"]

    made = epochs([None, 0.5])
    made[1] = replace(made[1], loss=float("inf"), learning_rate=float("nan")).evaluated({"val_loss": -float("inf")})
    value = json.loads(json.dumps(TrainReport(TrainConfig(data="x"), made).to_json(), allow_nan=False))
    assert [epoch["loss"] for epoch in value["epochs"]] == [0.5, None]
    assert value["epochs"][1]["learning_rate"] is None
    assert value["best"]["metrics"] == value["epochs"][1]["metrics"] == {"val_loss": None}


def test_the_best_epoch_is_printed_and_what_was_not_validated_not_as_0(capsys: pytest.CaptureFixture[str]) -> None:
    tested = {"test_accuracy": 0.75}
    for metrics, said in (
        (tested, "last epoch 1: test accuracy 75.00 %"),
        ({"val_accuracy": 0.5, **tested}, "best epoch 0: val 50.00 %, test accuracy 75.00 %"),
    ):
        _print(TrainReport(TrainConfig(data="x", task="classes"), [e.evaluated(metrics) for e in epochs([None, None])]))
        assert capsys.readouterr().out.splitlines()[0] == said
    config = TrainConfig(data="x", task="regression", early_stop="mae:3")
    made = epochs([None, None, None])
    for i, (mse, mae) in enumerate([(1.0, 3.0), (2.0, 1.0), (3.0, 2.0)]):
        made[i] = made[i].evaluated({"val_mse": mse, "val_mae": mae, "test_mse": mse / 2, "test_mae": mae / 2})
    _print(TrainReport(config, made))
    assert capsys.readouterr().out.splitlines()[0] == "best epoch 1: val_mae 1.0000; test mse 1.0000, mae 0.5000"
    assert "val_mse 2.0000  test_mse 1.0000" in made[1].line()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("error", "done", "interrupted", "said"),
    [
        (KeyboardInterrupt(), 2, True, None),
        (KeyboardInterrupt(), 0, True, None),
        (AttaError("rank 1: gone"), 2, False, "rank 1: gone"),
        (AttaError("rank 1: gone"), 0, False, "rank 1: gone"),
        (DataError("x.npy", "was changed"), 1, False, "x.npy: was changed"),
    ],
)
def test_a_run_that_breaks_off_leaves_its_report(
    error: BaseException,
    done: int,
    interrupted: bool,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fit(config: TrainConfig, _: object, so_far: TrainReport) -> None:
        so_far.config, so_far.epochs = replace(config, task="classes"), epochs([0.5, 0.25])[:done]
        if done:
            saved.mkdir()  # with the first checkpoint
        raise error

    saved, words = tmp_path / "saved", ["train", "--data", "x", "--checkpoint", str(tmp_path / "saved")]
    monkeypatch.setattr("atta.train.fit", fit)
    monkeypatch.setattr(TrainConfig, "check_named", lambda _: None)
    with pytest.raises(type(error) if said else click.Abort):
        cli.main([*words, "--json", str(tmp_path / "r.json")], standalone_mode=False)
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["interrupted"], found["error"], len(found["epochs"])) == (interrupted, said, done)
    assert (found["best"] is None) == (done == 0)
    assert found["config"]["task"] == "classes"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", *["saved"] * (done > 0)]
    assert not done or json.loads((saved / "report.json").read_text()) == found


def test_a_run_that_does_not_begin_leaves_the_report_of_before(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")
    with pytest.raises(DataError):
        cli.main(["train", "--data", str(tmp_path), "--json", str(tmp_path / "r.json")], standalone_mode=False)
    assert (tmp_path / "r.json").read_text() == "{}"


def logged(epoch: int, **metrics: float) -> EpochReport:
    return EpochReport(epoch, 1.5, 0.25, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.125)).evaluated(metrics)


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


def test_a_logger_is_named_with_its_arguments() -> None:
    several = {"x": 3, "y": True, "z": "two words, or more", "u": "http://h:1/p?q=1", "tags": ["a", "b"]}
    for text, *wanted in (
        ("csv:save_dir=runs/a", "csv", {"save_dir": "runs/a"}),
        ("a.b.C", "a.b.C", {}),
        ('a.C:x=3,y=true, z=two words, or more,u=http://h:1/p?q=1,tags=["a", "b"]', "a.C", several),
    ):
        assert parse_logger(text) == (*wanted,)
        assert TrainConfig(data="x", logger=(text,)).logger == (text,)


def test_what_names_or_makes_no_logger_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"csv save_dir=a.*: give NAME or NAME:KEY=VALUE,\.\.\.; NAME is csv, "):
        TrainConfig(data="x", logger=("csv save_dir=a",))
    with pytest.raises(ConfigError, match="--logger csv:runs: 'runs' is not KEY=VALUE: write it as csv:KEY=VALUE,"):
        TrainConfig(data="x", logger=("csv:runs",))
    for text in ("", "tsv", "csv:", "a..b", "a.b:=3", "a.b:'x", "a.b:3x=1", "a.b:x=1,x=2"):
        with pytest.raises(ConfigError, match="--logger"):
            TrainConfig(data="x", logger=(text,))
    for text, words in (
        ("csv", "missing a required argument: 'save_dir'"),
        ("csv:save_dir=a,x=1", "unexpected keyword argument 'x'"),
        ("atta.nothing.Here", "cannot be imported"),
        ("atta.train.Nothing", "cannot be imported"),
        ("atta.errors.LONGEST_NAME", "no class or function"),
        ("pathlib.Path", "has no log_hyperparams, log_metrics, finalize"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_logger(text)


def test_a_class_of_somebody_else_is_told_of_the_run() -> None:
    logger: Any = make_logger(f"{__name__}.Recorder:where=there,deep=2")
    with RunLog([logger], {"lr": 0.1}) as log:
        log.epoch(logged(0))
        log.epoch(logged(1))
    assert logger.told == [("there", {"deep": 2}), {"lr": 0.1}, (0, 0.25), (1, 0.25), "success"]
    with pytest.raises(KeyError), RunLog([logger], {}):
        raise KeyError
    assert logger.told[-1] == "failed"

    found = figures_of(logged(2, val_accuracy=0.5, test_accuracy=0.75))
    assert found["loss"] == 0.25
    assert found["seconds_compute"] == 0.125
    assert (found["val_accuracy"], found["test_accuracy"]) == (0.5, 0.75)
    assert "learning_rate" not in found
    assert all(type(value) is float for value in found.values())


def test_the_table_is_complete_after_each_epoch_and_goes_on_when_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    def rows() -> list[dict[str, str]]:
        return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))

    with RunLog([CsvLogger(str(folder))], {"lr": 0.1, "cluster": None}) as log:
        for epoch in range(4):
            log.epoch(logged(epoch, **({"val_accuracy": epoch / 8} if epoch % 2 else {})))
            assert [row["step"] for row in rows()] == [str(e) for e in range(epoch + 1)]
    assert json.loads((folder / "hparams.json").read_text()) == {"lr": 0.1, "cluster": None}
    assert [row["val_accuracy"] for row in rows()] == ["", "0.125", "", "0.375"]
    assert {float(row["seeds_per_s"]) for row in rows()} == {10.0}
    with RunLog([CsvLogger(str(folder))], {}) as log:
        log.epoch(logged(2, test_mae=1.0))
    assert [(row["step"], row["val_accuracy"], row["test_mae"]) for row in rows()] == [
        ("0", "", ""), ("1", "0.125", ""), ("2", "", "1.0"),
    ]  # fmt: skip
    (folder / "metrics.csv").write_text("epoch,x\n1,2\n")
    with pytest.raises(DataError, match="figures of an earlier run"):
        CsvLogger(str(folder))
