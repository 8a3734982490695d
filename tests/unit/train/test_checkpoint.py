"""Checkpoints: all comes back, nothing else is read, and the old one survives a crash. Rates, steps, early stopping."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import resource
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, DataError, DiskFullError, UnknownNameError
from atta.partition.disk.staging import StagedFile
from atta.partition.schema import Schema, TableSpec
from atta.train import EpochReport, TrainConfig
from atta.train.checkpoint.files import (
    BEST,
    BEST_WEIGHTS,
    LAST,
    VERSION,
    check_folder,
    check_names,
    fill,
    load_first,
    load_model,
    names_of,
    seal,
)
from atta.train.checkpoint.run import check_saved, load_checkpoint, remove_best, save_best, save_checkpoint
from atta.train.models import build_model, whole_model
from atta.train.reports.epochs import PHASES, Watched
from atta.train.settings.common import parse_early_stop, patience_of
from atta.train.steps.step import LearningRate, StepPart, SyncClock, step_parts, timed_step
from atta.train.steps.timing import Stopwatch
from atta.train.tasks.choice import watched_by

CPU = torch.device("cpu")
CONFIG = TrainConfig(data="x", num_neighbors=(2, 2), hidden=4)
WHOLE = TrainConfig(data="x", strategy="full", layers=2, hidden=4)
EPOCH = EpochReport(0, 1.0, 0.5, 10.0, 20.0, 30.0, dict.fromkeys(PHASES, 0.1), val_accuracy=0.25)


def trained(steps: int, config: TrainConfig = CONFIG) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = build_model(config, 3, 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3), torch.empty((2, 0), dtype=torch.int64), [4, 0, 0], [0, 0]).sum().backward()
        optimizer.step()
    return model, optimizer


def test_best_model_is_a_file_of_its_own_and_without_it_the_last_one_is_taken(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, CONFIG, *trained(0), CPU).epochs == [], "without a checkpoint the run begins"
    model, _ = trained(2)
    save_best(tmp_path, CONFIG, model, EPOCH)
    saved = torch.load(tmp_path / BEST, weights_only=True)
    assert saved["epoch"]["val_accuracy"] == 0.25
    assert set(saved["model"]) == set(model.state_dict())
    with zipfile.ZipFile(tmp_path / BEST) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"atta-xxh3:")
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    assert load_model(tmp_path).path.name == BEST
    for _ in range(2):  # the second time there is nothing to remove
        remove_best(tmp_path)
        assert load_model(tmp_path).path.name == LAST
        assert not (tmp_path / BEST_WEIGHTS).exists()


def test_another_model_or_strategy_and_a_truncated_file_are_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    with pytest.raises(DataError, match="hidden 4, not 8"):
        load_checkpoint(tmp_path, replace(CONFIG, hidden=8), *trained(0, replace(CONFIG, hidden=8)), CPU)
    with pytest.raises(DataError, match="strategy minibatch, not full"):
        load_checkpoint(tmp_path, WHOLE, *trained(0), CPU)
    for keep in (2000, 100, 0):
        os.truncate(tmp_path / LAST, keep)
        with pytest.raises(DataError, match=LAST):
            load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive = io.BytesIO()
    torch.save({"version": VERSION, "model": Evil()}, archive)
    for content, words in (
        (seal(archive.getvalue()), "cannot be read"),
        (seal(pickle.dumps(Evil()) + b".."), "cannot be read"),
        (archive.getvalue(), f"{LAST}: does not end with its checksum"),
    ):
        (tmp_path / LAST).write_bytes(content)
        with pytest.raises(DataError, match=words):
            load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    assert not (tmp_path / "hacked").exists()


def test_every_flipped_bit_is_noticed(tmp_path: Path, seed: int) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(2), [EPOCH])
    whole = (tmp_path / LAST).read_bytes()
    bits = random.Random(seed).sample(range(8 * len(whole)), 150)
    # The checksum itself, and the mark before it that tells files with a checksum from others.
    bits += range(8 * (len(whole) - 30), 8 * len(whole))
    fresh = trained(0)
    for bit in bits:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / LAST).write_bytes(flipped)
        with pytest.raises(DataError, match=LAST):
            load_checkpoint(tmp_path, CONFIG, *fresh, CPU)
    (tmp_path / LAST).write_bytes(whole)
    assert load_checkpoint(tmp_path, CONFIG, *fresh, CPU).epochs == [EPOCH]


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, CONFIG, *trained(1), [EPOCH])
    before = (tmp_path / LAST).read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        for save in (
            lambda: save_checkpoint(tmp_path, CONFIG, *trained(2), [EPOCH, EPOCH]),
            lambda: save_best(tmp_path, CONFIG, trained(2)[0], EPOCH),
        ):
            with pytest.raises(DiskFullError, match=r"\.pt: no space left"):
                save()
        with pytest.raises(DiskFullError, match=r"deep.*: no space left"):
            check_folder(tmp_path / "deep" / "er")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [p.name for p in tmp_path.iterdir()] == [LAST]
    assert (tmp_path / LAST).read_bytes() == before


def test_pipes_and_folders_are_no_checkpoints(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LAST)
    with pytest.raises(DataError, match=f"{LAST}: a named pipe"):
        load_checkpoint(tmp_path, CONFIG, *trained(0), CPU)
    with pytest.raises(ConfigError, match=f"{LAST} in it is not a regular file"):
        check_folder(tmp_path)
    with pytest.raises(ConfigError, match="not a regular file"):
        save_checkpoint(tmp_path, CONFIG, *trained(0), [EPOCH])


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    for name in (LAST, BEST):  # what a killed run left is removed by the next
        (tmp_path / f"{name}.partial").write_bytes(b"half")
    with StagedFile(tmp_path / BEST):  # another process is writing this one
        check_folder(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == [f"{BEST}.partial"]
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(ConfigError, match=f"--checkpoint .*{place}: cannot be written: Not a directory"):
            check_folder(tmp_path / place)

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
        check_folder(tmp_path)


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"data": "somewhere", "epochs": 20, **settings})


def optimizer_of(lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.Adam(torch.nn.Linear(2, 2).parameters(), lr)


def rates(given: TrainConfig, figures: list[float | None], *, rises: bool = True, saved: int = -1) -> list[float]:
    """The rate of each epoch; after ``saved`` epochs everything goes on in new objects, from state dicts."""
    optimizer = optimizer_of()
    schedule = LearningRate(given, optimizer, rises=rises)
    found = []
    for epoch, figure in enumerate(figures):
        if epoch == saved:
            again = optimizer_of()
            resumed = LearningRate(given, again, rises=rises)
            again.load_state_dict(optimizer.state_dict())
            resumed.load_state_dict(schedule.state_dict())
            optimizer, schedule = again, resumed
        found.append(schedule.present)
        optimizer.step()
        schedule.epoch_done(figure)
    return found


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
def test_rates_fall_after_evaluations_without_a_better_figure(curve: list[int | None], every: int, rises: bool) -> None:
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


def test_early_stopping_names_a_metric_of_the_task_and_a_patience() -> None:
    assert parse_early_stop("loss:5") == parse_early_stop("val_loss:5") == ("loss", 5)
    for text in ("loss", "loss:", ":5", "loss:0", "loss:-1", "loss:x", "", "5", "loss:1.5"):
        with pytest.raises(ConfigError, match="give METRIC:PATIENCE, such as loss:5"):
            config(early_stop=text)
    assert watched_by(config(early_stop="loss:3", task="labels")) == Watched("val_loss", rises=False)
    assert watched_by(config(early_stop="macro_f1:3", task="labels")) == Watched("val_macro_f1")
    assert watched_by(config(early_stop="r2:3", task="regression")) == Watched("val_r2")
    with pytest.raises(UnknownNameError, match="unknown metric of --task labels 'accuracy'"):
        watched_by(config(early_stop="accuracy:3", task="labels"))
    assert patience_of(config()) is None
    assert patience_of(config(patience=4)) == patience_of(config(early_stop="loss:4")) == 4
    with pytest.raises(ConfigError, match="give either --patience"):
        config(patience=4, early_stop="loss:4")


SAMPLED = config(num_neighbors=(2, 2), hidden=4)


def data(*columns: str, y: tuple[str, ...] = (), typed: bool = False, **values: tuple[str, ...]) -> Schema:
    """A graph with columns and classes of these names. ``values``: of columns that are categories."""
    node_types = ("author", "paper") if typed else ("paper",)
    tables = {"paper": {"x": TableSpec("<f4", (3,)), "y": TableSpec("<i8")}}
    classes = {"y": [*y]} if y else {}
    return Schema(
        node_types, ("paper__cites__paper",), dict.fromkeys(node_types, 4), {"paper__cites__paper": 3}, tables,
        {"paper__cites__paper": {"y": TableSpec("<i8")}}, num_classes=2,
        classes={"paper": classes | {f"x/{name}": [*of] for name, of in values.items()}},
        columns={"paper": {"x": [*columns]}} if columns else {},
    )  # fmt: skip


def begin(path: Path, model: torch.nn.Module) -> None:
    first = load_first(path, CPU, data())
    fill(model, first.weights, first.path)


NAMED = data("age", "town", y=("cat", "dog"), town=("Bonn", "Graz"))
OTHERS = [
    (data("age", "town", y=("dog", "cat"), town=("Bonn", "Graz")), "classes: .* it has 'cat', 'dog'; .* has 'dog', 'cat'"),
    (data("age", "town", y=("cat",), town=("Bonn", "Graz")), "classes: from number 1 on it has 'dog'; this data has none:"),
    (data("town", "age", y=("cat", "dog"), town=("Bonn", "Graz")), "features: .* 0 on it has 'age', .*has 'town=Bonn',"),
    (data("age", "town", y=("cat", "dog"), town=("Graz", "Bonn")), "1 on it has 'town=Bonn', .* has 'town=Graz'"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), OTHERS)
def test_data_with_other_names_is_refused(tmp_path: Path, schema: Schema, words: str) -> None:
    settings = replace(SAMPLED, task="classes")
    model, optimizer = trained(1, settings)
    save_checkpoint(tmp_path, settings, model, optimizer, [EPOCH], schema=NAMED)
    save_best(tmp_path, settings, model, EPOCH, schema=NAMED)
    saved = load_model(tmp_path)
    assert saved.shape["names"] == {"features": ["age", "town=Bonn", "town=Graz"], "classes": ["cat", "dog"]}
    for same in (NAMED, data()):
        check_names(saved.path, saved.shape, same)
        load_checkpoint(tmp_path, settings, model, optimizer, CPU, schema=same)
    for refused in (
        lambda: load_model(tmp_path, schema),
        lambda: load_checkpoint(tmp_path, settings, model, optimizer, CPU, schema=schema),
        lambda: check_saved(replace(settings, checkpoint=str(tmp_path), resume=True), schema),
    ):
        with pytest.raises(DataError, match=words):
            refused()
    if "classes" not in words:
        with pytest.raises(DataError, match=words):
            load_first(tmp_path, CPU, schema)
    else:
        assert load_first(tmp_path, CPU, NAMED).other_classes == ""
        assert "was trained with other classes: from number" in load_first(tmp_path, CPU, schema).other_classes


def test_names_are_those_of_what_a_model_reads_and_gives() -> None:
    schema = data("age", y=("cat", "dog"), typed=True)
    assert names_of(schema, {"task": "classes", "target": "paper"}) == {
        "features of paper": ["age"],
        "classes": ["cat", "dog"],
    }
    assert names_of(schema, {"task": "link", "edge_type": "paper__cites__paper"}) == {"features of paper": ["age"]}
    schema.classes["paper__cites__paper"] = {"y": ["yes", "no"]}
    assert names_of(schema, {"task": "edge-classes"}) == {"features of paper": ["age"], "classes": ["yes", "no"]}


def test_weights_of_another_kind_are_refused_before_a_run_begins(tmp_path: Path) -> None:
    settings = replace(SAMPLED, model="sage", task="classes", init_from=str(tmp_path))
    save_best(tmp_path, settings, build_model(SAMPLED, 3, 2), EPOCH, schema=NAMED)
    check_saved(settings, OTHERS[0][0])  # classes are learnt anew
    for other, schema, words in (
        (replace(settings, task="link"), NAMED, "has a model sage of --task classes, .* fit sage of --task link"),
        (replace(settings, model="rgcn"), NAMED, "which does not fit rgcn of --task classes"),
        (settings, OTHERS[2][0], "other features"),
    ):
        with pytest.raises(DataError, match=words):
            check_saved(other.own, schema)


def test_weights_come_from_any_strategy(tmp_path: Path) -> None:
    sampled, whole = build_model(SAMPLED, 3, 2), whole_model(WHOLE, 3, 2)
    save_best(tmp_path, SAMPLED, sampled, EPOCH)
    begin(tmp_path, whole)
    other = build_model(SAMPLED, 3, 2)
    save_checkpoint(tmp_path / "b", WHOLE, whole, torch.optim.Adam(whole.parameters()), [EPOCH])
    begin(tmp_path / "b" / LAST, other)
    for weights in zip(*(model.parameters() for model in (sampled, whole, other)), strict=True):
        assert torch.equal(weights[0], weights[1])
        assert torch.equal(weights[0], weights[2])


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_best(tmp_path, SAMPLED, build_model(SAMPLED, 3, 2), EPOCH)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / BEST).write_bytes(b"no archive")
    model = build_model(SAMPLED, 3, 2)
    for folder, into, words in (
        (".", build_model(SAMPLED, 3, 5), r"expects 2 classes or other outputs, this data has 5$"),
        (".", build_model(SAMPLED, 4, 2), r"expects 3 features per vertex, this data has 4$"),
        (".", build_model(SAMPLED, 4, 5), r"3 features per vertex, this data has 4; 2 .* outputs, this data has 5$"),
        (".", build_model(replace(SAMPLED, hidden=8), 3, 2), r"convs\.0\.lin_l\.bias is \(4,\) there and \(8,\) here"),
        (".", build_model(replace(SAMPLED, model="gcn"), 3, 2), r"convs\.0\.bias is absent there and \(4,\) here"),
        ("absent", model, "there is no such file"),
        ("other", model, BEST),
    ):
        with pytest.raises(DataError, match=words):
            begin(tmp_path / folder, into)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "resgcn+", "deepergcn"])
def test_a_run_on_other_data_is_told_what_differs(tmp_path: Path, kind: str) -> None:
    config = replace(CONFIG, model=kind)
    model = build_model(config, 3, 2)
    save_checkpoint(tmp_path, config, model, torch.optim.Adam(model.parameters()), [EPOCH])
    other = build_model(config, 4, 5)
    said = r"expects 3 features per vertex, this data has 4; 2 classes or other outputs, this data has 5$"
    with pytest.raises(DataError, match=said):
        load_checkpoint(tmp_path, config, other, torch.optim.Adam(other.parameters()), CPU)


def test_checkpoints_keep_the_schedule_and_refuse_another(tmp_path: Path) -> None:
    settings = replace(SAMPLED, lr_schedule="plateau", lr_every=1)
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
    others: dict[str, Any] = {"task auto, not labels": {"task": "labels"}, "lr 0.01, not 0.5": {"lr": 0.5}}
    for words, other in {**others, "weight_decay 0.0, not 0.1": {"weight_decay": 0.1}}.items():
        with pytest.raises(DataError, match=f"was made with {words}"):
            load_checkpoint(tmp_path, replace(settings, **other), model, again, CPU)
