"""What a model learns, whatever the strategy: ``task`` says what a record has, then a file for each.

``choice`` picks the record that fits a dataset. Before training, ``counting`` looks at the targets of the training
vertices and ``weights`` weighs classes. ``objective`` is what trainers compute with.

The records are read without torch: their functions import it when they are called.
"""

from __future__ import annotations

from atta.train.tasks import classes, labels, regression
from atta.train.tasks.task import LearningTask

__all__ = ["TASKS", "LearningTask"]

TASKS: dict[str, LearningTask] = {module.TASK.name: module.TASK for module in (classes, labels, regression)}
