"""The weights of classes in the loss: ``--class-weights none|balanced|FILE``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atta.errors import ConfigError, DataError
from atta.partition.disk.files import open_regular
from atta.train.tasks.task import Floats, LearningTask, TargetCounts

__all__ = ["class_weights", "read_weights"]

_LONGEST = 1 << 26


def class_weights(setting: str, task: LearningTask, counts: TargetCounts, outputs: int) -> Floats | None:
    """The weights of the loss, float64 [outputs]; None: all are 1.

    Raises:
        ConfigError: the task has no classes, or all weights that count are 0.
        DataError: the file cannot be read, or does not hold a weight per class.
    """
    if setting == "none":
        return None
    if task.weights is None:
        raise ConfigError(f"--class-weights {setting}: --task {task.name} has no classes to weigh")
    given = task.weights.balanced(counts.found) if setting == "balanced" else read_weights(setting, outputs)
    return task.weights.scaled(given, counts.found)


def read_weights(path: str | Path, outputs: int) -> Floats:
    """A file of text with a weight per line, in the order of the classes; an empty line or ``#`` counts for nothing.

    Raises:
        DataError: it cannot be read, a line is no number of at least 0, or there are not ``outputs`` of them.
    """
    try:
        with open_regular(Path(path)) as file:
            text = file.read(_LONGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else "is no text"
        raise DataError(path, f"--class-weights: cannot be read: {cause}") from None
    lines = [(number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1)]
    weights = np.array([_weight(path, number, line) for number, line in lines if line])
    if len(weights) != outputs:
        raise DataError(path, f"--class-weights: holds {len(weights)} weights, the dataset has {outputs} classes")
    return weights


def _weight(path: str | Path, number: int, line: str) -> float:
    try:
        weight = float(line)
    except ValueError:
        weight = -1.0
    if not 0 <= weight < np.inf:
        raise DataError(path, f"--class-weights: line {number}, {line[:40]!r}, is no number of at least 0")
    return weight
