"""One simulated machine: a trainer, and the shell around the real scheduler, like a daemon's engine."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from atta.daemon.peers.chunks import CHUNK_BYTES
from atta.samplers.dag.instance import Kind, Lane, OwnedVertices, Task
from atta.scheduler import (
    BatchReady,
    BatchTaken,
    Event,
    LaunchDag,
    RunTask,
    Scheduler,
    SessionOpened,
    TaskDone,
    Tick,
    Utilisation,
    WakeAt,
    policy_named,
)
from atta.simulate.clock import Clock
from atta.simulate.profile import Linear
from atta.simulate.resources import Cores, Pool, Port, Switch
from atta.simulate.scenario import BatchModel, Scenario

__all__ = ["Machine", "Prices"]

UTILISATION_PERIOD_S = 0.1
"""How often the CPU utilisation is sampled, in seconds, as in ``atta.daemon.engine.engine``."""
LEAST_TRAIN_MS = 1e-3
"""Least training time that a consumer reports, in milliseconds; 0 would mean an unknown time."""


@dataclass(frozen=True)
class _TaskPrice:
    fixed_s: float
    per_unit_s: float


@dataclass(frozen=True)
class _RequestPrice:
    request: float  # bytes per unit
    answer: float
    serve: _TaskPrice
    receive: _TaskPrice


class Prices:
    """What tasks cost in seconds and bytes, by (kind, hop) of their operator; the same for all machines."""

    def __init__(self, model: BatchModel) -> None:
        self.hop = {op.id: op.hop for op in model.plan.ops} | {"": 0}
        self.batch_s = 1e-6 * model.profile.batch_us
        self.hit = model.cache_hit
        self._local: dict[tuple[Kind, int], _TaskPrice] = {}
        self._remote: dict[tuple[Kind, int], _RequestPrice] = {}
        for hop in range(len(model.hops)):
            for kind in Kind:
                price = model.remote(kind.value, hop)
                self._local[kind, hop] = _seconds(model.local(kind.value, hop))
                self._remote[kind, hop] = _RequestPrice(
                    price.request_bytes, price.answer_bytes, _seconds(price.serve), _seconds(price.receive)
                )

    def local(self, task: Task) -> float:
        """CPU seconds of a task at home."""
        price = self._local[task.kind, self.hop[task.op]]
        return price.fixed_s + price.per_unit_s * task.cost

    def units(self, task: Task) -> float:
        """Units of cost that a request asks for, after the cache."""
        return task.cost * (1.0 - self.hit) if task.kind is Kind.FEATURE else task.cost

    def remote(self, task: Task) -> _RequestPrice:
        """The cost of the request that a task of another owner sends."""
        return self._remote[task.kind, self.hop[task.op]]

    def copied(self, task: Task, units: float) -> float:
        """CPU seconds to copy the rows at hand, if only ``units`` are asked for."""
        if task.kind is not Kind.FEATURE:
            return 0.0
        return self._local[Kind.FEATURE, 0].per_unit_s * (task.cost - units)


@dataclass(frozen=True)
class _Asked:
    """A request to another machine."""

    dag: int
    task: Task
    units: float  # units of cost that it asks for
    since: float  # when its batch was begun: older ones are answered first
    sent: float
    pull: _Pull | None = None


@dataclass(eq=False)
class _Pull:
    """Rows of one owner that a batch waits for, see ``atta.daemon.peers.underway``."""

    dag: int
    nbytes: float
    earlier: dict[_Pull, None]  # earlier pulls under way: this one may wait for their rows
    later: list[_Pull] = field(default_factory=list)
    answered: _Asked | None = None


def _seconds(cost: Linear) -> _TaskPrice:
    return _TaskPrice(1e-6 * cost.fixed_us, 1e-6 * cost.us_per_unit)


class Machine:
    """Runs one session of ``scenario.batches`` batches and serves the other machines."""

    def __init__(
        self,
        index: int,
        scenario: Scenario,
        model: BatchModel,
        prices: Prices,
        *,
        clock: Clock,
        switch: Switch,
        cores: Cores,
    ) -> None:
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
        self._scheduler = Scheduler(scenario.scheduler, index)
        self._oldest_first = policy_named(scenario.scheduler.policy).oldest_first
        self._serving = Pool(self.cores, scenario.serve_threads)
        self._scenario, self._model, self._prices = scenario, model, prices
        self._clock, self._switch = clock, switch
        self._scales = model.scales(index, scenario.batches)
        self._dags: dict[int, tuple[int, float]] = {}  # batch, when launched
        self._pulls: dict[int, dict[_Pull, None]] = {}  # those under way, by owner
        self._wake = 0  # number of the latest planned tick; earlier ones are out of date
        self._queue: deque[int] = deque()
        self._training = False
        self._train_ms = self._started = 0.0
        self._consumed = 0
        self._used_s = 0.0  # core seconds up to the last sample of the utilisation

    def start(self) -> None:
        """The trainer opens its session."""
        known = float(self._model.batch_bytes(1.0)) if self._scenario.known_batch_bytes else 0.0
        self._clock.at(self._clock.now + UTILISATION_PERIOD_S, self._sample_utilisation)
        self._send(SessionOpened("s", self._model.plan, range(self._scenario.batches), batch_bytes=known))

    # -- the daemon ----------------------------------------------------------------------------------------------------

    def _send(self, event: Event) -> None:
        for action in self._scheduler.on(event, self._clock.now):
            match action:
                case RunTask(dag=dag, task=task):
                    if task.lane is Lane.CPU:
                        self.cores.run(self._prices.local(task), self._task_done, dag, task, self._clock.now)
                    else:
                        self._ask(dag, task)
                case LaunchDag(dag=dag, batch=batch):
                    self._dags[dag] = batch, self._clock.now
                    self.held += 1
                    self.most_held = max(self.most_held, self.held)
                case BatchReady(batch=batch):
                    self.cores.run(self._prices.batch_s, self._deliver, batch)
                case WakeAt(when=when):
                    self._wake += 1
                    self._clock.at(when, self._tick, self._wake)
                case _:
                    raise AssertionError(f"nothing fails in a simulation, but the scheduler says {action}")

    def _tick(self, number: int) -> None:
        if number == self._wake:
            self._send(Tick())

    def _task_done(self, dag: int, task: Task, started: float) -> None:
        growth: list[OwnedVertices] = []
        nbytes = 0
        if task.kind is Kind.SEED or task.kind is Kind.JOIN:
            batch, _ = self._dags[dag]
            hop = self._prices.hop[task.op]
            growth = self._model.growth(self.index, batch, hop, self._scales[batch])
        elif task.kind is Kind.END:
            batch, launched = self._dags.pop(dag)
            self.completions_s.append(self._clock.now - launched)
            nbytes = self._model.batch_bytes(self._scales[batch])
            self.bytes += nbytes
            self.most_bytes = max(self.most_bytes, self.bytes)
        self._send(TaskDone(dag, task, growth, None, nbytes, self._clock.now - started))

    def _sample_utilisation(self) -> None:
        if self.finished:
            return
        used = self.cores.used()
        percent = 100.0 * (used - self._used_s) / (self.cores.count * UTILISATION_PERIOD_S)
        self._used_s = used
        self._clock.at(self._clock.now + UTILISATION_PERIOD_S, self._sample_utilisation)
        self._send(Utilisation(percent))

    # -- other daemons: request, queue and CPU at the owner, answer, CPU of receiving ----------------------------------

    def _ask(self, dag: int, task: Task) -> None:
        units, now = self._prices.units(task), self._clock.now
        pull = None
        if task.kind is Kind.FEATURE and self._model.shares_pulls:
            earlier = {p: None for p in self._pulls.setdefault(task.owner, {}) if p.dag != dag}
            share = self._model.under_way(self.index, task.owner, sum(p.nbytes for p in earlier))
            units *= 1.0 - share
            pull = _Pull(dag, task.cost, earlier if share else {})
            self._pulls[task.owner][pull] = None
            for other in pull.earlier:
                other.later.append(pull)
        # Requests overtake answers: a request is only a few packets.
        asked = _Asked(dag, task, units, self._dags[dag][1] if self._oldest_first else now, now, pull)
        if units <= 0 < task.cost:  # everything is at hand
            self.cores.run(self._prices.copied(task, 0.0), self._answered, asked)
            return
        owner = self.peers[task.owner]
        nbytes = units * self._prices.remote(task).request
        self._switch.send(-math.inf, self.port, owner.port, nbytes, owner.serve, self, asked)

    def serve(self, other: Machine, asked: _Asked) -> None:
        """A request of another machine has arrived."""
        price = self._prices.remote(asked.task).serve
        self._serving.run(asked.since, price.fixed_s + price.per_unit_s * asked.units, self._answer, other, asked)

    def _answer(self, other: Machine, asked: _Asked) -> None:
        nbytes = asked.units * self._prices.remote(asked.task).answer
        # As in a daemon, answers of one message take no turns with those that are streamed.
        at_once = asked.task.kind is Kind.NEIGHBORHOOD and nbytes <= CHUNK_BYTES
        self._switch.send(-math.inf if at_once else asked.since, self.port, other.port, nbytes, other.receive, asked)

    def receive(self, asked: _Asked) -> None:
        """The answer to a request has arrived."""
        price = self._prices.remote(asked.task).receive
        seconds = price.fixed_s + price.per_unit_s * asked.units + self._prices.copied(asked.task, asked.units)
        self.cores.run(seconds, self._answered, asked)

    def _answered(self, asked: _Asked) -> None:
        """The answer is here; rows that earlier pulls bring may not be."""
        if asked.pull is None:
            self._task_done(asked.dag, asked.task, asked.sent)
            return
        asked.pull.answered = asked
        if not asked.pull.earlier:
            self._pulled(asked.pull)

    def _pulled(self, pull: _Pull) -> None:
        """All rows of a pull are here, also those that later pulls wait for."""
        asked = pull.answered
        assert asked is not None
        del self._pulls[asked.task.owner][pull]
        self._task_done(asked.dag, asked.task, asked.sent)
        for later in pull.later:
            del later.earlier[pull]
            if later.answered is not None and not later.earlier:
                self._pulled(later)

    # -- the trainer ---------------------------------------------------------------------------------------------------

    def _deliver(self, batch: int) -> None:
        self._queue.append(batch)
        if not self._training:
            self._take()

    def _take(self) -> None:
        """The trainer takes a batch and computes on it."""
        batch = self._queue.popleft()
        self.delivered.append(batch)
        self.held -= 1
        self.bytes -= self._model.batch_bytes(self._scales[batch])
        self._training = True
        started, threads = self._clock.now, self._scenario.train_threads
        if threads:
            left = [threads]
            for _ in range(threads):
                self.cores.run(self._scenario.train_s, self._trained_thread, left, started)
        else:
            self._clock.at(started + self._scenario.train_s, self._trained, started)
        self._send(BatchTaken("s", batch, self._train_ms))

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
        return self._consumed == self._scenario.batches

    def proceed(self) -> None:
        """Take the next batch as soon as there is one.

        The training time that consumers report includes waiting for each other.
        """
        self._train_ms = max(LEAST_TRAIN_MS, 1e3 * (self._clock.now - self._started))
        self._training = False
        if self._queue:
            self._take()
