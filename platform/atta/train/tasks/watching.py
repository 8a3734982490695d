"""Which figure decides: what the best epoch is, and when a run stops."""

from __future__ import annotations

from atta.train.reports.epochs import Watched
from atta.train.settings import TrainSettings
from atta.train.tasks.choice import task_named

__all__ = ["watched_by"]


def watched_by(settings: TrainSettings) -> Watched:
    """The figure that a run watches: the first metric of its task, on validation vertices."""
    first = task_named(settings).metrics[0]
    return Watched(f"val_{first.name}", first.rises)
