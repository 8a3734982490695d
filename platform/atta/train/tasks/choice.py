"""Which task a dataset is trained for, the model's width, and which figure decides. That figure says what the best
epoch is, when a run stops, and when ``--lr-schedule plateau`` acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.errors import ConfigError, known_name
from atta.partition.schema import Schema, TableSpec
from atta.train.reports.epochs import Watched
from atta.train.settings.common import TYPED_MODELS, TrainSettings, parse_early_stop
from atta.train.settings.minibatch import EDGE_CLASSES, LINK, SPLITS, UNTABLED, LinkSettings, parse_shares
from atta.train.tasks.pairs import EdgeClasses, Links, Unlabelled
from atta.train.tasks.task import LOSS, LearningTask, TargetCounts
from atta.train.tasks.types import (
    check_link_types,
    check_model,
    check_times,
    check_types,
    edge_type_of,
    target_of,
    usual_model,
)
from atta.train.tasks.vertices import CLASSES, Labels, Regression

AUTO = "auto"
TASKS: dict[str, LearningTask] = {task.name: task for task in (CLASSES, Labels(), Regression())}
"""Those of table ``y`` of vertices."""
_OF_EDGES: dict[str, LearningTask] = {LINK: Links(), EDGE_CLASSES: EdgeClasses()}


@dataclass(frozen=True)
class TaskOnGraph:
    """A task, and what it needs of a dataset: the node type that it is about, the columns of its features (``channels``, 0 of
    typed graphs), the ``splits`` of validation and test that have members, and settings that ``auto`` left open."""

    task: LearningTask
    node_type: str
    channels: int
    outputs: int
    splits: list[str]
    resolved: dict[str, Any]


def task_on(schema: Schema, settings: TrainSettings) -> TaskOnGraph:
    """The task that ``settings`` name, on a dataset. Raises ConfigError: the dataset cannot be trained on, or table
    ``y`` does not go with the task."""
    if settings.task in UNTABLED:
        return _untabled_on(schema, settings)
    node_type = target_of(schema, settings)
    tables = schema.node_tables[node_type]
    if settings.model in TYPED_MODELS:
        check_types(schema, settings, node_type)
    task = task_named(settings, _evident(tables["y"]) if settings.task == AUTO else settings.task)
    if not task.weighs and settings.class_weights != "none":
        raise ConfigError(f"--class-weights {settings.class_weights}: --task {task.name} has no classes to weigh")
    if task.name != "regression" and settings.regression_loss != "mse":
        raise ConfigError(f"--regression-loss {settings.regression_loss}: is of --task regression, not {task.name}")
    outputs = task.outputs(tables["y"], schema.num_classes)
    channels = _channels(schema, settings, node_type)
    resolved = {"task": task.name} | ({"target": node_type} if settings.model in TYPED_MODELS else {})
    return TaskOnGraph(task, node_type, channels, outputs, _judged(schema, node_type), resolved)


def _channels(schema: Schema, settings: TrainSettings, node_type: str) -> int:
    if settings.model in TYPED_MODELS:
        return 0
    spec = schema.node_tables[node_type].get("x")
    if spec is None:
        raise ConfigError(
            f"--model {settings.model}: needs the node table x, a row of features for each vertex; models of typed graphs "
            f"({', '.join(TYPED_MODELS)}) learn rows where there are none, and atta import --reverse makes any graph typed"
        )
    if len(spec.row_shape) != 1:
        raise ConfigError(f"training needs one row of features per vertex, x has rows of shape {spec.row_shape}")
    return spec.row_shape[0]


def _judged(schema: Schema, node_type: str) -> list[str]:
    return [s for s in ("val", "test") if schema.splits[node_type].get(s)]


def _untabled_on(schema: Schema, settings: TrainSettings) -> TaskOnGraph:
    """A task without a table of targets. Typed graphs have edges to predict, others any of them."""
    task, typed = settings.task, settings.model in TYPED_MODELS
    if task not in _OF_EDGES and (typed or usual_model(schema) in TYPED_MODELS):
        raise ConfigError(
            f"--task {task}: takes graphs with one node type and one edge type; --task link learns from typed edges"
        )
    edge_type = edge_type_of(schema, settings)
    check_model(schema, settings)
    node_type = schema.endpoints(edge_type)[1]
    if typed:
        check_link_types(schema, settings, edge_type)
    channels = _channels(schema, settings, node_type)
    if not schema.edge_counts[edge_type]:
        raise ConfigError(f"--task {task}: edge type {edge_type} has no edges")
    if task == EDGE_CLASSES:
        if "y" not in schema.edge_tables[edge_type]:
            raise ConfigError(f"--task {EDGE_CLASSES}: edge type {edge_type} has no edge table y")
        _OF_EDGES[task].outputs(schema.edge_tables[edge_type]["y"], None)
    check_times(schema, settings, edge_type)
    for option, usual in (("class_weights", "none"), ("regression_loss", "mse")):
        if (given := getattr(settings, option)) != usual:
            raise ConfigError(f"--{option.replace('_', '-')} {given}: does not go with --task {task}")
    resolved: dict[str, Any] = {"task": task, "edge_type": edge_type} if typed else {"task": task}
    if task not in _OF_EDGES:
        resolved["evaluate_by"] = _judge(schema, settings)
    if resolved.get("evaluate_by") == "classes":
        for name in ("edge_split", "eval_negatives", "split_by"):
            if getattr(settings, name) != getattr(LinkSettings, name):
                raise ConfigError(f"--{name.replace('_', '-')}: goes with --evaluate-by links, not classes")
        splits = _judged(schema, node_type)
    else:
        shares = parse_shares(getattr(settings, "edge_split", "1,0,0"))
        splits = [name for name, share in zip(SPLITS, shares, strict=True) if share and name != "train"]
    record = task_named(settings, judge=resolved.get("evaluate_by"))
    return TaskOnGraph(record, node_type, channels, settings.hidden, splits, resolved)


def _judge(schema: Schema, settings: TrainSettings) -> str:
    """What embeddings are judged by: ``classes`` or ``links``. Raises ConfigError for classes that are not there."""
    asked, node_type = getattr(settings, "evaluate_by", AUTO), schema.node_types[0]
    if asked == "links":
        return "links"
    spec = schema.node_tables[node_type].get("y")
    try:
        if spec is None or not schema.splits[node_type].get("train"):
            raise ConfigError("--evaluate-by classes: needs table y and training vertices, whose classes are learnt")
        TASKS["classes"].outputs(spec, schema.num_classes)
    except ConfigError:
        if asked == AUTO:
            return "links"
        raise
    return "classes"


def task_named(settings: TrainSettings, name: str | None = None, judge: str | None = None) -> LearningTask:
    """The record of a task, with the loss of ``settings``; their own task without a ``name``, classes for ``auto``.
    judge: what embeddings are judged by; None: as the settings say."""
    name = name or settings.task
    if name == "regression":
        return Regression(settings.regression_loss)
    if name in UNTABLED and name not in _OF_EDGES:
        judged = judge or str(getattr(settings, "evaluate_by", AUTO))
        return Unlabelled(name, "classes" if judged == AUTO else judged)
    return {**TASKS, **_OF_EDGES}["classes" if name == AUTO else name]


def _evident(spec: TableSpec) -> str:
    """The task that the target column leaves no doubt about."""
    whole, single = np.dtype(spec.dtype).kind in "iub", spec.row_shape in ((), (1,))
    if not whole and not single:
        raise ConfigError(
            f"table y holds rows of {np.dtype(spec.dtype)}, which may be labels or numbers: give --task labels or "
            "--task regression"
        )
    return "labels" if not single else "classes" if whole else "regression"


def watched_by(settings: TrainSettings) -> Watched:
    """The figure that a run watches: that of ``--early-stop``, or the first metric of its task; of validation vertices.
    Raises UnknownNameError for a metric that the task does not have."""
    task = task_named(settings)
    metrics = {metric.name: metric for metric in (*task.metrics, LOSS)}
    name = task.metrics[0].name if settings.early_stop is None else parse_early_stop(settings.early_stop)[0]
    known_name(f"metric of --task {task.name}", name, metrics)
    return Watched(f"val_{name}", metrics[name].rises)


def check_watched(settings: TrainSettings, splits: list[str], validated: TargetCounts | None = None) -> None:
    """Refuse to watch a figure that no evaluation has: without ``val``, or with none of its targets known. Raises
    ConfigError, and the errors of ``watched_by``."""
    watched_by(settings)
    if "val" in splits and (validated is None or validated.known):
        return
    why = "the dataset has none" if validated is None else f"none of the {validated.vertices} has a target in table y"
    for option, used in (
        ("--patience", settings.patience is not None),
        ("--early-stop", settings.early_stop is not None),
        ("--lr-schedule plateau", settings.lr_schedule == "plateau"),
    ):
        if used:
            raise ConfigError(f"{option}: watches validation vertices, {why}")
