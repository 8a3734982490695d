"""Random orders of events: the harness checks every decision against the rules of the two levels."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atta.scheduler.config import SchedulerConfig
from atta.scheduler.events import Tick, Utilisation
from tests.unit.scheduler.harness import PLANS, Shell


class Machine(RuleBasedStateMachine):
    """Sessions come and go, tasks finish in any order, some fail, consumers are slow or fast."""

    policy = "two-level"
    shell: Shell

    @initialize(
        workers=st.integers(1, 3),
        at_hand=st.integers(0, 2),
        net_in_flight=st.integers(1, 4),
        max_dags=st.sampled_from([0, 1, 2, 5]),
        queue_bytes=st.sampled_from([1, 900, 2900, 5900, 10**9]),
        buffer_bytes=st.sampled_from([0, 3000, 9000]),
        chunk_rows=st.sampled_from([7, 100]),
        window=st.sampled_from([0, 1, 3]),
        seed=st.integers(0, 10**6),
        carries=st.booleans(),
    )
    def start(self, seed: int, carries: bool, **config: int) -> None:
        self.shell = Shell(SchedulerConfig(policy=self.policy, prefetch=3, **config), seed)
        self.shell.carries = carries
        self.opened = 0

    @precondition(lambda self: len(self.shell.books) < 4)
    @rule(
        plan=st.sampled_from(sorted(PLANS)),
        batches=st.integers(0, 12),
        loader=st.sampled_from(["", "a"]),
        known=st.booleans(),
    )
    def open(self, plan: str, batches: int, loader: str, known: bool) -> None:
        self.opened += 1
        size = 1.0 * self.shell.size if known else 0.0
        self.shell.open(f"s{self.opened}", plan, batches, loader=loader, batch_bytes=size)

    @precondition(lambda self: self.shell.books)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.shell.close(data.draw(st.sampled_from(sorted(self.shell.books))))

    @rule()
    def close_stranger(self) -> None:
        self.shell.close("nobody")

    @precondition(lambda self: self.shell.running)
    @rule(data=st.data(), count=st.integers(1, 12))
    def finish(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if self.shell.running:
                self.shell.finish(data.draw(st.integers(0, len(self.shell.running) - 1)))

    @precondition(lambda self: self.shell.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.shell.fail(data.draw(st.integers(0, len(self.shell.running) - 1)))

    @precondition(lambda self: any(b.taken < len(b.ready) for b in self.shell.books.values()))
    @rule(data=st.data(), train_ms=st.sampled_from([0.0, 0.1, 5.0, 100.0]))
    def take(self, data: st.DataObject, train_ms: float) -> None:
        names = sorted(n for n, b in self.shell.books.items() if b.taken < len(b.ready))
        self.shell.take(data.draw(st.sampled_from(names)), train_ms)

    @rule()
    def give_back(self) -> None:
        self.shell.give_back()

    @rule(ms=st.sampled_from([0.01, 1.0, 20.0, 1000.0]))
    def time_passes(self, ms: float) -> None:
        target = self.shell.now + ms / 1e3
        while self.shell.wake is not None and self.shell.wake <= target:
            self.shell.tick()
        self.shell.now = target

    @rule(percent=st.floats(-5, 120))
    def measure(self, percent: float) -> None:
        self.shell.send(Utilisation(percent))

    @rule()
    def extra_tick(self) -> None:
        self.shell.wake = None
        self.shell.send(Tick())

    @invariant()
    def nothing_leaks(self) -> None:
        if not self.shell.books and not self.shell.running:
            assert not self.shell.scheduler._dags
            assert not self.shell.scheduler._sessions

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        self.shell.drain()
        for name in list(self.shell.books):
            self.shell.close(name)
        self.nothing_leaks()
        ends = sum(m.ended for m in self.shell.dags.values())
        assert self.shell.scheduler.stats()["finished_total"] == ends
        assert all(not m.running for m in self.shell.dags.values())


class OneAtATime(Machine):
    policy = "sequential"

    @invariant()
    def one_dag(self) -> None:
        if hasattr(self, "shell"):
            window = self.shell.config.window
            assert all(b.in_flight <= 1 + window for b in self.shell.books.values())


class Fixed(Machine):
    policy = "prefetch"

    @invariant()
    def depth(self) -> None:
        if hasattr(self, "shell"):
            window = self.shell.config.window
            assert all(b.in_flight + len(b.sizes) <= 3 + window for b in self.shell.books.values())


class Greedy(Machine):
    policy = "fifo"


TestTwoLevel = Machine.TestCase
TestTwoLevel.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestSequential = OneAtATime.TestCase
TestPrefetch = Fixed.TestCase
TestFifo = Greedy.TestCase
TestSequential.settings = TestPrefetch.settings = TestFifo.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None
)
