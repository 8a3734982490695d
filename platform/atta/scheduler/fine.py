"""The fine level: which ready task runs next (ByteGNN §4.2). Ready tasks are ordered by (DAG id, estimated time, order
of arrival); ``CostModel`` learns the estimates. Tasks are not interrupted. CPU tasks and requests to other daemons wait
in two lanes of the same order. Each lane has its own number of running tasks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from atta.samplers.dag.instance import DagInstance, Kind, Lane, Task
from atta.scheduler.coarse import ScheduledSession
from atta.scheduler.policies import TaskOrder

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
    """A weighted least-squares line through points (x, y), with no negative coefficient. Fields are weighted sums."""

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
    """Whether a task at home takes at most ``most_us``. ``seeds``: of a full batch; ``vertices``: so far."""
    if task.kind is Kind.END:
        return vertices <= _SMALL_BATCH
    if task.kind is Kind.SEED:
        return _SEED_US * seeds <= most_us
    per_unit = _UNIT_US.get(task.kind)
    return per_unit is not None and task.cost * per_unit <= most_us


@dataclass(eq=False, slots=True)
class Dag:
    """A launched DAG until its batch is finished or, when cancelled, until its last running task has answered."""

    id: int
    session: ScheduledSession
    batch: int
    instance: DagInstance
    launched: float  # seconds
    work_s: float = 0.0  # of its tasks at home, so far
    running: set[Task] = field(default_factory=set)
    cancelled: bool = False  # such a DAG is kept only while ``running`` is not empty
    widens: bool = False  # was launched when the loader never had as many batches at once
    waits_for: int = 0  # so many later batches of the session are sampled before it asks for rows of other owners
    parked: list[Task] = field(default_factory=list)  # its tasks that wait for that
    sampled: bool = False
    parked_at: float | None = None  # since when it has been sampled and waits, seconds


class LaneQueue:
    """The ready tasks of one lane and the number of those running. Tasks count as running once the shell has them:
    ``width`` run at once, and ``at_hand`` more may be there for them."""

    def __init__(self, width: int, order: TaskOrder, costs: CostModel, at_hand: int = 0) -> None:
        self.width = width
        self.running = 0  # at most ``_most``; less only while no task waits (after every event)
        self._most = width + at_hand
        self.fetching = 0.0
        """Bytes of the rows that its running and waiting tasks fetch."""
        self._order, self._costs = order, costs
        self._arrivals = count()
        self._heap: list[tuple[tuple[int, float], int, Dag, Task, float]] = []
        """(key, arrival, DAG, task, since when it is ready); none of a cancelled DAG."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def backlog(self) -> int:
        """Number of tasks that no worker runs, also those at hand; negative: so many workers idle."""
        return len(self._heap) - (self.width - self.running)

    def push(self, dag: Dag, task: Task, now: float) -> None:
        """Add a task that is ready since ``now``."""
        self.fetching += _row_bytes(task)
        key = self._order(dag.id, self._costs.estimate(task))
        heapq.heappush(self._heap, (key, next(self._arrivals), dag, task, now))

    def take(self) -> tuple[Dag, Task, float] | None:
        """The next task, now counted as running: (DAG, task, since when it is ready). None: the lane is full or empty.
        A plain tuple, as it is made for every task."""
        if self.running == self._most or not self._heap:
            return None
        _, _, dag, task, ready = heapq.heappop(self._heap)
        self.running += 1
        dag.running.add(task)
        return dag, task, ready

    def drop_cancelled(self) -> None:
        """Forget the waiting tasks of cancelled DAGs."""
        self.fetching -= sum(_row_bytes(entry[3]) for entry in self._heap if entry[2].cancelled)
        self._heap = [entry for entry in self._heap if not entry[2].cancelled]
        heapq.heapify(self._heap)

    def release(self, task: Task) -> None:
        """A running task has answered."""
        self.running -= 1
        self.fetching -= _row_bytes(task)


def _row_bytes(task: Task) -> float:
    return task.cost if task.kind is Kind.FEATURE else 0.0
