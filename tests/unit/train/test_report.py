"""The arithmetic of reports: best epoch, patience, contents of the JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.cli.train import _print
from atta.errors import NonFiniteError
from atta.train import EpochReport, TrainConfig, TrainReport
from atta.train.reports.epochs import PHASES, best_epoch, stalled

Curve = list[float | None]
curves = st.lists(st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


def epochs(curve: Curve) -> list[EpochReport]:
    phases = dict.fromkeys(PHASES, 0.1)
    return [EpochReport(i, 1.0, 0.5, 10.0, 20.0, 30.0, phases, val_accuracy=v) for i, v in enumerate(curve)]


@given(curves)
def test_best_is_the_first_of_the_highest(curve: Curve) -> None:
    validated = [v for v in curve if v is not None]
    best = best_epoch(epochs(curve))
    if not validated:
        assert best is None
        assert TrainReport(TrainConfig(data="x"), epochs(curve)).best.epoch == len(curve) - 1
    else:
        assert best is not None
        assert best.epoch == curve.index(max(validated))


@given(curves, st.integers(1, 5))
def test_patience_counts_validations_since_the_best(curve: Curve, patience: int) -> None:
    best, since = -1.0, 0
    for value in curve:
        if value is not None:
            best, since = (value, 0) if value > best else (best, since + 1)
    assert stalled(epochs(curve), patience) == (since >= patience)


def test_json_holds_what_scripts_read() -> None:
    report = TrainReport(TrainConfig(data="x", model="gcn"), epochs([None, 0.5, 0.25]))
    value = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (value["schema"], value["strategy"], value["model"]) == (1, "minibatch", "gcn")
    assert value["best"] == {"epoch": 1, "val_accuracy": 0.5, "test_accuracy": None, "metrics": {}}
    assert set(value["epochs"][0]["breakdown"]) >= {"sample", "fetch", "copy", "compute", "sync"}
    assert value["config"]["num_neighbors"] == [15, 10, 5]
    assert value["machine"]["cores"] >= 1
    assert "torch" in value["versions"]


def test_figures_that_are_not_finite_are_null_in_json() -> None:
    made = epochs([None, 0.5])
    made[1] = replace(made[1], loss=float("inf"), learning_rate=float("nan")).evaluated({"val_loss": -float("inf")})
    value = json.loads(json.dumps(TrainReport(TrainConfig(data="x"), made).to_json(), allow_nan=False))
    assert [epoch["loss"] for epoch in value["epochs"]] == [0.5, None]
    assert value["epochs"][1]["learning_rate"] is None
    assert value["best"]["metrics"] == value["epochs"][1]["metrics"] == {"val_loss": None}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_an_error(loss: float) -> None:
    first, second = epochs([None, None])
    first.check_loss()
    with pytest.raises(NonFiniteError, match=r"^epoch 1: losses have an infinity or NaN"):
        replace(second, loss=loss).check_loss()


def test_what_was_not_validated_is_not_printed_as_0(capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(data="x", task="classes")
    for made, said in (
        ([e.evaluated({"test_accuracy": 0.75}) for e in epochs([None, None])], "last epoch 1: test accuracy 0.7500"),
        ([e.evaluated({"val_accuracy": 0.5, "test_accuracy": 0.75}) for e in epochs([None, None])],
         "best epoch 0: val 0.5000, test accuracy 0.7500"),
    ):  # fmt: skip
        _print(TrainReport(config, made))
        assert capsys.readouterr().out.splitlines()[0] == said


def test_the_line_for_people_leaves_out_what_was_not_measured() -> None:
    assert "val" not in epochs([None])[0].line()
    assert "val 50.00 %" in epochs([0.5])[0].line()


def test_epochs_have_the_same_number_for_people_and_programs() -> None:
    report = TrainReport(TrainConfig(data="x"), epochs([0.5, 0.25]))
    for line, entry in zip([e.line() for e in report.epochs], report.to_json()["epochs"], strict=True):
        assert int(line.split()[1]) == entry["epoch"]


def test_the_best_epoch_of_other_tasks_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(data="x", task="regression", early_stop="mae:3")
    made = epochs([None, None, None])
    for i, (mse, mae) in enumerate([(1.0, 3.0), (2.0, 1.0), (3.0, 2.0)]):
        made[i] = made[i].evaluated({"val_mse": mse, "val_mae": mae, "test_mse": mse / 2, "test_mae": mae / 2})
    _print(TrainReport(config, made))
    assert capsys.readouterr().out.splitlines()[0] == "best epoch 1: val_mae 1.0000; test mse 1.0000, mae 0.5000"
    assert "val_mse 2.0000  test_mse 1.0000" in made[1].line()
