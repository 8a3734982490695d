"""Which task a dataset is trained for, and the model's width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.partition.schema import Schema, TableSpec
from atta.train.settings import TYPED_MODELS, TrainSettings
from atta.train.settings.minibatch import EDGE_CLASSES, LINK, UNTABLED, LinkSettings
from atta.train.tasks import TASKS, LearningTask
from atta.train.tasks.links.candidates import SPLITS, parse_shares
from atta.train.tasks.links.classes import EDGE_CLASSES as EDGE_CLASSES_TASK
from atta.train.tasks.links.record import LINKS
from atta.train.tasks.regression import with_loss
from atta.train.tasks.target import check_link_types, check_times, check_types, edge_type_of, target_of
from atta.train.tasks.unlabelled import unlabelled

__all__ = ["AUTO", "TaskOnGraph", "task_named", "task_on"]

AUTO = "auto"


@dataclass(frozen=True)
class TaskOnGraph:
    """A task, and what it needs of a dataset.

    Attributes:
        task: the record.
        node_type: of the vertices that it is about.
        channels: columns of the features, the width of the model's input; 0 for typed graphs, where each type has its
            own.
        outputs: width of the model's output.
        splits: those of ``val`` and ``test`` that have members.
        resolved: settings that ``auto`` left open, by name.
    """

    task: LearningTask
    node_type: str
    channels: int
    outputs: int
    splits: list[str]
    resolved: dict[str, Any]


def task_on(schema: Schema, settings: TrainSettings) -> TaskOnGraph:
    """The task that ``settings`` name, on a dataset.

    Raises:
        ConfigError: the dataset cannot be trained on, or table ``y`` does not go with the task.
    """
    if settings.task in UNTABLED:
        return _untabled_on(schema, settings)
    node_type = target_of(schema, settings)
    tables = schema.node_tables[node_type]
    if settings.model in TYPED_MODELS:
        channels = 0
        check_types(schema, settings, node_type)
    else:
        channels = _channels(tables)
    task = _chosen(settings, tables["y"])
    if task.weights is None and settings.class_weights != "none":
        raise ConfigError(f"--class-weights {settings.class_weights}: --task {task.name} has no classes to weigh")
    if task.name != "regression" and settings.regression_loss != "mse":
        raise ConfigError(
            f"--regression-loss {settings.regression_loss}: belongs to --task regression, not {task.name}"
        )
    splits = [s for s in ("val", "test") if schema.splits[node_type].get(s)]
    outputs = task.outputs(tables["y"], schema.num_classes)
    return TaskOnGraph(task, node_type, channels, outputs, splits, {"task": task.name})


def _channels(tables: Mapping[str, TableSpec]) -> int:
    """Columns of the features of a graph with one node type."""
    if "x" not in tables or "y" not in tables:
        raise ConfigError("training needs the node tables x (features) and y (integer labels, or other targets)")
    if len(tables["x"].row_shape) != 1:
        raise ConfigError(f"training needs one row of features per vertex, x has rows of shape {tables['x'].row_shape}")
    return tables["x"].row_shape[0]


def _untabled_on(schema: Schema, settings: TrainSettings) -> TaskOnGraph:
    """A task without a table of targets. Typed graphs have edges to predict, others any of them."""
    task = settings.task
    of_edges = task in (LINK, EDGE_CLASSES)
    typed = of_edges and settings.model in TYPED_MODELS
    if not typed and (settings.model in TYPED_MODELS or len(schema.node_types) > 1 or len(schema.edge_types) > 1):
        able = f", or a model of typed graphs: {', '.join(TYPED_MODELS)}" if of_edges else ", and their models"
        raise ConfigError(f"--task {task}: takes graphs with one node type and one edge type{able}")
    edge_type = edge_type_of(schema, settings)
    node_type = schema.endpoints(edge_type)[1]
    tables = schema.node_tables[node_type]
    if typed:
        check_link_types(schema, settings, edge_type)
    elif "x" not in tables or len(tables["x"].row_shape) != 1:
        raise ConfigError("training needs the node table x with one row of features per vertex")
    if not schema.edge_counts[edge_type]:
        raise ConfigError(f"--task {task}: edge type {edge_type} has no edges")
    if task == EDGE_CLASSES:
        _check_edge_labels(schema, edge_type)
    check_times(schema, settings, edge_type)
    for option, used in (
        (f"--class-weights {settings.class_weights}", settings.class_weights != "none"),
        (f"--regression-loss {settings.regression_loss}", settings.regression_loss != "mse"),
    ):
        if used:
            raise ConfigError(f"{option}: does not go with --task {task}")
    resolved = {"task": task, "edge_type": edge_type} if typed else {"task": task}
    if not of_edges:
        resolved["evaluate_by"] = _judge(schema, settings)
    record = task_named(settings) if of_edges else unlabelled(task, resolved["evaluate_by"])
    if resolved.get("evaluate_by") == "classes":
        for name in ("edge_split", "eval_negatives", "split_by"):
            if getattr(settings, name) != getattr(LinkSettings, name):
                raise ConfigError(f"--{name.replace('_', '-')}: goes with --evaluate-by links, not classes")
        splits = [s for s in ("val", "test") if schema.splits[node_type].get(s)]
    else:
        shares = parse_shares(getattr(settings, "edge_split", "1,0,0"))
        splits = [name for name, share in zip(SPLITS, shares, strict=True) if share and name != "train"]
    channels = 0 if typed else tables["x"].row_shape[0]
    return TaskOnGraph(record, node_type, channels, settings.hidden, splits, resolved)


def _check_edge_labels(schema: Schema, edge_type: str) -> None:
    spec = schema.edge_tables[edge_type].get("y")
    if spec is None:
        raise ConfigError(f"--task {EDGE_CLASSES}: edge type {edge_type} has no edge table y")
    EDGE_CLASSES_TASK.outputs(spec, None)


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


def task_named(settings: TrainSettings, name: str | None = None) -> LearningTask:
    """The record of a task, with the loss of ``settings``; their own task without a ``name``, classes for ``auto``."""
    name = name or settings.task
    if name == LINK:
        return LINKS
    if name == EDGE_CLASSES:
        return EDGE_CLASSES_TASK
    if name in UNTABLED:
        judge = getattr(settings, "evaluate_by", AUTO)
        return unlabelled(name, "classes" if judge == AUTO else judge)
    if name == "regression":
        return with_loss(settings.regression_loss)
    return TASKS["classes" if name == AUTO else name]


def _chosen(settings: TrainSettings, spec: TableSpec) -> LearningTask:
    return task_named(settings, _evident(spec) if settings.task == AUTO else settings.task)


def _evident(spec: TableSpec) -> str:
    """The task that the target column leaves no doubt about."""
    whole, single = np.dtype(spec.dtype).kind in "iub", spec.row_shape in ((), (1,))
    if not whole and not single:
        raise ConfigError(
            f"table y holds rows of {np.dtype(spec.dtype)}, which may be labels or numbers: give --task labels or "
            "--task regression"
        )
    return "labels" if not single else "classes" if whole else "regression"
