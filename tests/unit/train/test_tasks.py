"""Tasks: which targets are refused, which are left out; losses and metrics beside plain torch and brute force."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, DataError
from atta.partition.schema import Schema, TableSpec
from atta.train import TrainConfig
from atta.train.tasks import TASKS, LearningTask
from atta.train.tasks.choice import check_watched, task_named, task_on, watched_by
from atta.train.tasks.targets import class_weights, counts_of, read_weights, targets_in
from atta.train.tasks.task import VERTICES, Objective, TargetCounts
from atta.train.tasks.types import edge_type_of, rows_advice

CLASSES, LABELS, REGRESSION = (TASKS[name] for name in ("classes", "labels", "regression"))
NAN = float("nan")


def schema(spec: TableSpec, classes: int | None = None) -> Schema:
    return Schema(
        ("node",),
        ("node__to__node",),
        {"node": 10},
        {"node__to__node": 20},
        node_tables={"node": {"x": TableSpec("<f4", (7,)), "y": spec}},
        splits={"node": {"train": 4, "val": 2, "test": 0}},
        num_classes=classes,
    )


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(data="somewhere", **settings)


@pytest.mark.parametrize(
    ("spec", "classes", "name", "outputs"),
    [
        (TableSpec("<i8"), 4, "classes", 4),
        (TableSpec("|u1", (1,)), 4, "classes", 4),
        (TableSpec("<i8", (5,)), None, "labels", 5),
        (TableSpec("|b1", (5,)), None, "labels", 5),
        (TableSpec("<f4"), None, "regression", 1),
        (TableSpec("<f8", (1,)), None, "regression", 1),
    ],
)
def test_the_target_column_tells_the_task(spec: TableSpec, classes: int | None, name: str, outputs: int) -> None:
    found = task_on(schema(spec, classes), config())
    assert (found.task.name, found.channels, found.outputs, found.splits) == (name, 7, outputs, ["val"])
    assert task_on(schema(TableSpec("<f4", (3,))), config(task="labels")).outputs == 3


@pytest.mark.parametrize(
    ("spec", "classes", "settings", "said"),
    [
        (TableSpec("<f4"), 4, {"task": "classes"}, "training needs integer labels, table y holds float32"),
        (TableSpec("<i8", (3,)), 4, {"task": "classes"}, r"one label per vertex, y has rows of shape \(3,\)"),
        (TableSpec("<i8"), 0, {}, "no vertex has one"),
        (TableSpec("<i8"), None, {}, "no vertex has one"),
        (TableSpec("<i8"), 1, {}, "at least two classes"),
        (TableSpec("<i8"), 4, {"task": "labels"}, r"a row of 0 and 1 per vertex, .* y has rows of shape \(\)"),
        (TableSpec("<f4", (2, 2)), None, {"task": "regression"}, r"numbers per vertex, y has rows of shape \(2, 2\)"),
        (TableSpec("<f4"), None, {"class_weights": "balanced"}, "--task regression has no classes to weigh"),
        (TableSpec("<i8"), 4, {"regression_loss": "mae"}, "is of --task regression, not classes"),
        (TableSpec("<f4", (3,)), None, {}, "give --task labels or --task regression"),
    ],
)
def test_tables_that_do_not_fit_the_task(spec: TableSpec, classes: int | None, settings: Any, said: str) -> None:
    found = schema(spec, classes)
    with pytest.raises(ConfigError, match=said):
        task_on(found, config(**settings))
    del found.node_tables["node"]["y"]
    with pytest.raises(ConfigError, match=r"the graph has no labels, .* --task link"):
        task_on(found, config())


def test_the_first_metric_is_watched_and_some_are_not_defined() -> None:
    assert watched_by(config()).metric == watched_by(config(task="classes")).metric == "val_accuracy"
    assert watched_by(config(task="labels")).metric == "val_micro_f1"
    for loss in ("mse", "mae"):
        watched = watched_by(config(task="regression", regression_loss=loss))
        assert (watched.metric, watched.rises) == (f"val_{loss}", False)
    known = metrics(LABELS, np.full((4, 2), -1, np.float32), np.zeros((4, 2), np.float32), 2)
    assert (known["micro_f1"], known["macro_f1"]) == (0, 0)
    for value in (0.0, 0.1, 123456.7):
        found = metrics(REGRESSION, np.zeros((9, 1), np.float32), np.full((9, 1), value, np.float32), 2)
        assert "r2" not in found
        assert found["mae"] == pytest.approx(value)


@pytest.mark.parametrize("settings", [{"patience": 3}, {"early_stop": "loss:3"}, {"lr_schedule": "plateau"}], ids=str)
def test_what_no_evaluation_has_cannot_be_watched(settings: dict[str, Any]) -> None:
    spec = schema(TableSpec("<i8"), 4)
    check_watched(config(**settings), ["val"])
    check_watched(config(**settings), ["val"], TargetCounts(vertices=2, unknown=1))
    with pytest.raises(ConfigError, match="watches validation vertices, none of the 2 has a target"):
        check_watched(config(**settings), ["val"], TargetCounts(vertices=2, unknown=2))
    del spec.splits["node"]["val"]
    with pytest.raises(ConfigError, match="watches validation vertices, the dataset has none"):
        check_watched(config(**settings), task_on(spec, config()).splits)
    check_watched(config(), ["val"], TargetCounts(vertices=2, unknown=2))  # nothing is watched
    check_watched(config(), task_on(spec, config()).splits)


def test_what_is_no_better_than_a_guess_is_doubted() -> None:
    links = task_named(config(task="link"))
    for auc, loss, guessed in ((0.5, 0.693, True), (0.52, 0.70, True), (0.6, 0.693, False), (0.5, 2.0, False)):
        found = links.doubt({"auc": auc, "loss": loss}, TargetCounts())
        assert bool(found) == guessed, found
    assert links.doubt({"auc": 0.5, "loss": 0.6931}, TargetCounts()) == "auc 0.50 and loss 0.6931 are those of a guess"
    counts = counted(CLASSES, np.array([0, 1, 1, 1, 2, -1]), 3)
    assert CLASSES.doubt({"accuracy": 0.6}, counts) == "accuracy 0.6000, and 0.6000 of the 5 vertices are of one class"
    assert CLASSES.doubt({"accuracy": 0.8}, counts) == ""
    many = counted(CLASSES, np.repeat([0, 1], [68, 51]), 2)  # two standard errors are 0.0907
    assert [bool(CLASSES.doubt({"accuracy": 68 / 119 + more}, many)) for more in (0.0, 0.09, 0.092)] == [
        True,
        True,
        False,
    ]
    assert [CLASSES.doubt({}, counts), links.doubt({}, counts), CLASSES.doubt({"accuracy": 0.0}, TargetCounts())] == [
        ""
    ] * 3
    assert REGRESSION.doubt({"mse": 1.0}, counts) == LABELS.doubt({"micro_f1": 0.0}, counts) == ""
    found = rows_advice(schema(TableSpec("<i8"), 4), config())
    assert "--embed node learns" in found
    assert found.endswith("on a graph by atta import --reverse")
    assert "--embed user learns" in rows_advice(rated("rates"), config(model="rgcn", embed="item"))
    for graph, settings in ((rated("rates", x=False), {}), (rated("rates"), {"embed": "all"})):
        assert rows_advice(graph, config(model="rgcn", **settings)) == "take more epochs, or another --lr"


def rated(*relations: str, x: bool = True) -> Schema:
    """Users and items; relations lead to items, those of reverses back."""
    names = tuple(f"item__{r}__user" if r.startswith("rev_") else f"user__{r}__item" for r in relations)
    tables = {"x": TableSpec("<f4", (1,))} if x else {}
    counts, types = {"user": 3, "item": 3}, {"user": dict(tables), "item": dict(tables)}
    splits = {t: dict.fromkeys(("train", "val", "test"), 0) for t in counts}
    return Schema(("item", "user"), names, counts, dict.fromkeys(names, 3), node_tables=types, splits=splits)


def test_edges_to_predict_need_no_name_where_the_others_are_their_reverses() -> None:
    links = config(task="link", model="rgcn")
    assert edge_type_of(rated("rev_rates", "rates"), links) == "user__rates__item"
    assert edge_type_of(rated("rev_rates"), links) == "item__rev_rates__user"
    for relations in (("buys", "rates", "rev_rates"), ("rates", "rev_buys")):
        with pytest.raises(
            ConfigError, match=f"--edge-type: name the edges to predict, one of user__{relations[0]}__item, "
        ):
            edge_type_of(rated(*relations), links)


def counted(task: LearningTask, rows: np.ndarray, outputs: int) -> TargetCounts:
    halves = [targets_in(part, task, outputs) for part in np.array_split(rows, 2)]
    return counts_of(halves[0] + halves[1])


def test_targets_are_counted() -> None:
    counts = counted(CLASSES, np.array([0, 1, 2, -1, -1, 3, -2, 100]), 3)
    assert (counts.vertices, counts.unknown, counts.wrong, counts.found.tolist()) == (8, 2, 3, [1, 1, 1])
    rows = np.array([[1, 0], [1, -1], [-1, -1], [0, 0]], np.int8)
    counts = counted(LABELS, rows, 2)
    assert (counts.vertices, counts.unknown, counts.wrong, counts.found.tolist()) == (4, 1, 0, [2, 0, 3, 2])
    floats = np.where(rows < 0, NAN, rows)
    assert targets_in(floats, LABELS, 2).tolist() == targets_in(rows, LABELS, 2).tolist()


LEFT_OUT: list[tuple[LearningTask, Any, int, str | None]] = [
    (CLASSES, np.array([[0], [1]], np.uint8), 3, None),
    (CLASSES, np.array([], np.int64), 3, None),
    (CLASSES, [0, -1, 1], 3, "1 of 3 training vertices have no label (-1 in table y) and are left out"),
    (LABELS, [[1, 0], [1, -1], [-1, -1]], 2, "1 of 3 training vertices have no known label (-1 in table y) and are"),
    (REGRESSION, [1.0, 2.0, -3.0], 1, None),
    (REGRESSION, np.arange(4), 1, None),
    (REGRESSION, [[1, NAN], [NAN, NAN]], 2, "1 of 2 training vertices have no target (nan in table y) and are left"),
]
REFUSED: list[tuple[LearningTask, Any, int, str]] = [
    (CLASSES, [0, 1, -2, 100], 3, r"2 of 4 {} vertices have a label .* 3 classes \(0 to 2\) nor -1"),
    (LABELS, [[1, 2], [0.5, 0], [0, 0], [1, 1]], 2, "2 of 4 {} vertices have a number in table y that is neither 0, 1"),
    (REGRESSION, [np.inf, 1e300, 0], 1, "2 of 3 {} vertices have a target in table y that is infinite"),
]
USELESS: list[tuple[LearningTask, Any, int, str]] = [
    (CLASSES, [-1] * 8, 3, "none of the 8 training vertices has a label"),
    (CLASSES, [2, 2, -1, 2], 3, "all 3 labelled training vertices are of class 2"),
    (LABELS, np.full((3, 2), -1), 2, "none of the 3 training vertices has a known label"),
    (LABELS, np.zeros((3, 2)), 2, "no training vertex has a label"),
    (LABELS, np.ones((3, 2)), 2, "every training vertex has a label"),
    (REGRESSION, [NAN, NAN], 1, "none of the 2 training vertices has a target"),
]


@pytest.mark.parametrize(("task", "rows", "outputs", "said"), LEFT_OUT)
def test_what_is_left_out_is_said(task: LearningTask, rows: Any, outputs: int, said: str | None) -> None:
    found = task.check(counted(task, np.asarray(rows), outputs), outputs)
    assert found is None if said is None else (found or "").startswith(said)


@pytest.mark.parametrize(("task", "rows", "outputs", "said"), REFUSED + USELESS)
def test_wrong_targets_are_refused_but_validation_needs_less(
    task: LearningTask, rows: Any, outputs: int, said: str
) -> None:
    counts = counted(task, np.asarray(rows), outputs)
    with pytest.raises(ConfigError, match=said.format("training")):
        task.check(counts, outputs)
    refused = pytest.raises(ConfigError, match=said.format("validation")) if "{}" in said else nullcontext()
    with refused:
        task.refuse(counts, outputs, VERTICES["val"])


def test_arrays_and_tensors_become_the_same_targets() -> None:
    for task, rows in (
        (CLASSES, np.array([[3], [-1]], np.int16)),
        (LABELS, np.array([[True, False]])),
        (REGRESSION, np.array([0.5, NAN])),
        (REGRESSION, np.arange(6.0).reshape(3, 2)),
        (LABELS, np.zeros((0, 4), np.int8)),
    ):
        mine, theirs = task.targets(torch.from_numpy(rows)), torch.from_numpy(task.target_array(rows))
        torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert mine.dtype == (torch.float32 if task.rows else torch.int64)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_a_batch_without_targets_changes_nothing(task: LearningTask) -> None:
    outputs = torch.randn(3, 4, requires_grad=True)
    nothing = torch.full((3, 4), NAN) if task.rows else torch.full((3,), -1)
    loss = Objective(task, 4).mean_loss(outputs, nothing)
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert loss.item() == 0
    assert not gradient.any()
    assert metrics(task, np.ones((3, 4), np.float32), nothing.numpy(), 2) == {}  # 0 would decide the best epoch


def test_losses_of_labels_and_of_regression() -> None:
    torch.manual_seed(1)
    outputs, labels = torch.randn(20, 5, dtype=torch.float64), torch.randint(0, 2, (20, 5)).double()
    expected = F.binary_cross_entropy(torch.sigmoid(outputs), labels)
    assert Objective(LABELS, 5).mean_loss(outputs, labels).item() == pytest.approx(expected.item())
    weights = torch.rand(5, dtype=torch.float64) * 3
    shares = torch.sigmoid(outputs)
    by_hand = -(weights * labels * shares.log() + (1 - labels) * (1 - shares).log()).mean()
    assert Objective(LABELS, 5, weights).mean_loss(outputs, labels).item() == pytest.approx(by_hand.item())
    labels[:3, 1], labels[4], labels[5, 0] = -1, NAN, NAN
    known = labels >= 0
    each = F.binary_cross_entropy(shares, labels.where(known, 0), reduction="none")
    expected = each[known].sum() / 5 / 19  # of the mean over labels, one of 20 vertices has none
    assert Objective(LABELS, 5).mean_loss(outputs, labels).item() == pytest.approx(expected.item())
    torch.manual_seed(2)
    outputs, targets = torch.randn(2, 30, 3, dtype=torch.float64)
    squared = Objective(REGRESSION, 3)
    absolute = Objective(task_named(config(task="regression", regression_loss="mae")), 3)
    assert squared.mean_loss(outputs, targets).item() == pytest.approx(F.mse_loss(outputs, targets).item())
    assert absolute.mean_loss(outputs, targets).item() == pytest.approx(F.l1_loss(outputs, targets).item())
    targets[:10, 0], targets[3] = NAN, NAN
    known = ~targets.isnan()
    expected = (outputs - targets)[known].square().sum() / 3 / 29
    assert squared.mean_loss(outputs, targets).item() == pytest.approx(expected.item())


def test_balanced_classes_weigh_the_same_and_the_mean_is_one() -> None:
    labels = np.array([0] * 60 + [1] * 30 + [3] * 10 + [-1] * 7)
    counts = counted(CLASSES, labels, 4)
    weights = class_weights("balanced", CLASSES, counts, 4)
    assert weights.tolist() == pytest.approx([100 / 3 / 60, 100 / 3 / 30, 0, 100 / 3 / 10])
    # With all vertices in one batch this is torch's own weighted mean.
    torch.manual_seed(3)
    outputs, given = torch.randn(len(labels), 4), torch.from_numpy(weights).float()
    mine = Objective(CLASSES, 4, given).mean_loss(outputs, torch.from_numpy(labels))
    theirs = F.cross_entropy(outputs, torch.from_numpy(labels), weight=given, ignore_index=-1)
    torch.testing.assert_close(mine, theirs)
    # A label weighs as much as its absence.
    rows = np.array([[1, 0, 0]] * 2 + [[0, 1, 0]] * 6 + [[-1, 0, 0]] * 4)
    weights = class_weights("balanced", LABELS, counted(LABELS, rows, 3), 3)
    assert weights.tolist() == pytest.approx([6 / 2, 6 / 6, 1])


def test_weights_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.txt"
    file.write_text("# of classes\n1\n\n  2.5 # the rare one\n0\n")
    assert read_weights(file, 3).tolist() == [1, 2.5, 0]
    counts = counted(CLASSES, np.array([0, 0, 1, 2]), 3)
    found = class_weights(str(file), CLASSES, counts, 3)
    assert found.tolist() == pytest.approx([4 / 4.5, 10 / 4.5, 0])
    for text, said in (
        ("1\n2\n", "holds 2 weights, the dataset has 3 classes"),
        ("1\ntwo\n3\n", "line 2, 'two', must be a number of at least 0"),
        ("1\n-2\n3\n", "line 2, '-2', must be a number"),
        ("1\nnan\n3\n", "line 2, 'nan', must be a number"),
        ("1\n1\ninf\n", "line 3, 'inf', must be a number"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=said):
            read_weights(file, 3)
    file.write_bytes(b"\xff\xfe1")
    with pytest.raises(DataError, match="is no text"):
        read_weights(file, 3)
    with pytest.raises(DataError, match="absent"):
        read_weights(tmp_path / "absent", 3)
    file.write_text("0\n0\n0\n")
    with pytest.raises(ConfigError, match="weight 0"):
        class_weights(str(file), CLASSES, counts, 3)


def metrics(task: LearningTask, outputs: np.ndarray, targets: np.ndarray, parts: int) -> dict[str, float]:
    objective = Objective(task, outputs.shape[1])
    tally = objective.empty_tally(torch.device("cpu"))
    for some in np.array_split(np.arange(len(outputs)), parts):
        tally += objective.tally(torch.from_numpy(outputs[some]), torch.from_numpy(targets[some]))
    return objective.metrics(tally.tolist())


def f1(said: np.ndarray, true: np.ndarray) -> float:
    both = (said & true).sum()
    if not both:
        return 0.0
    precision, recall = both / said.sum(), both / true.sum()
    return float(2 * precision * recall / (precision + recall))


SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(1, 4), st.integers(1, 40))
def test_metrics_of_classes(seed: int, parts: int, vertices: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, targets = rng.standard_normal((vertices, 4)), rng.integers(-1, 4, vertices)
    found = metrics(CLASSES, outputs, targets, parts)
    pairs = [(int(np.argmax(row)), int(t)) for row, t in zip(outputs, targets, strict=True) if t >= 0]
    if not pairs:
        assert found == {}
        return
    assert found["accuracy"] == pytest.approx(np.mean([s == t for s, t in pairs]))
    said, true = np.array(pairs, np.int64).reshape(-1, 2).T
    assert found["macro_f1"] == pytest.approx(np.mean([f1(said == c, true == c) for c in range(4)]))
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    kept = np.flatnonzero(targets >= 0)
    assert found["loss"] == pytest.approx(-np.log(shares[kept, targets[kept]]).mean())


@given(SEEDS, st.integers(1, 4), st.integers(1, 40))
def test_metrics_of_labels(seed: int, parts: int, vertices: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.standard_normal((vertices, 3)).astype(np.float32)
    targets = rng.choice([-1, 0, 1, NAN], (vertices, 3), p=[0.1, 0.5, 0.3, 0.1]).astype(np.float32)
    found = metrics(LABELS, outputs, targets, parts)
    known = (targets == 0) | (targets == 1)
    if not known.any():
        assert found == {}
        return
    said, true = (outputs > 0) & known, (targets == 1) & known
    assert found["micro_f1"] == pytest.approx(f1(said.reshape(-1), true.reshape(-1)))
    assert found["macro_f1"] == pytest.approx(np.mean([f1(said[:, c], true[:, c]) for c in range(3)]))


@given(SEEDS, st.integers(1, 4), st.integers(1, 40))
def test_metrics_of_regression(seed: int, parts: int, vertices: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.standard_normal((vertices, 2)).astype(np.float32)
    targets = (rng.standard_normal((vertices, 2)) * 3 + 5).astype(np.float32)
    targets[rng.random((vertices, 2)) < 0.2] = NAN
    found = metrics(REGRESSION, outputs, targets, parts)
    known = ~np.isnan(targets)
    errors = (outputs.astype(np.float64) - targets)[known]
    assert found.get("mse") == (pytest.approx(np.mean(errors**2)) if known.any() else None)
    assert found.get("mae") == (pytest.approx(np.mean(np.abs(errors))) if known.any() else None)
    each = []
    for said, true, has in zip(outputs.T.astype(float), targets.T.astype(float), known.T, strict=True):
        spread = ((true[has] - true[has].mean()) ** 2).sum() if has.any() else 0
        if spread > 1e-9:
            each.append(1 - ((said[has] - true[has]) ** 2).sum() / spread)
    assert found.get("r2") == (pytest.approx(np.mean(each)) if each else None)
