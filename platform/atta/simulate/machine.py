"""One simulated machine: a trainer, and the shell around the real scheduler, like a daemon's engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atta.samplers.dag.instance import Kind, Lane, OwnedVertices, Task
from atta.scheduler import events
from atta.scheduler.fine import brief_us, is_brief
from atta.scheduler.policies import policy_named
from atta.scheduler.scheduler import Scheduler
from atta.simulate.profile import Linear, Remote
from atta.simulate.resources import Clock, Cores, Pool, Port, Switch
from atta.simulate.scenario import BatchModel

UTILISATION_PERIOD_S = 0.1
"""How often the CPU utilisation is sampled, in seconds, as in ``atta.daemon.engine.engine``."""
LEAST_TRAIN_MS = 1e-3
"""Least training time that a consumer reports, in milliseconds; 0 would mean an unknown time."""


@dataclass(eq=False, slots=True)
class _RemoteTask:
    """A task of other owners that is under way. It is done when all owners have answered. Of a FEATURE task the rows
    that it leaves to earlier tasks must have come, too, see ``atta.daemon.peers.owners``."""

    dag: int
    task: Task
    price: Remote
    since: float  # when its batch was begun: owners answer older ones first
    sent: float
    stands_for: float  # number of requests that each of its requests stands for
    left: int = 0  # owners that have not answered, and one more while rows at hand are copied
    asked: float = 1.0  # share of the cost that it asks for: neither in the cache nor under way
    earlier: dict[_RemoteTask, None] = field(default_factory=dict)  # tasks under way that bring some of its rows
    later: list[_RemoteTask] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _OwnersPart:
    """What a remote task asks one owner for."""

    of: _RemoteTask
    units: float  # of cost


class Machine:
    """Runs one session of ``scenario.batches`` batches and serves the other machines."""

    def __init__(self, index: int, model: BatchModel, *, clock: Clock, switch: Switch, cores: Cores) -> None:
        scenario = model.scenario
        self.index, self.peers = index, list[Machine]()
        self.cores = cores
        self.port = Port()
        self.stepped: Callable[[Machine], None] = Machine.proceed
        """Called when the trainer has computed on a batch. The trainer takes the next one after ``proceed``."""
        self.completions_s: list[float] = []
        self.delivered: list[int] = []
        self.trained_s = 0.0  # time in which the trainer computed
        self.most_held = self.held = 0  # batches in flight or waiting for the trainer
        self.most_bytes = self.bytes = 0  # of finished batches
        self.requests = 0.0  # sent to other machines
        self.rows = 0.0  # that they asked for; a sum counts as one
        self.disk_s = self._disk_free = 0.0  # how long the disk has read, and from when on it is free
        self.lane_s = dict.fromkeys(Lane, 0.0)  # sum over the tasks of a lane of the time that they took
        self.loop, self.serving, self._workers, self._consumer = (
            Pool(clock, cores, threads, wakes * 1e-6 * model.profile.wake_us)
            for threads, wakes in ((1, 1), (scenario.serve_threads, 1), (scenario.scheduler.workers, 1), (1, 2))
        )  # a batch reaches the consumer by way of a thread of the connection
        own_rows = model.profile.disk_reads > 0
        self._scheduler = Scheduler(replace(scenario.scheduler, window=scenario.rows_window, own_rows=own_rows), index)
        self._oldest_first = policy_named(scenario.scheduler.policy).oldest_first
        self._scenario, self._model, self._costs = scenario, model, model.profile.loop
        self._clock, self._switch = clock, switch
        self._brief_us = brief_us(scenario.scheduler.workers)
        self._scales = model.scales(index, scenario.trainer_batches)
        self._dags: dict[int, tuple[int, float]] = {}  # batch, when launched
        self._pulls: dict[_RemoteTask, None] = {}  # FEATURE tasks under way
        self._wake = 0  # number of the latest planned tick; earlier ones are out of date
        self._opened = 0  # sessions
        self._queue: set[int] = set()
        self._training = False
        self._train_ms = self._started = 0.0
        self._consumed = 0
        self._used_s = 0.0  # core seconds up to the last sample of the utilisation

    def start(self) -> None:
        """The trainer opens its first session."""
        self._clock.at(self._clock.now + UTILISATION_PERIOD_S, self._sample_utilisation)
        self._open()

    def _open(self) -> None:
        known = float(self._model.batch_bytes(1.0)) if self._scenario.known_batch_bytes else 0.0
        number, count = self._opened, self._scenario.session_batches
        self._opened += 1
        batches = range(number * count, (number + 1) * count)
        opened = events.SessionOpened(f"s{number}", self._model.plan, batches, batch_bytes=known, loader="loader")
        outside = self._model.second * self._model.profile.session_us
        if outside:
            self.cores.run(outside, self._on_loop, self._costs.session_us, self._send, opened)
        else:
            self._on_loop(self._costs.session_us, self._send, opened)

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def _send(self, event: events.Event) -> None:
        for action in self._scheduler.on(event, self._clock.now):
            match action:
                case events.RunTask(dag=dag, task=task, owners=owners):
                    if task.lane is Lane.CPU:
                        self._run(dag, task)
                    else:
                        self._ask(dag, task, owners)
                case events.LaunchDag(dag=dag, batch=batch):
                    self._dags[dag] = batch, self._clock.now
                    self.held += 1
                    self.most_held = max(self.most_held, self.held)
                case events.BatchReady(batch=batch):
                    seconds = self._model.second * self._model.profile.batch_us
                    self._on_loop(self._costs.batch_us, self._consumer.run, 0.0, seconds, self._deliver, batch)
                case events.WakeAt(when=when):
                    self._wake += 1
                    self._clock.at(when, self._tick, self._wake)
                case _:
                    raise AssertionError(f"nothing fails in a simulation, but the scheduler says {action}")

    def _run(self, dag: int, task: Task) -> None:
        """Run a task at home when the disk, which has one queue, has given its rows."""
        if not (seconds := self._model.on_disk(task)):
            return self._work(dag, task)
        self.disk_s += seconds
        self._disk_free = max(self._clock.now, self._disk_free) + seconds
        self._clock.at(self._disk_free, self._work, dag, task)
        return None

    def _work(self, dag: int, task: Task) -> None:
        """Run a task at home: a brief one on the event loop, others on a worker."""
        batch, seconds = self._dags[dag][0], self._model.local(task)
        vertices = self._model.vertices(batch) * self._scales[batch]
        sums = task.kind is Kind.END and self._model.plan.summed is not None
        if not sums and is_brief(task, self._brief_us, seeds=self._model.batch_size, vertices=vertices):
            self.loop.run(0.0, seconds, self._ran, dag, task, self._clock.now)
        else:
            self._workers.run(0.0, seconds, self._ran, dag, task, self._clock.now)

    def _tick(self, number: int) -> None:
        if number == self._wake:
            self._send(events.Tick())

    def _on_loop(self, us: float, then: Callable[..., None], *args: Any) -> None:
        """Call ``then(*args)`` after the event loop has spent ``us`` of the profile on it. It does one thing at a time."""
        if us:
            self.loop.run(0.0, self._model.second * us, then, *args)
        else:
            then(*args)

    def _ran(self, dag: int, task: Task, started: float, nbytes: float = 0.0) -> None:
        """A task has ended; ``nbytes``: of answers to it. The event loop works on it before the scheduler does."""
        loop_us = self._costs.task_us + self._costs.us_per_byte * nbytes
        self._on_loop(loop_us, self._task_done, dag, task, started, self._clock.now - started)

    def _task_done(self, dag: int, task: Task, started: float, seconds: float) -> None:
        growth: list[OwnedVertices] = []
        nbytes = 0
        self.lane_s[task.lane] += self._clock.now - started
        if task.kind is Kind.SEED or task.kind is Kind.JOIN:
            batch = self._dags[dag][0]
            growth = self._model.growth(self.index, batch, self._model.hop[task.op], self._scales[batch])
        elif task.kind is Kind.END:
            batch, launched = self._dags.pop(dag)
            self.completions_s.append(self._clock.now - launched)
            nbytes = self._model.batch_bytes(self._scales[batch], batch)
            self.bytes += nbytes
            self.most_bytes = max(self.most_bytes, self.bytes)
        self._send(events.TaskDone(dag, task, growth, None, nbytes, seconds))

    def _sample_utilisation(self) -> None:
        if self.finished:
            return
        used = self.cores.used()
        percent = 100.0 * (used - self._used_s) / (self.cores.count * UTILISATION_PERIOD_S)
        self._used_s = used
        self._clock.at(self._clock.now + UTILISATION_PERIOD_S, self._sample_utilisation)
        self._send(events.Utilisation(percent))

    # -- other daemons: request, queue and CPU at the owner, answer, CPU of receiving ----------------------------------

    def _ask(self, dag: int, task: Task, owners: Sequence[OwnedVertices]) -> None:
        now = self._clock.now
        since = self._dags[dag][1] if self._oldest_first else now
        price, stands_for = self._model.remote(task), self._model.requests(owners)
        remote = _RemoteTask(dag, task, price, since, now, stands_for)
        if task.kind is Kind.FEATURE:
            self._leave_out(remote)
        if remote.asked < 1.0:
            remote.left += 1
            self.cores.run(self._model.copied(task, 1.0 - remote.asked), self._answered, remote)
        if remote.asked > 0.0:
            remote.left += len(owners)
            for share in owners:
                units = remote.asked * (share.feature_bytes if task.kind is Kind.FEATURE else share.degree)
                self.rows += remote.asked * share.rows if task.kind is Kind.FEATURE else 0.0
                self.requests += remote.stands_for
                owner, nbytes, part = self.peers[share.owner], units * price.request_bytes, _OwnersPart(remote, units)
                # A request is only a few packets.
                self._switch.send(self.port, owner.port, nbytes, owner.serve, self, part, urgent=True)

    def _leave_out(self, remote: _RemoteTask) -> None:
        """Do not ask for rows that are in the cache, or that tasks of other batches bring."""
        remote.asked = self._model.asked(remote.task)
        if self._model.sums(remote.task):
            remote.stands_for *= 2  # one for rows, one for sums
        elif self._model.shares_pulls:
            self._share_pulls(remote)

    def _share_pulls(self, remote: _RemoteTask) -> None:
        others = [other for other in self._pulls if other.dag != remote.dag]
        if share := self._model.under_way(self.index, sum(other.task.cost for other in others)):
            remote.asked *= 1.0 - share
            remote.earlier = dict.fromkeys(others)
            for other in others:
                other.later.append(remote)
        self._pulls[remote] = None

    def serve(self, other: Machine, part: _OwnersPart) -> None:
        """A request of another machine has arrived."""
        requests, seconds = part.of.stands_for, self._seconds(part.of.price.serve, part)
        nbytes = part.units * part.of.price.answer_bytes
        answer = self._switch.send, self.port, other.port, nbytes, other.receive, part
        self._on_loop(self._costs.request_us * requests, self.serving.run, part.of.since, seconds, *answer)

    def receive(self, part: _OwnersPart) -> None:
        """The answer to a request has arrived. Threads that serve take in what has come before they serve more."""
        requests, seconds = part.of.stands_for, self._seconds(part.of.price.receive, part)
        self._on_loop(self._costs.answer_us * requests, self.serving.run, -math.inf, seconds, self._answered, part.of)

    def _seconds(self, price: Linear, part: _OwnersPart) -> float:
        """CPU time of one end of the requests that ``part`` stands for."""
        return self._model.second * (price.fixed_us * part.of.stands_for + price.us_per_unit * part.units)

    def _answered(self, remote: _RemoteTask) -> None:
        """An owner's answer is here, or what was at hand is copied. Rows that earlier tasks bring may not be here."""
        remote.left -= 1
        if not remote.left and not remote.earlier:
            self._is_here(remote)

    def _is_here(self, remote: _RemoteTask) -> None:
        """All that a remote task wants is here, also the rows that later tasks wait for."""
        self._pulls.pop(remote, None)
        nbytes = remote.asked * remote.task.cost * remote.price.answer_bytes
        self._ran(remote.dag, remote.task, remote.sent, nbytes)
        for later in remote.later:
            del later.earlier[remote]
            if not later.left and not later.earlier:
                self._is_here(later)

    # -- the trainer ---------------------------------------------------------------------------------------------------

    def _deliver(self, batch: int) -> None:
        self._queue.add(batch)
        self._take_next()

    def _take_next(self) -> None:
        """Take the next batch if it is there and the trainer is free. Batches of a later session may be there first."""
        if not self._training and (batch := len(self.delivered)) in self._queue:
            self._take(batch)

    def _take(self, batch: int) -> None:
        self._queue.remove(batch)
        self.delivered.append(batch)
        self.held -= 1
        self.bytes -= self._model.batch_bytes(self._scales[batch], batch)
        self._training = True
        started, threads = self._clock.now, self._scenario.train_threads
        if threads:
            left = [threads]
            for _ in range(threads):
                self.cores.run(self._scenario.train_s, self._trained_thread, left, started)
        else:
            self._clock.at(started + self._scenario.train_s, self._trained, started)
        self._send(events.BatchTaken(f"s{batch // self._scenario.session_batches}", batch, self._train_ms))

    def _trained_thread(self, left: list[int], started: float) -> None:
        left[0] -= 1
        if left[0] == 0:
            self._trained(started)

    def _trained(self, started: float) -> None:
        self.trained_s += self._clock.now - started
        self._started = started
        self._consumed += 1
        self.stepped(self)

    @property
    def finished(self) -> bool:
        """Whether the trainer has computed on all batches."""
        return self._consumed == self._scenario.trainer_batches

    def proceed(self) -> None:
        """Take the next batch as soon as there is one. The training time that consumers report includes waiting for
        each other."""
        self._train_ms = max(LEAST_TRAIN_MS, 1e3 * (self._clock.now - self._started))
        self._training = False
        # The next session is opened when the daemon has begun the last batch of this one, as by ``DagLoader.epochs``.
        number = (self._consumed - 1) // self._scenario.session_batches
        if self._opened == number + 1 < self._scenario.epochs and not self._scheduler.unlaunched(f"s{number}"):
            self._open()
        if self._consumed % self._scenario.session_batches == 0 and not self.finished:
            self._send(events.SessionClosed(f"s{number}"))
        self._take_next()
