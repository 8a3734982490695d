"""A machine in discrete time for the scheduler: cores shared by worker threads and a trainer, and a network with latency.

Everything is deterministic for a seed, so policies can be compared by throughput without measuring real time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from atta.samplers.check import check_spec
from atta.samplers.dag import Kind, Lane, Share, Task
from atta.samplers.spec import Hops, neighbor_spec
from atta.scheduler import (
    Action,
    BatchReady,
    BatchTaken,
    Event,
    LaunchDag,
    RunTask,
    Scheduler,
    SchedulerConfig,
    SessionOpened,
    TaskDone,
    Tick,
    Utilisation,
    WakeAt,
)
from tests.unit.dag.schemas import PLAIN

PLAN = check_spec(neighbor_spec(PLAIN, hops=Hops([15, 10, 5]), seed_type="node"), PLAIN)
JOINS = [op.id for op in PLAN.ops if op.kind is not Kind.FEATURE]
BATCH_BYTES = 1_000_000


@dataclass(frozen=True)
class Workload:
    """``sample_ms``: CPU time to make a batch; ``train_ms``: time per batch on ``train_threads`` cores (0 = elsewhere)."""

    cores: int
    sample_ms: float
    rtt_ms: float
    train_ms: float
    train_threads: int = 0
    spread: float = 0.3  # of batch sizes, log-normal


@dataclass
class Outcome:
    batches_per_s: float
    trainer_busy: float  # share of the time
    most_held: int  # batches in flight + finished
    completion_ms: float  # mean, launch to end
    latencies: list[float]


class Machine:
    """Runs one session of ``batches`` batches under a scheduler; ``run`` returns what came out."""

    def __init__(
        self, config: SchedulerConfig, work: Workload, batches: int, seed: int = 0, *, known: bool = False
    ) -> None:
        """``known``: the size of a batch need not be measured first."""
        self.opening = SessionOpened("s", PLAN, range(batches), batch_bytes=BATCH_BYTES if known else 0)
        self.scheduler = Scheduler(config, 0)
        self.work, self.batches = work, batches
        self.rng = random.Random(seed)
        self.now = 0.0  # milliseconds
        self.jobs: list[list] = []  # [remaining ms, what then]: running on the cores, which they share evenly
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.wake_version = 0
        self.ready: list[int] = []
        self.consumed = 0
        self.training = False
        self.busy = self.trained = 0.0
        self.scale: dict[int, float] = {}
        self.launched: dict[int, float] = {}
        self.latencies: list[float] = []
        self.most_held = 0

    def run(self) -> Outcome:
        self.after(100.0, self.sample_utilisation)
        self.send(self.opening)
        while self.consumed < self.batches:
            self.step()
        mean = sum(self.latencies) / len(self.latencies)
        return Outcome(1e3 * self.batches / self.now, self.trained / self.now, self.most_held, mean, self.latencies)

    def step(self) -> None:
        rate = min(1.0, self.work.cores / len(self.jobs)) if self.jobs else 1.0
        job = min(self.jobs, key=lambda j: j[0], default=None)
        at_job = self.now + job[0] / rate if job else float("inf")
        at_timer = self.timers[0][0] if self.timers else float("inf")
        target = min(at_job, at_timer)
        passed = target - self.now
        self.busy += passed * min(len(self.jobs), self.work.cores)
        self.trained += passed * self.training
        for other in self.jobs:
            other[0] -= passed * rate
        self.now = target
        if job is not None and at_job <= at_timer:
            self.jobs.remove(job)
            job[1]()
        else:
            heapq.heappop(self.timers)[2]()

    def after(self, ms: float, then: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.timers, (self.now + ms, self.sequence, then))

    def sample_utilisation(self) -> None:
        percent, self.busy = self.busy / self.work.cores, 0.0  # of 100 ms
        self.after(100.0, self.sample_utilisation)
        self.send(Utilisation(percent))

    def send(self, event: Event) -> None:
        for action in self.scheduler.on(event, self.now / 1e3):
            self.perform(action)
        stats = self.scheduler.stats()
        self.most_held = max(self.most_held, int(stats["in_flight"] + stats["finished"]))

    def perform(self, action: Action) -> None:
        match action:
            case LaunchDag(dag):
                self.scale[dag] = self.rng.lognormvariate(0, self.work.spread)
                self.launched[dag] = self.now
            case RunTask(dag, task):
                self.start(dag, task)
            case BatchReady(_, batch, _):
                self.ready.append(batch)
                self.train()
            case WakeAt(when):
                self.wake_version += 1
                version = self.wake_version
                self.after(1e3 * when - self.now, lambda: self.send(Tick()) if version == self.wake_version else None)

    def start(self, dag: int, task: Task) -> None:
        """Half of a batch's vertices are remote; the CPU time goes to hops, joins and local features in equal parts."""
        share = {Kind.NEIGHBORHOOD: 1 / 9, Kind.JOIN: 1 / 9, Kind.FEATURE: 1 / 12}.get(task.kind, 0.0)
        cpu_ms = self.work.sample_ms * share * self.scale[dag]

        def done() -> None:
            if task.kind is Kind.END:
                self.latencies.append(self.now - self.launched[dag])
            growth = [Share(o, 100, 100.0, 100.0) for o in (0, 1)] if task.kind in (Kind.SEED, Kind.JOIN) else []
            self.send(TaskDone(dag, task, growth, None, BATCH_BYTES if task.kind is Kind.END else 0))

        if task.lane is Lane.NET:
            self.after(self.work.rtt_ms, done)
        else:
            self.jobs.append([cpu_ms, done])

    def train(self) -> None:
        """The trainer takes a batch whenever it is free, and the next one when it has computed on that."""
        if self.training or not self.ready:
            return
        self.training = True
        started, batch = self.now, self.ready.pop(0)
        left = max(1, self.work.train_threads)

        def done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.training = False
                self.consumed += 1
                self.last_train_ms = self.now - started
                self.train()

        if self.work.train_threads:
            self.jobs += [[self.work.train_ms, done] for _ in range(self.work.train_threads)]
        else:
            self.after(self.work.train_ms, done)
        self.send(BatchTaken("s", batch, getattr(self, "last_train_ms", 0.0)))
