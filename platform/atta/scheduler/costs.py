"""How long a task will take, in microseconds, learnt from the tasks that have run.

``Task.cost`` counts edges for one kind of task and bytes for another, so costs of different kinds cannot be compared. A
straight line per kind and lane turns them into time. It is fitted to the latest tasks by least squares; older ones are
forgotten exponentially. Until enough tasks have run, typical figures of one core stand in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from atta.samplers.dag.instance import Kind, Lane, Task

FORGETTING = 0.995
"""Factor by which a task's weight shrinks with every later task of its kind: about the last 200 count."""
ENOUGH = 8
"""Number of tasks of a kind after which its own line is used."""
_TYPICAL = {  # microseconds: fixed, per unit of cost
    Kind.NEIGHBORHOOD: (50.0, 0.01),
    Kind.FEATURE: (50.0, 0.00025),
    Kind.JOIN: (50.0, 0.02),
}
_ROUND_TRIP_US = 500.0
_SMALL_BATCH = 1 << 14
"""Largest number of vertices of a batch that the event loop ends itself, as handing it over would take longer."""
_UNIT_US = {Kind.NEIGHBORHOOD: 0.01, Kind.JOIN: 0.02, Kind.FEATURE: 0.00025}
"""About how long a task at home takes per unit of ``Task.cost``, besides what it does in Python. Figures of one core."""
_SEED_US = 0.1
"""The same per seed."""
_BRIEF_US, _BRIEF_ALONE_US = 30.0, 200.0
"""The event loop itself runs tasks up to this long, as handing one to a worker and taking it back takes as long. A
single worker would only take turns with the event loop, so there it may be more."""


@dataclass(slots=True)
class Line:
    """A weighted least-squares line through points (x, y), with no negative coefficient.

    The fields are weighted sums.
    """

    n: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Line:
        """The line through points of equal weight."""
        x, y = np.array([*points], np.float64).reshape(-1, 2).T
        return cls(len(x), *map(float, (x.sum(), x @ x, y.sum(), x @ y)))

    def add(self, x: float, y: float) -> None:
        """Take in one point. The earlier ones count a little less from now on."""
        self.n = FORGETTING * self.n + 1.0
        self.x = FORGETTING * self.x + x
        self.xx = FORGETTING * self.xx + x * x
        self.y = FORGETTING * self.y + y
        self.xy = FORGETTING * self.xy + x * y

    def fit(self) -> tuple[float, float]:
        """(a, b) of y = a + b x.

        >>> Line(2, 3, 5, 13, 21).fit()  # through (1, 5) and (2, 8)
        (2.0, 3.0)
        """
        if self.n == 0:
            return 0.0, 0.0
        spread = self.n * self.xx - self.x * self.x
        if spread <= 1e-9 * self.n * self.xx:  # all x are equal: a and b cannot be told apart
            return (0.0, self.y / self.x) if self.x > 0 else (self.y / self.n, 0.0)
        slope = (self.n * self.xy - self.x * self.y) / spread
        fixed = (self.y - slope * self.x) / self.n
        if slope < 0:
            return self.y / self.n, 0.0
        return (fixed, slope) if fixed >= 0 else (0.0, self.xy / self.xx)


class CostModel:
    """Estimates per kind and lane. Pure: it is told what tasks took."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Kind, Lane], Line] = {}
        self._fits: dict[tuple[Kind, Lane], tuple[float, float]] = {}

    def observe(self, task: Task, seconds: float) -> None:
        """``task`` took ``seconds`` from its start to its end."""
        key = task.kind, task.lane
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
        line.add(task.cost, 1e6 * seconds)
        if line.n >= ENOUGH * FORGETTING**ENOUGH:
            self._fits[key] = line.fit()

    def estimate(self, task: Task) -> float:
        """Microseconds that ``task`` is expected to take."""
        fit = self._fits.get((task.kind, task.lane))
        if fit is None:
            fixed, per_unit = _TYPICAL.get(task.kind, (50.0, 0.1))
            fit = (fixed + _ROUND_TRIP_US * (task.lane is Lane.NET), per_unit)
        return fit[0] + fit[1] * task.cost

    def stats(self) -> dict[str, float]:
        """The lines, for metrics: ``<kind>_<lane>_fixed_us`` and ``..._per_unit_us``."""
        found: dict[str, float] = {}
        for (kind, lane), (fixed, per_unit) in self._fits.items():
            found[f"{kind.value}_{lane.value}_fixed_us"] = fixed
            found[f"{kind.value}_{lane.value}_per_unit_us"] = per_unit
        return found


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
