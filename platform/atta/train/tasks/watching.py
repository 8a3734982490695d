"""Which figure decides: what the best epoch is, when a run stops, and when ``--lr-schedule plateau`` acts."""

from __future__ import annotations

from atta.errors import ConfigError, UnknownNameError
from atta.train.reports.epochs import Watched
from atta.train.settings import TrainSettings
from atta.train.settings.common import parse_early_stop
from atta.train.tasks.choice import TaskOnGraph, task_named
from atta.train.tasks.task import LOSS, TargetCounts

__all__ = ["check_known", "check_watched", "watched_by"]

_VAL = "val_"


def watched_by(settings: TrainSettings) -> Watched:
    """The figure that a run watches: that of ``--early-stop``, or the first metric of its task; of validation vertices.

    Raises UnknownNameError for a metric that the task does not have.
    """
    task = task_named(settings)
    metrics = {metric.name: metric for metric in (*task.metrics, LOSS)}
    name = task.metrics[0].name if settings.early_stop is None else parse_early_stop(settings.early_stop).metric
    if name not in metrics:
        raise UnknownNameError.of(f"metric of --task {task.name}", name, metrics)
    return Watched(f"{_VAL}{name}", metrics[name].rises)


def check_watched(settings: TrainSettings, found: TaskOnGraph) -> None:
    """Refuse to watch a figure that no evaluation has. Raises ConfigError, and the errors of ``watched_by``."""
    watched_by(settings)
    if "val" not in found.splits:
        _refuse(settings, "the dataset has none")


def check_known(settings: TrainSettings, validated: TargetCounts) -> None:
    """Refuse to watch a figure of validation vertices without any target: no evaluation has it. Raises ConfigError."""
    if not validated.known:
        _refuse(settings, f"none of the {validated.vertices} has a target in table y")


def _refuse(settings: TrainSettings, why: str) -> None:
    for option, used in (
        ("--patience", settings.patience is not None),
        ("--early-stop", settings.early_stop is not None),
        ("--lr-schedule plateau", settings.lr_schedule == "plateau"),
    ):
        if used:
            raise ConfigError(f"{option}: watches validation vertices, {why}")
