"""One mini-batch's instance of a plan: which physical tasks exist and when each becomes ready (ByteGNN §4.2).

::

    SEED ──┬─> FEATURE x (home's chunks, others) ─────────────────────────────┐
           └─> NEIGHBORHOOD x (home's chunks, others) ──> JOIN ──┬─> FEATURE ... ┼─> END
                                                                 └─> next hop ... ┘

All other owners together are one task, so the number of tasks does not grow with the number of partitions. Features of new
vertices are fetched while the next hop is sampled. JOINs of one instance run in plan order, even if branches (positive,
negative) run at the same time: so local ids never depend on timing. No clock, no threads and no arrays."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atta.samplers.dag.spec import Kind, Plan, PlanOp

__all__ = ["OTHERS", "DagError", "DagInstance", "Kind", "Lane", "OwnedVertices", "Task", "chunk_range"]

OTHERS = -1
"""In place of an owner: all partitions but home together."""


class DagError(AssertionError):
    """The caller broke the protocol of the instance. This is a bug in Atta, not a mistake of a user."""


class Lane(enum.Enum):
    """What a task waits for: a worker thread, or the answer of another daemon."""

    CPU = "cpu"
    NET = "net"

    __hash__ = object.__hash__


class Task(NamedTuple):
    """One physical task. It is a plain value: two tasks with equal fields are the same task of a DAG. SEED, JOIN, END,
    whole batches and negative links run at home as a single chunk. A NEIGHBORHOOD or FEATURE task concerns vertices of
    the home partition, or all of ``OTHERS`` as a single chunk. A POSITIVE or NEGATIVE task concerns the vertices of one
    owner. Chunk ``c`` of ``chunks`` covers the rows ``chunk_range(rows, c, chunks)`` of that owner's share."""

    kind: Kind
    op: str  # operator id; a JOIN carries the id of the operator it joins, END the empty string
    owner: int  # partition that holds the rows, or OTHERS
    chunk: int
    chunks: int
    lane: Lane
    cost: float  # NEIGHBORHOOD: total degree; FEATURE: bytes; JOIN: expected edges; POSITIVE, NEGATIVE: vertices drawn


class OwnedVertices(NamedTuple):
    """One owner's share of the vertices that a SEED or JOIN task reports."""

    owner: int
    rows: int  # vertices, all node types together
    degree: float = 0.0  # sum of their in-degrees over the edge types of the next hop, or an estimate
    feature_bytes: float = 0.0  # size of their rows in the tables to be fetched


def chunk_range(rows: int, chunk: int, chunks: int) -> range:
    """Rows of chunk ``chunk`` when ``rows`` rows are split evenly into ``chunks`` (sizes differ by at most one)."""
    return range(rows * chunk // chunks, rows * (chunk + 1) // chunks)


class DagInstance:
    """The running state of one DAG.

    ``home`` is the partition of this daemon. A task that concerns one owner has at most ``chunk_rows`` rows.

    >>> for task in dag.start(): ...       # the SEED task
    >>> ready = dag.done(task, growth)     # tasks that its completion makes ready
    """

    def __init__(self, plan: Plan, home: int, chunk_rows: int) -> None:
        if chunk_rows < 1:
            raise DagError(f"chunk_rows is {chunk_rows}, must be at least 1")
        self._plan = plan
        self._home = home
        self._chunk_rows = chunk_rows
        self._issued: set[Task] = set()
        self._started = False
        self.finished = False
        """Whether END is done."""
        self._expand: dict[str, tuple[OwnedVertices, ...]] = {}  # by joined operator: what a child hop expands
        self._others: dict[str, tuple[OwnedVertices, ...]] = {}  # by started operator: what its OTHERS task is about
        self._left: dict[str, int] = {}  # by started operator: number of tasks before the join
        self._join_cost: dict[str, float] = {}
        self._order = tuple(op.id for op in plan.ops if op.kind is not Kind.FEATURE)
        self._next_join = 0  # position in _order
        self._joining = False
        self._features = 0  # number of FEATURE tasks that are issued and not done
        self._to_join = len(self._order)

    @property
    def sampled(self) -> bool:
        """Whether all vertices and edges of the batch are known."""
        return self._to_join == 0

    @property
    def issued(self) -> frozenset[Task]:
        """Tasks handed out and not yet done."""
        return frozenset(self._issued)

    def owners_of(self, task: Task) -> tuple[OwnedVertices, ...]:
        """Each owner's part of a task of ``OTHERS``, in ascending order of owners; empty for any other task."""
        return self._others[task.op] if task.owner == OTHERS else ()

    def start(self) -> list[Task]:
        """The SEED task; called once."""
        if self._started:
            raise DagError("the DAG has been started before")
        self._started = True
        return self._issue([self._at_home(Kind.SEED, self._plan.seed.id, 0.0)])

    def done(
        self, task: Task, growth: Sequence[OwnedVertices] = (), expand: Sequence[OwnedVertices] | None = None
    ) -> list[Task]:
        """Record that ``task`` is done and return the tasks that become ready. ``growth``: for SEED and JOIN tasks, the
        vertices that the task added to the batch, by owner; shares of an owner named twice are added up. ``expand``:
        those that the next hop expands, if they differ (frontier "all": every vertex known so far). Raises DagError
        when the task was not handed out, or was done before."""
        if task not in self._issued:
            raise DagError(f"{task} is not running in this DAG (done before, or never handed out)")
        kind = task.kind
        if kind is not Kind.SEED and kind is not Kind.JOIN and (growth or expand):
            raise DagError(f"{task} reports new vertices: only SEED and JOIN tasks do")
        self._issued.remove(task)
        ready: list[Task] = []
        if kind is Kind.SEED or kind is Kind.JOIN:
            self._joined(self._plan.op(task.op), growth, expand, ready)
        elif kind is Kind.FEATURE:
            self._features -= 1
        elif kind is Kind.END:
            self.finished = True
            return ready
        else:
            self._left[task.op] -= 1
            self._try_join(ready)
        if self._to_join == 0 and self._features == 0:
            ready.append(self._at_home(Kind.END, "", 0.0))
        return self._issue(ready)

    def _joined(
        self, op: PlanOp, growth: Sequence[OwnedVertices], expand: Sequence[OwnedVertices] | None, ready: list[Task]
    ) -> None:
        """The vertices of ``op`` are known: fetch their features, and start the operators whose inputs are complete."""
        new = _merged(growth)
        self._expand[op.id] = new if expand is None else _merged(expand)
        self._next_join += 1
        self._to_join -= 1
        self._joining = False
        for name in op.children:
            child = self._plan.op(name)
            if child.kind is Kind.FEATURE:
                tasks = self._at_owners(Kind.FEATURE, name, new, [share.feature_bytes for share in new])
                self._features += len(tasks)
                ready += tasks
            elif all(source in self._expand for source in child.inputs):
                self._begin(child, ready)
        self._try_join(ready)

    def _begin(self, op: PlanOp, ready: list[Task]) -> None:
        shares = self._expand[op.inputs[0]]
        if len(op.inputs) > 1:
            shares = _merged(share for source in op.inputs for share in self._expand[source])
        if op.kind is Kind.BATCH or op.negatives is not None:
            # This task is not divided by owner: the operator itself asks the owners that it needs. So the task waits
            # like a request to other daemons.
            rows = float(sum(share.rows for share in shares))
            tasks = [Task(op.kind, op.id, self._home, 0, 1, Lane.NET, rows)]
        elif op.kind is Kind.NEIGHBORHOOD:
            tasks = self._at_owners(op.kind, op.id, shares, [share.degree for share in shares])
        else:
            tasks = self._split(op.kind, op.id, shares, [float(share.rows * op.count) for share in shares])
        self._left[op.id] = len(tasks)
        self._join_cost[op.id] = _join_cost(op, shares)
        ready += tasks

    def _try_join(self, ready: list[Task]) -> None:
        if self._joining or self._to_join == 0:
            return
        name = self._order[self._next_join]
        if self._left.get(name, -1) == 0:
            self._joining = True
            ready.append(self._at_home(Kind.JOIN, name, self._join_cost[name]))

    def _at_owners(self, kind: Kind, op: str, shares: Sequence[OwnedVertices], costs: Sequence[float]) -> list[Task]:
        """Tasks for the rows at home, and one for all other owners."""
        tasks: list[Task] = []
        away, cost_away = [], 0.0
        for share, cost in zip(shares, costs, strict=True):
            if share.owner == self._home:
                tasks = self._split(kind, op, [share], [cost])
            else:
                away.append(share)
                cost_away += cost
        if away:
            self._others[op] = tuple(away)
            tasks.append(Task(kind, op, OTHERS, 0, 1, Lane.NET, cost_away))
        return tasks

    def _split(self, kind: Kind, op: str, shares: Sequence[OwnedVertices], costs: Sequence[float]) -> list[Task]:
        tasks: list[Task] = []
        for share, cost in zip(shares, costs, strict=True):
            lane = Lane.CPU if share.owner == self._home else Lane.NET
            chunks = -(-share.rows // self._chunk_rows)
            tasks += [Task(kind, op, share.owner, chunk, chunks, lane, cost / chunks) for chunk in range(chunks)]
        return tasks

    def _at_home(self, kind: Kind, op: str, cost: float) -> Task:
        return Task(kind, op, self._home, 0, 1, Lane.CPU, cost)

    def _issue(self, tasks: list[Task]) -> list[Task]:
        self._issued.update(tasks)
        return tasks


def _merged(shares: Iterable[OwnedVertices]) -> tuple[OwnedVertices, ...]:
    total: dict[int, tuple[int, float, float]] = {}
    for share in shares:
        if share.rows < 0 or share.owner < 0 or not share.degree >= 0 or not share.feature_bytes >= 0:
            raise DagError(f"{share} has a negative figure")
        if share.rows == 0:
            continue
        rows, degree, size = total.get(share.owner, (0, 0.0, 0.0))
        total[share.owner] = rows + share.rows, degree + share.degree, size + share.feature_bytes
    return tuple(OwnedVertices(owner, *figures) for owner, figures in sorted(total.items()))


def _join_cost(op: PlanOp, shares: Sequence[OwnedVertices]) -> float:
    """Number of entries that the join stitches: for a hop its edges (at most the degrees), otherwise the vertices
    drawn."""
    if op.kind is Kind.BATCH:
        return sum(share.degree for share in shares)
    if op.kind is not Kind.NEIGHBORHOOD:
        return float(sum(share.rows for share in shares) * op.count)
    if any(count < 0 for _, count in op.fan_outs):
        return sum(share.degree for share in shares)
    per_row = sum(count for _, count in op.fan_outs)
    return sum(min(share.degree, float(share.rows * per_row)) for share in shares)
