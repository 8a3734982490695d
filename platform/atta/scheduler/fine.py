"""The fine level: which ready task runs next (ByteGNN §4.2).

Ready tasks are ordered by (DAG id, estimated time, order of arrival); ``costs`` learns the estimates. Tasks are not
interrupted. CPU tasks and requests to other daemons wait in two lanes of the same order. Each lane has its own number
of running tasks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from atta.samplers.dag.instance import DagInstance, Kind, Task
from atta.scheduler.coarse import ScheduledSession
from atta.scheduler.costs import CostModel
from atta.scheduler.policies import TaskOrder


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


class LaneQueue:
    """The ready tasks of one lane and the number of those running.

    Tasks count as running once the shell has them: ``width`` run at once, and ``at_hand`` more may be there for them.
    """

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

        A plain tuple, as it is made for every task.
        """
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
