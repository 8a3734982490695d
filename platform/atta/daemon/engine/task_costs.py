"""Sums over the costs of all tasks so far, from which ``atta.simulate.fitting`` fits linear costs."""

from __future__ import annotations

import threading

from atta.samplers.dag.instance import Kind, Lane, Task

__all__ = ["TaskCosts"]

_NAMES = ("n", "x", "xx", "y", "xy", "r")


class TaskCosts:
    """Per task kind and lane, with x = ``Task.cost``: n, the sums of x, x², y and x·y.

    y is the CPU time (seconds) of tasks at home, and the bytes that the answers brought for tasks of other owners. For
    the latter there is also r, the number of requests: one to each owner that was asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several workers add at once
        self._sums: dict[tuple[Kind, Lane], list[float]] = {}

    def ran(self, task: Task, cpu_s: float) -> None:
        """A worker has spent ``cpu_s`` on a task. Tasks of the network lane do not count."""
        if task.lane is Lane.CPU:
            self._add(task, cpu_s)

    def answered(self, task: Task, nbytes: int, requests: int) -> None:
        """Other daemons have answered ``requests`` requests with ``nbytes``. Tasks at home do not count."""
        if task.lane is Lane.NET:
            self._add(task, float(nbytes), requests)

    def _add(self, task: Task, y: float, requests: int = 0) -> None:
        x, key = task.cost, (task.kind, task.lane)
        with self._lock:
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * len(_NAMES)
            sums[0] += 1.0
            sums[1] += x
            sums[2] += x * x
            sums[3] += y
            sums[4] += x * y
            sums[5] += requests

    def stats(self) -> dict[str, float]:
        """``cost_<kind>_<lane>_<n|x|xx|y|xy|r>``."""
        with self._lock:
            return {
                f"cost_{kind.value}_{lane.value}_{name}": value
                for (kind, lane), sums in self._sums.items()
                for name, value in zip(_NAMES, sums, strict=True)
            }
