"""A shell for tests: it carries out the scheduler's actions and checks every decision against its own books."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from atta.samplers.dag.check import check_spec
from atta.samplers.dag.instance import DagInstance, Kind, Lane, OwnedVertices, Task
from atta.samplers.dag.plan import Plan
from atta.samplers.dag.spec import Hops, neighbor_spec, pair_spec
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.events import (
    Action,
    BatchReady,
    BatchTaken,
    CancelDag,
    ConsumersHold,
    Event,
    FailSession,
    LaunchDag,
    RunTask,
    SessionClosed,
    SessionOpened,
    TaskDone,
    TaskFailed,
    Tick,
    WakeAt,
)
from atta.scheduler.scheduler import Scheduler
from tests.unit.dag.schemas import PLAIN

HOME = 0
PLANS = {
    "flat": check_spec(neighbor_spec(PLAIN, hops=Hops([]), seed_type="node"), PLAIN),
    "one": check_spec(neighbor_spec(PLAIN, hops=Hops([5]), seed_type="node"), PLAIN),
    "two": check_spec(neighbor_spec(PLAIN, hops=Hops([5, 5]), seed_type="node"), PLAIN),
    "link": check_spec(pair_spec(PLAIN, edge_type="node__to__node", hops=Hops([3])), PLAIN),
}


@dataclass
class Book:
    plan: Plan
    batches: list[int]
    launched: int = 0
    ready: list[int] = field(default_factory=list)
    taken: int = 0
    in_flight: int = 0
    sizes: dict[int, int] = field(default_factory=dict)  # finished and not taken
    failed: bool = False
    loader: str = ""
    before: Book | None = None  # the loader's session that was open already: its batches are taken first

    @property
    def held(self) -> int:
        return self.in_flight + len(self.sizes)


@dataclass
class Mirror:
    """Each DAG has its own instance, so the shell knows the set of ready tasks independently."""

    session: str
    batch: int
    instance: DagInstance
    nbytes: int
    waits_for: int = 0  # so many later batches are sampled before it asks for rows of others
    running: set[Task] = field(default_factory=set)
    parked: list[Task] = field(default_factory=list)  # tasks that wait for that, as far as the shell knows
    sampled: bool = False
    cancelled: bool = False
    ended: bool = False

    @property
    def waits(self) -> bool:
        """Whether nothing is left to do before its rows are asked for."""
        return self.sampled and bool(self.parked)


class Shell:
    """Holds a scheduler, feeds it events and checks its answers. Batch sizes lie in [size/1.1, size]."""

    def __init__(self, config: SchedulerConfig, seed: int = 0, size: int = 1000) -> None:
        self.config = config
        self.scheduler = Scheduler(config, HOME)
        self.rng = random.Random(seed)
        self.size = size
        self.now = 100.0
        self.wake: float | None = None
        self.books: dict[str, Book] = {}  # open sessions
        self.closed: dict[str, Book] = {}
        self.dags: dict[int, Mirror] = {}
        self.ready: dict[Lane, list[tuple[int, float, int, Task]]] = {lane: [] for lane in Lane}
        self.running: list[tuple[int, Task]] = []
        self.arrivals = 0
        self.launches: list[tuple[float, str, int]] = []
        self.lent = 0  # bytes of batches that consumers hold
        self.carries = False  # whether tasks follow others before the scheduler has them run

    # -- what a test does -----------------------------------------------------------------------------------------

    def open(self, name: str, plan: str = "one", batches: int = 5, **options: object) -> list[Action]:
        loader = str(options.get("loader", ""))
        earlier = [book for book in self.books.values() if loader and book.loader == loader]
        before = earlier[-1] if earlier else None
        self.books[name] = Book(PLANS[plan], list(range(1, 1 + 3 * batches, 3)), loader=loader, before=before)
        return self.send(SessionOpened(name, PLANS[plan], self.books[name].batches, **options))  # type: ignore[arg-type]

    def close(self, name: str) -> list[Action]:
        if name in self.books:
            self.closed[name] = self.books.pop(name)
        return self.send(SessionClosed(name))

    def finish(self, index: int = 0) -> list[Action]:
        """Complete the ``index``-th running task. If the shell carries batches on, tasks that follow it as well."""
        number, task = self.running.pop(index)
        mirror = self.dags[number]
        mirror.running.remove(task)
        event, fresh = self._ended(number, task)
        then = []
        for _ in range(self.rng.choice((0, 1, 2, 20)) if self.carries and task.lane is Lane.CPU else 0):
            at_home = [task for task in fresh if task.lane is Lane.CPU]
            if not at_home:
                break
            fresh.remove(followed := self.rng.choice(at_home))
            done, more = self._ended(number, followed)
            then.append(done)
            fresh += more
        self._add_ready(number, [task for task in fresh if not self._parks(number, task)])
        return self.send(replace(event, then=then))

    def _ended(self, number: int, task: Task) -> tuple[TaskDone, list[Task]]:
        """A task has been executed. Returns the event, and the tasks that are ready now."""
        mirror, growth, fresh = self.dags[number], [], []
        if task.kind in (Kind.SEED, Kind.JOIN):
            owners = self.rng.sample(range(3), self.rng.randint(0, 3))
            growth = [
                OwnedVertices(o, self.rng.randint(0, 40), float(self.rng.randint(0, 9)), float(self.rng.randint(0, 9)))
                for o in owners
            ]
        if not mirror.cancelled:
            fresh = mirror.instance.done(task, growth)
            mirror.sampled = mirror.instance.sampled
            if mirror.instance.finished:
                mirror.ended = True
                book = self.books[mirror.session]
                book.in_flight -= 1
                book.sizes[mirror.batch] = mirror.nbytes
        return TaskDone(number, task, growth, None, mirror.nbytes if task.kind is Kind.END else 0), fresh

    def fail(self, index: int = 0) -> list[Action]:
        number, task = self.running.pop(index)
        mirror = self.dags[number]
        mirror.running.remove(task)
        if not mirror.cancelled:
            self.books[mirror.session].failed = True
        return self.send(TaskFailed(number, task))

    def take(self, name: str, train_ms: float = 0.0) -> list[Action]:
        book = self.books[name]
        batch = book.ready[book.taken]
        self.lent += book.sizes[batch]
        self.send(ConsumersHold(self.lent))
        book.taken += 1
        del book.sizes[batch]
        return self.send(BatchTaken(name, batch, train_ms))

    def give_back(self) -> list[Action]:
        self.lent = 0
        return self.send(ConsumersHold(0))

    def tick(self) -> list[Action]:
        assert self.wake is not None
        self.now, self.wake = max(self.now, self.wake), None
        return self.send(Tick())

    def drain(self, trained: dict[str, float] | None = None) -> None:
        for _ in range(100_000):
            takable = [n for n, b in self.books.items() if b.taken < len(b.ready)]
            if self.running:
                self.finish(self.rng.randrange(len(self.running)))
            elif takable:
                self.take(takable[0], (trained or {}).get(takable[0], 0.0))
            elif self.wake is not None:
                self.tick()
            elif self.lent:
                self.give_back()
            else:
                break
            self.now += self.rng.choice([0.0, 1e-4, 1e-3])
        for book in self.books.values():
            assert book.ready == book.batches
            assert book.taken == len(book.batches)

    @property
    def saturated(self) -> bool:
        """Whether the shell's own books make a launch wait: each worker has another task, or many bytes are to come."""
        if self.config.policy != "two-level":
            return False
        idle = self.config.workers - sum(task.lane is Lane.CPU for _, task in self.running)
        waiting = [entry[3] for entry in self.ready[Lane.NET]] + [
            task for _, task in self.running if task.lane is Lane.NET
        ]
        fetching = sum(task.cost for task in waiting if task.kind is Kind.FEATURE)
        idle_net = self.config.net_in_flight - sum(task.lane is Lane.NET for _, task in self.running)
        return (
            len(self.ready[Lane.CPU]) - idle >= self.config.workers
            or len(self.ready[Lane.NET]) > idle_net
            or fetching >= self.config.fetch_bytes
        )

    # -- what it checks ----------------------------------------------------------------------------------------------

    def send(self, event: Event) -> list[Action]:
        actions = self.scheduler.on(event, self.now)
        if self.wake is not None and self.wake <= self.now:
            self.wake = None  # its tick is on the way: the scheduler may count on that but must not need it
        for action in actions:
            self._perform(action)
        self._check_bounds()
        assert self.scheduler.log[-1][1] is event
        return actions

    def _perform(self, action: Action) -> None:
        match action:
            case LaunchDag(number, session, batch):
                assert number == len(self.dags), "DAG ids follow launch order"
                book = self.books[session]
                assert batch == book.batches[book.launched], "batches are launched in order, once"
                self._check_buffers(book)
                assert not self.saturated, "a launch that makes nothing faster"
                book.launched += 1
                book.in_flight += 1
                nbytes = self.rng.randint(round(self.size / 1.1), self.size)
                instance, position = DagInstance(book.plan, HOME, self.config.chunk_rows), book.launched - 1
                waits_for = min(self.config.window, position, len(book.batches) - 1 - position)
                self.dags[number] = Mirror(session, batch, instance, nbytes, waits_for)
                self.launches.append((self.now, session, batch))
                self._add_ready(number, self.dags[number].instance.start())
            case RunTask(number, task):
                if task in self.dags[number].parked:
                    self._check_released(number)
                self._check_choice(number, task)
                self.dags[number].running.add(task)
                self.running.append((number, task))
            case BatchReady(session, batch, number):
                book = self.books[session]
                assert self.dags[number].ended
                assert self.dags[number].batch == batch
                assert batch == book.batches[len(book.ready)], "batches come out in order, once"
                book.ready.append(batch)
            case CancelDag(number):
                mirror = self.dags[number]
                assert not mirror.cancelled
                assert mirror.session not in self.books or self.books[mirror.session].failed
                mirror.cancelled, mirror.parked = True, []
                for lane in Lane:
                    self.ready[lane] = [entry for entry in self.ready[lane] if entry[0] != number]
            case FailSession(session, number, _):
                assert self.dags[number].session == session
                assert self.books[session].failed
            case WakeAt(when):
                assert when > self.now
                assert self.wake is None or when < self.wake, "a wake-up is only ever moved forward"
                self.wake = when
        for name in [n for n, b in self.books.items() if b.failed]:
            if isinstance(action, FailSession):
                self.closed[name] = self.books.pop(name)

    def _check_buffers(self, launching: Book) -> None:
        """A session that holds something leaves at least as much free as it will hold itself."""
        least = self.size / 1.1
        # For a session without a finished batch, the sizes of its batches in flight are unknown.
        known = {id(b): b.in_flight * least if b.sizes or b.ready else 0.0 for b in self.books.values()}
        held = {id(b): sum(b.sizes.values()) + known[id(b)] for b in self.books.values()}
        left = self.config.buffer_bytes - self.lent - sum(held.values())
        if self.config.buffer_bytes and held[id(launching)]:
            assert held[id(launching)] + least <= left
        elif self.config.buffer_bytes and launching.ready:
            assert min(least, self.config.buffer_bytes) <= left

    def _parks(self, number: int, task: Task) -> bool:
        """Whether a task waits for later batches of its session; noted if so."""
        mirror = self.dags[number]
        parks = bool(mirror.waits_for) and task.kind is Kind.FEATURE and task.lane is Lane.NET
        mirror.parked += [task] if parks else []
        return parks

    def _others(self, number: int) -> list[tuple[int, Mirror]]:
        """The other batches of the same session that are not cancelled."""
        session = self.dags[number].session
        return [(n, m) for n, m in self.dags.items() if n != number and m.session == session and not m.cancelled]

    def _later(self, number: int) -> int:
        return sum(m.sampled for n, m in self._others(number) if n > number)

    def _check_released(self, number: int) -> None:
        """The batch before which enough are sampled fetches its rows, or the oldest if all in flight wait for that."""
        mirror, others = self.dags[number], self._others(number)
        alone = all(m.ended or (m.waits and n > number) for n, m in others)
        assert mirror.sampled
        assert alone or self._later(number) >= mirror.waits_for, "rows are asked for before later batches are sampled"
        tasks, mirror.parked = mirror.parked, []
        self._add_ready(number, tasks)

    def _add_ready(self, number: int, tasks: list[Task]) -> None:
        for task in tasks:
            self.ready[task.lane].append((number, self.scheduler.costs.estimate(task), self.arrivals, task))
            self.arrivals += 1

    def _check_choice(self, number: int, task: Task) -> None:
        waiting = self.ready[task.lane]
        chosen = next(entry for entry in waiting if entry[0] == number and entry[3] == task)
        first = 2 if self.config.policy == "fifo" else 0  # by arrival alone, or by (DAG, cost, arrival)
        assert chosen[first:3] == min(entry[first:3] for entry in waiting), "not the minimum of the ready set"
        waiting.remove(chosen)

    def _check_bounds(self) -> None:
        width = {Lane.CPU: self.config.workers + self.config.at_hand, Lane.NET: self.config.net_in_flight}
        for number, mirror in self.dags.items():
            if mirror.waits and sum(task.lane is Lane.NET for _, task in self.running) < width[Lane.NET]:
                assert self._later(number) < mirror.waits_for, "rows are not asked for though enough is sampled"
        for lane in Lane:
            running = sum(task.lane is lane for _, task in self.running)
            assert running <= width[lane]
            assert running == width[lane] or not self.ready[lane], "a lane idles while tasks are ready"
        for book in self.books.values():
            held = book.held
            assert held <= self.config.dag_cap
            assert sum(book.sizes.values()) <= max(self.config.queue_bytes, self.size)
            if self.saturated:
                continue  # sessions wait for their turns: the scheduler considers them whenever a task ends
            open_before = book.before is not None and any(book.before is other for other in self.books.values())
            first = not open_before or book.before.held == 0  # the consumer has no other batch to wait for
            if held == 0 and first and not self.config.buffer_bytes:
                assert book.launched == len(book.batches), "nothing in flight, nothing finished, and no launch"
            elif book.launched < len(book.batches) and book.in_flight == 0 and held < self.config.dag_cap:
                # Batches wait and there is room: another look must follow, unless bytes or the policy forbid a launch.
                roomy = sum(book.sizes.values()) + 1.3 * self.size <= self.config.queue_bytes
                line = len(book.sizes) + (len(book.before.sizes) if open_before and book.before is not None else 0)
                enough = bool(book.sizes) and line >= self.config.target_queue  # the next one follows when one is taken
                if self.config.policy == "two-level" and roomy and not self.config.buffer_bytes and not enough:
                    assert self.wake is not None
                    assert self.wake <= self.now + self.config.sleep_s + 1e-9
        open_dags = {n for n, m in self.dags.items() if not m.ended and not m.cancelled}
        assert sum(b.in_flight for b in self.books.values()) == len(open_dags)
        stats = self.scheduler.stats()
        assert stats["in_flight"] == len(open_dags)
        assert stats["finished"] == sum(len(b.sizes) for b in self.books.values())
        assert stats["finished_bytes"] == sum(sum(b.sizes.values()) for b in self.books.values())
        assert [view.name for view in self.scheduler.sessions()] == list(self.books)
        assert stats["running_cpu"] + stats["running_net"] == len(self.running)
