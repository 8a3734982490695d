"""Whole runs with training vertices that have no label, and with labels that are not classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import atta
from atta.partition import GraphWriter, partition_graph
from atta.train import TrainConfig, fit

pytestmark = pytest.mark.usefixtures("preloaded_trainers")

VERTICES, CLASSES, TRAIN = 120, 4, 60
UNLABELLED = np.arange(0, TRAIN, 3)


def made(path: Path, labels: np.ndarray, train: np.ndarray, classes: int | None = None) -> str:
    """A random graph in two parts. Its features tell the class."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(VERTICES, 8)).astype(np.float32)
    with GraphWriter(path / "graph") as out:
        splits = {"train": train, "val": np.arange(TRAIN, 90), "test": np.arange(90, VERTICES)}
        out.add_nodes("node", VERTICES, tables={"x": x, "y": labels}, splits=splits)
        out.add_edges("node__to__node", rng.integers(0, VERTICES, 600), rng.integers(0, VERTICES, 600))
        if classes is not None:
            out.num_classes = classes
    partition_graph(path / "graph", path / "parts", parts=2, method="random", seed=0)
    return str(path / "parts")


def given() -> np.ndarray:
    return np.arange(VERTICES) % CLASSES


def config(data: str, **options: object) -> TrainConfig:
    """Settings without randomness: all neighbours, one step per epoch, no dropout."""
    exact = {"epochs": 2, "hidden": 8, "dropout": 0.0, "device": "cpu", "threads": 1, "lr": 0.05}
    return TrainConfig(data=data, **{**exact, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"num_neighbors": (-1, -1), "batch_size": VERTICES},
        pytest.param({"strategy": "cooperative", "layers": 2, "co_batches": 1, "trainers": 2}, marks=pytest.mark.slow),
    ],
    ids=["minibatch", "cooperative"],
)
def test_vertices_without_a_label_count_for_nothing(
    options: dict[str, object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unlabelled = given()
    unlabelled[[*UNLABELLED, 61, 95]] = -1
    some = fit(config(made(tmp_path / "some", unlabelled, np.arange(TRAIN)), **options))
    said = capfd.readouterr().err
    assert f"{len(UNLABELLED)} of {TRAIN} training vertices have no label (-1 in table y) and are left out" in said
    without = np.setdiff1d(np.arange(TRAIN), UNLABELLED)
    none = fit(config(made(tmp_path / "none", given(), without), **options))
    assert "no label" not in capfd.readouterr().err
    assert [e.loss for e in some.epochs] == pytest.approx([e.loss for e in none.epochs], rel=1e-5)
    # 29 of 30 vertices of each split have a label.
    for accuracy in (some.epochs[-1].val_accuracy, some.epochs[-1].test_accuracy):
        assert accuracy is not None
        assert accuracy * 29 == pytest.approx(round(accuracy * 29))


def test_labels_that_are_no_classes_are_refused_before_training(tmp_path: Path) -> None:
    data = made(tmp_path, given(), np.arange(TRAIN), classes=CLASSES - 1)
    said = "15 of 60 training vertices have a label in table y that is neither one of the 3 classes"
    with pytest.raises(atta.ConfigError, match=said):
        fit(config(data, num_neighbors=(2, 2), checkpoint=str(tmp_path / "checkpoint")))
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("label", "settings", "said"),
    [
        (-2, {}, "30 of 30 validation vertices have a label in table y that is neither one of"),
        (-1, {"patience": 1}, "--patience: watches validation vertices, none of the 30 has a target"),
    ],
)
def test_labels_that_validation_cannot_use_are_refused_before_training(
    tmp_path: Path, label: int, settings: dict[str, object], said: str
) -> None:
    labels = given()
    labels[TRAIN : TRAIN + 30] = label
    with pytest.raises(atta.ConfigError, match=said):
        fit(config(made(tmp_path, labels, np.arange(TRAIN)), num_neighbors=(2, 2), **settings))
