"""Learning rates, steps of several batches, early stopping, weights of other runs: beside torch and brute force."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, DataError, UnknownNameError
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint.files import BEST, LAST, load_weights
from atta.train.checkpoint.run import load_checkpoint, save_best, save_checkpoint
from atta.train.models import build_model, whole_model
from atta.train.reports.epochs import Watched
from atta.train.settings.common import parse_early_stop, patience_of
from atta.train.steps.step import LearningRate, StepPart, SyncClock, step_parts, timed_step
from atta.train.steps.timing import Stopwatch
from atta.train.tasks.choice import watched_by

CPU = torch.device("cpu")


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"data": "somewhere", "epochs": 20, **settings})


def optimizer_of(lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.Adam(torch.nn.Linear(2, 2).parameters(), lr)


def rates(
    settings: TrainConfig, figures: list[float | None], *, rises: bool = True, saved: int | None = None
) -> list[float]:
    """The rate of each epoch; after ``saved`` epochs everything goes on in new objects, from state dicts."""
    optimizer = optimizer_of()
    schedule = LearningRate(settings, optimizer, rises=rises)
    found = []
    for epoch, figure in enumerate(figures):
        if epoch == saved:
            again = optimizer_of()
            resumed = LearningRate(settings, again, rises=rises)
            again.load_state_dict(optimizer.state_dict())
            resumed.load_state_dict(schedule.state_dict())
            optimizer, schedule = again, resumed
        found.append(schedule.present)
        optimizer.step()
        schedule.epoch_done(figure)
    return found


# -- learning rates ----------------------------------------------------------------------------------------------------


def test_cosine_is_that_of_torch_and_steps_fall_at_fixed_epochs() -> None:
    optimizer = optimizer_of()
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    expected = []
    for _ in range(20):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert rates(config(lr_schedule="cosine"), [None] * 20) == pytest.approx(expected)
    found = rates(config(lr_schedule="step", lr_every=3, lr_factor=0.5), [None] * 8)
    assert found == pytest.approx([0.1] * 3 + [0.05] * 3 + [0.025] * 2)
    assert rates(config(), [0.5] * 5) == [0.1] * 5


@given(st.lists(st.none() | st.integers(0, 4), max_size=25), st.integers(1, 4), st.booleans())
def test_plateaus_fall_after_evaluations_without_a_better_figure(
    curve: list[int | None], every: int, rises: bool
) -> None:
    figures = [None if figure is None else float(figure) for figure in curve]
    found = rates(config(lr_schedule="plateau", lr_every=every, lr_factor=0.5), figures, rises=rises)
    rate, best, waited, expected = 0.1, None, 0, []
    for figure in figures:
        expected.append(rate)
        if figure is None:
            continue
        if best is None or (figure > best if rises else figure < best):
            best, waited = figure, 0
            continue
        waited += 1
        if waited == every:
            rate, waited = rate * 0.5, 0
    # torch ignores changes of the rate below 1e-8.
    assert found == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("schedule", ["cosine", "step", "plateau"])
@pytest.mark.parametrize("saved", [1, 4, 7])
def test_a_resumed_schedule_goes_on_bit_for_bit(schedule: str, saved: int) -> None:
    settings = config(lr_schedule=schedule, **({} if schedule == "cosine" else {"lr_every": 2, "lr_factor": 0.3}))
    figures: list[float | None] = [0.1, 0.2, None, 0.2, 0.1, 0.3, 0.3, 0.2, None, 0.3, 0.4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates(settings, figures, saved=saved) == rates(settings, figures)


@given(st.integers(0, 30), st.integers(1, 8))
def test_each_step_has_a_first_and_a_last_batch_and_weighs_one(batches: int, together: int) -> None:
    steps: list[list[StepPart]] = []
    for part in step_parts(batches, together):
        if part.first:
            steps.append([])
        steps[-1].append(part)
        assert part.last == (len(steps[-1]) == together or sum(map(len, steps)) == batches)
    assert [len(step) for step in steps] == [min(together, batches - i) for i in range(0, batches, together)]
    for step in steps:
        assert sum(part.share for part in step) == pytest.approx(1)


def test_accumulated_gradients_are_those_of_one_large_batch() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(24, 3), torch.randn(24, 2)
    ends = []
    for size in (24, 8):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer, clock = torch.optim.SGD(model.parameters(), 0.1), SyncClock(Stopwatch(CPU))
        update = Mock(side_effect=optimizer.step)
        for _ in range(3):
            for part, rows in zip(step_parts(24 // size, 3), torch.arange(24).split(size), strict=True):

                def loss(rows: torch.Tensor = rows, model: torch.nn.Module = model) -> torch.Tensor:
                    return torch.nn.functional.mse_loss(model(x[rows]), y[rows])

                timed_step(loss, optimizer, clock, part, update=update)
        assert update.call_count == 3
        ends.append(model.weight.detach())
    torch.testing.assert_close(ends[0], ends[1])


def test_early_stopping_names_a_metric_and_a_patience() -> None:
    assert parse_early_stop("loss:5") == parse_early_stop("val_loss:5") == ("loss", 5)
    for text in ("loss", "loss:", ":5", "loss:0", "loss:-1", "loss:x", "", "5", "loss:1.5"):
        with pytest.raises(ConfigError, match="give METRIC:PATIENCE, such as loss:5"):
            config(early_stop=text)


def test_the_metric_must_be_one_of_the_task() -> None:
    assert watched_by(config(early_stop="loss:3", task="labels")) == Watched("val_loss", rises=False)
    assert watched_by(config(early_stop="macro_f1:3", task="labels")) == Watched("val_macro_f1")
    assert watched_by(config(early_stop="r2:3", task="regression")) == Watched("val_r2")
    with pytest.raises(UnknownNameError, match="unknown metric of --task labels 'accuracy'"):
        watched_by(config(early_stop="accuracy:3", task="labels"))


def test_patience_of_both_options() -> None:
    assert patience_of(config()) is None
    assert patience_of(config(patience=4)) == patience_of(config(early_stop="loss:4")) == 4
    with pytest.raises(ConfigError, match="give either --patience"):
        config(patience=4, early_stop="loss:4")


# -- weights of another run --------------------------------------------------------------------------------------------

SAMPLED = config(num_neighbors=(2, 2), hidden=4)
WHOLE = config(strategy="full", layers=2, hidden=4)
EPOCH = EpochReport(0, 1.0, 0.5, 10.0, 20.0, 30.0, {})


def test_weights_come_from_any_strategy(tmp_path: Path) -> None:
    sampled, whole = build_model(SAMPLED, 3, 2), whole_model(WHOLE, 3, 2)
    save_best(tmp_path, SAMPLED, sampled, EPOCH)
    load_weights(tmp_path, whole, CPU)
    for mine, theirs in zip(whole.parameters(), sampled.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    other = build_model(SAMPLED, 3, 2)
    save_checkpoint(tmp_path / "b", WHOLE, whole, torch.optim.Adam(whole.parameters()), [EPOCH])
    load_weights(tmp_path / "b" / LAST, other, CPU)
    for mine, theirs in zip(other.parameters(), sampled.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_best(tmp_path, SAMPLED, build_model(SAMPLED, 3, 2), EPOCH)
    with pytest.raises(DataError, match=r"convs\.1\.lin_l\.bias is \(2,\) there and \(5,\) here"):
        load_weights(tmp_path, build_model(SAMPLED, 3, 5), CPU)
    with pytest.raises(DataError, match=r"convs\.0\.bias is absent there and \(4,\) here"):
        load_weights(tmp_path, build_model(config(num_neighbors=(2, 2), hidden=4, model="gcn"), 3, 2), CPU)
    with pytest.raises(DataError, match="there is no such file"):
        load_weights(tmp_path / "absent", build_model(SAMPLED, 3, 2), CPU)
    (tmp_path / BEST).write_bytes(b"no archive")
    with pytest.raises(DataError, match=BEST):
        load_weights(tmp_path, build_model(SAMPLED, 3, 2), CPU)


def test_checkpoints_keep_the_schedule_and_refuse_another(tmp_path: Path) -> None:
    settings = config(num_neighbors=(2, 2), hidden=4, lr_schedule="plateau", lr_every=1)
    model = build_model(settings, 3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    schedule = LearningRate(settings, optimizer, rises=False)
    optimizer.step()
    for figure in (1.0, 2.0):
        schedule.epoch_done(figure)
    save_checkpoint(tmp_path, settings, model, optimizer, [EPOCH], schedule=schedule)
    again = torch.optim.Adam(model.parameters(), 0.1)
    resumed = LearningRate(settings, again, rises=False)
    load_checkpoint(tmp_path, settings, model, again, CPU, schedule=resumed)
    assert resumed.present == schedule.present == pytest.approx(0.01)
    assert resumed.state_dict() == schedule.state_dict()
    with pytest.raises(DataError, match="was made with lr_schedule plateau, not none"):
        load_checkpoint(tmp_path, SAMPLED, model, again, CPU)
    other = config(num_neighbors=(2, 2), hidden=4, lr_schedule="plateau", lr_every=1, task="labels")
    with pytest.raises(DataError, match="was made with task auto, not labels"):
        load_checkpoint(tmp_path, other, model, again, CPU)
