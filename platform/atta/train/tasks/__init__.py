"""What a model learns, whatever the strategy: a class for each task, which one fits a dataset, and its targets."""

from atta.train.tasks.choice import TASKS
from atta.train.tasks.task import LearningTask

__all__ = ["TASKS", "LearningTask"]
