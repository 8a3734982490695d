"""The consumer's time per batch, on the host's clock and on that of a GPU with queued work."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from atta.client.sessions.stream import ConsumerPace, cuda_event


@dataclass
class Machine:
    """A host, and a GPU that works through the host's queue; times in seconds."""

    now: float = 0.0
    gpu_free: float = 0.0

    def clock(self) -> float:
        return self.now

    def event(self) -> Event:
        return Event(self, max(self.now, self.gpu_free))

    def host(self, seconds: float) -> None:
        self.now += seconds

    def queue(self, seconds: float) -> None:
        self.gpu_free = max(self.now, self.gpu_free) + seconds


@dataclass
class Event:
    machine: Machine
    reached: float
    asked: list[float] = field(default_factory=list)

    def query(self) -> bool:
        return self.reached <= self.machine.now

    def elapsed_time(self, later: Event) -> float:
        assert self.query()
        assert later.query(), "read before it was reached: torch would raise"
        return 1e3 * (later.reached - self.reached)


def train(pace: ConsumerPace, machine: Machine, *, wait: float, host: float, gpu: float, batches: int) -> None:
    for _ in range(batches):
        pace.done()
        machine.host(wait)
        pace.arrived()
        machine.queue(gpu)
        machine.host(host)


def test_without_a_gpu_the_host_counts_and_waiting_for_batches_does_not() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, lambda: None)
    train(pace, machine, wait=0.5, host=0.020, gpu=0.0, batches=10)
    assert pace.ms == pytest.approx(20)


@pytest.mark.parametrize(("host", "gpu"), [(0.001, 0.030), (0.030, 0.002)])
def test_with_a_gpu_the_slower_of_the_two_counts(host: float, gpu: float) -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, machine.event)
    # The host may be a batch or two ahead of the GPU, as in training loops that read their loss.
    for _ in range(40):
        pace.done()
        machine.host(0.004)
        pace.arrived()
        machine.queue(gpu)
        machine.host(host)
        machine.now = max(machine.now, machine.gpu_free - 2 * gpu)
    assert pace.ms == pytest.approx(1e3 * max(host, gpu), rel=0.02)


def test_a_gpu_far_behind_is_never_waited_for_and_costs_bounded_memory() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, machine.event)
    train(pace, machine, wait=0.0, host=1e-4, gpu=1.0, batches=1000)
    assert machine.now == pytest.approx(0.1)
    assert len(pace._open) <= 16
    assert pace.ms == 0


def test_the_mean_follows_a_change_of_speed() -> None:
    machine = Machine()
    pace = ConsumerPace(machine.clock, lambda: None)
    train(pace, machine, wait=0.0, host=0.010, gpu=0.0, batches=20)
    train(pace, machine, wait=0.0, host=0.050, gpu=0.0, batches=21)
    assert pace.ms == pytest.approx(50, rel=0.02)


def test_a_process_that_does_not_use_cuda_has_no_events() -> None:
    assert cuda_event() is None
