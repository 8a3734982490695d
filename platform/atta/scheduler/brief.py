"""Which tasks at home are so short that the event loop runs them itself. Pure: the simulator decides with it, too."""

from __future__ import annotations

from atta.samplers.dag.instance import Kind, Task

__all__ = ["brief_us", "is_brief"]

_SMALL_BATCH = 1 << 14
"""Largest number of vertices of a batch that the event loop ends itself, as handing it over would take longer."""
_UNIT_US = {Kind.NEIGHBORHOOD: 0.01, Kind.JOIN: 0.02, Kind.FEATURE: 0.00025}
"""About how long a task at home takes per unit of ``Task.cost``, besides what it does in Python. Figures of one core."""
_SEED_US = 0.1
"""The same per seed."""
_BRIEF_US, _BRIEF_ALONE_US = 30.0, 200.0
"""The event loop itself runs tasks up to this long, as handing one to a worker and taking it back takes as long. A
single worker would only take turns with the event loop, so there it may be more."""


def brief_us(workers: int) -> float:
    """How long a task may take that the event loop of a daemon with so many workers runs itself, in microseconds."""
    return _BRIEF_ALONE_US if workers == 1 else _BRIEF_US


def is_brief(task: Task, most_us: float, *, seeds: int, vertices: float) -> bool:
    """Whether a task at home takes at most ``most_us``.

    ``seeds``: of a full batch; ``vertices``: of the task's batch so far.
    """
    if task.kind is Kind.END:
        return vertices <= _SMALL_BATCH
    if task.kind is Kind.SEED:
        return _SEED_US * seeds <= most_us
    per_unit = _UNIT_US.get(task.kind)
    return per_unit is not None and task.cost * per_unit <= most_us
