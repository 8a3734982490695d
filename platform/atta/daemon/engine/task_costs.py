"""Sums over the costs of all tasks so far, from which ``atta.simulate.fitting`` fits linear costs."""

from __future__ import annotations

import threading

from atta.samplers.dag.instance import Kind, Lane, Task

__all__ = ["TaskCosts"]


class TaskCosts:
    """Per task kind and lane, with x = ``Task.cost``: n, the sums of x, x², y and x·y.

    y is the CPU time (seconds) of tasks at home, and the bytes that the answers brought for tasks of other owners.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several workers add at once
        self._sums: dict[tuple[Kind, Lane], list[float]] = {}

    def ran(self, task: Task, cpu_s: float) -> None:
        """A worker has spent ``cpu_s`` on a task. Tasks of the network lane do not count."""
        if task.lane is Lane.CPU:
            self._add(task, cpu_s)

    def answered(self, task: Task, nbytes: int) -> None:
        """Another daemon has answered with ``nbytes``. Tasks at home do not count."""
        if task.lane is Lane.NET:
            self._add(task, float(nbytes))

    def _add(self, task: Task, y: float) -> None:
        x, key = task.cost, (task.kind, task.lane)
        with self._lock:
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0.0] * 5
            sums[0] += 1.0
            sums[1] += x
            sums[2] += x * x
            sums[3] += y
            sums[4] += x * y

    def stats(self) -> dict[str, float]:
        """``cost_<kind>_<lane>_<n|x|xx|y|xy>``."""
        with self._lock:
            return {
                f"cost_{kind.value}_{lane.value}_{name}": value
                for (kind, lane), sums in self._sums.items()
                for name, value in zip(("n", "x", "xx", "y", "xy"), sums, strict=True)
            }
