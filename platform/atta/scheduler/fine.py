"""The fine level: which ready task runs next (ByteGNN §4.2).

Ready tasks are ordered by (DAG id, estimated time, order of arrival); ``costs`` learns the estimates. DAG ids follow launch
order, so the oldest batch is finished first; cheap tasks go first within a batch, because their successors become ready the
sooner. Tasks are not interrupted. CPU tasks and requests to other daemons wait in two lanes of the same order, each with its
own number of running tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from atta.samplers.dag.instance import DagInstance, Kind, Task
from atta.scheduler.coarse import Session
from atta.scheduler.costs import CostModel

__all__ = ["ORDERS", "Dag", "LaneQueue", "TaskOrder", "oldest_first"]


@dataclass(eq=False, slots=True)
class Dag:
    """A launched DAG until its batch is finished, or, when cancelled, until its last running task has answered."""

    id: int
    session: Session
    batch: int
    instance: DagInstance
    launched: float  # seconds
    work_s: float = 0.0  # of its tasks at home, so far
    running: set[Task] = field(default_factory=set)
    cancelled: bool = False
    grows: bool = False  # was launched as one more at once than ever before


TaskOrder = Callable[[int, float], tuple[int, float]]
"""(DAG id, estimated microseconds) -> key; the smallest runs first, equals in order of arrival."""


def oldest_then_cheapest(dag: int, cost_us: float) -> tuple[int, float]:
    """ByteGNN's order."""
    return dag, cost_us


def first_come(dag: int, cost_us: float) -> tuple[int, float]:
    """Baseline: in order of arrival."""
    return 0, 0.0


ORDERS: dict[str, TaskOrder] = {
    "two-level": oldest_then_cheapest,
    "sequential": oldest_then_cheapest,
    "prefetch": oldest_then_cheapest,
    "fifo": first_come,
}


def oldest_first(policy: str) -> bool:
    """Whether a policy prefers older batches; then other daemons are asked to do so, too."""
    return ORDERS[policy] is oldest_then_cheapest


class LaneQueue:
    """The ready tasks of one lane and the number of those running."""

    def __init__(self, width: int, order: TaskOrder, costs: CostModel) -> None:
        self.width = width
        self.running = 0
        self.fetching = 0.0
        """Bytes of the rows that its tasks fetch, those that run and those that wait."""
        self._order, self._costs = order, costs
        self._arrivals = count()
        self._heap: list[tuple[tuple[int, float], int, Dag, Task, float]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def backlog(self) -> int:
        """Tasks that wait, without those that go to idle workers at once."""
        return len(self._heap) - (self.width - self.running)

    def push(self, dag: Dag, task: Task, now: float) -> None:
        """Add a task that is ready since ``now``."""
        self.fetching += _row_bytes(task)
        key = self._order(dag.id, self._costs.estimate(task))
        heapq.heappush(self._heap, (key, next(self._arrivals), dag, task, now))

    def take(self) -> tuple[Dag, Task, float] | None:
        """The next task to run, now counted as running, and since when it is ready; None: the lane is full, or nothing is ready."""
        if self.running == self.width or not self._heap:
            return None
        _, _, dag, task, ready = heapq.heappop(self._heap)
        self.running += 1
        dag.running.add(task)
        return dag, task, ready

    def drop_cancelled(self) -> None:
        """Forget the tasks of cancelled DAGs that wait."""
        self.fetching -= sum(_row_bytes(entry[3]) for entry in self._heap if entry[2].cancelled)
        self._heap = [entry for entry in self._heap if not entry[2].cancelled]
        heapq.heapify(self._heap)

    def release(self, task: Task) -> None:
        """A running task has answered."""
        self.running -= 1
        self.fetching -= _row_bytes(task)


def _row_bytes(task: Task) -> float:
    return task.cost if task.kind is Kind.FEATURE else 0.0
