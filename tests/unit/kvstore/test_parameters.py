"""Weights of jobs: each update once, in whatever order messages come; checked against torch.optim."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from atta.errors import ConfigError, NonFiniteError, QuotaExceededError, UnknownClientError, UnknownNameError
from atta.kvstore.parameter_jobs import MAX_JOBS_WITH_WEIGHTS, ArrivalJob, ParameterJobs, SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from tests.unit.invariants import validate

STEPS = [VectorStep("sgd", 0.1), VectorStep("sgd", 0.1, 0.01), VectorStep("adam", 0.1), VectorStep("adam", 0.1, 0.01)]
ARRIVAL = ParameterSpec("job", (2, 1), 2, "arrival", VectorStep("sgd", 1.0), "<f8", 1, lease_s=10.0)
SUMMED = ParameterSpec("job", (2, 1), 2, "summed", VectorStep("sgd", 1.0), "<f8", 1, lease_s=10.0)
ZEROS = np.zeros(3)


SGD = VectorStep("sgd", 1.0)
_DRAWN = np.random.default_rng(0)
_NUMBERS = (_DRAWN.normal(size=64) * 10.0 ** _DRAWN.integers(-3, 4, 64)).tolist()


class Run:
    """Requests to one job: any of them arrives next; it may be lost or stay to arrive again. ``play`` checks each answer."""

    def __init__(self, seed: int) -> None:
        self.rng, self.repeat = random.Random(seed), 0.2
        self.waiting: list[Callable[[], None]] = []

    def send(self, request: Callable[..., None], *given: Any) -> None:
        if self.rng.random() >= 0.15:
            self.waiting.append(partial(request, *given))

    def deliver(self) -> None:
        at = self.rng.randrange(len(self.waiting))
        again = self.rng.random() < self.repeat
        request = self.waiting[at] if again else self.waiting.pop(at)
        request()
        validate(self.job)

    def play(self) -> None:
        """Until all is done, then every late message comes once more."""
        late = 0
        while not self.over():
            late += 1
            assert late < 20_000, "the run does not end"
            if not self.event(self.rng.random()) and self.waiting:
                self.deliver()
        self.repeat = 0.0
        while self.waiting:
            self.deliver()
        assert self.job.weights.stashed == 0


class ArrivalRun(Run):
    """Trainers that die and start again, until each has heard of ``steps`` steps."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.members, self.steps = self.rng.randint(1, 4), self.rng.randint(1, 4)
        self.bound = self.rng.choice([None, 0, 1, 2])
        self.spec = ParameterSpec("job", (self.members,), self.members, "arrival", SGD, "<f8", self.bound, lease_s=10.0)
        self.job, self.now = ArrivalJob(self.spec, np.zeros(self.members), 0.0), 0.0
        self.lives = [1] * self.members
        self.joins = [0] * self.members  # the last life that has joined
        self.knows: list[int | None] = [None] * self.members  # the step that the present life may go on with
        self.began = [-1] * self.members
        self.applied: set[tuple[int, int]] = set()
        self.done = [0] * self.members

    def over(self) -> bool:
        return min(self.done) >= self.steps

    def play(self) -> None:
        super().play()
        assert self.job.weights.version == len(self.applied)
        updates = np.bincount([member for member, _ in self.applied], minlength=self.members)
        assert np.array_equal(self.job.weights.of(self.job.weights.version), -updates)

    def event(self, chance: float) -> bool:
        member = self.rng.randrange(self.members)
        if chance < 0.02:
            self.now += self.rng.choice([1.0, 11.0])
        elif chance < 0.04:
            self.restart(member)
        elif chance < 0.5:
            life, step = self.lives[member], self.knows[member]
            request = self.joined if step is None else self.begun if self.began[member] < step else self.pushed
            self.send(self.told, request, member, life, step)
        return chance < 0.5

    def restart(self, member: int) -> None:
        self.lives[member] += 1
        self.knows[member], self.began[member] = None, -1

    def told(self, request: Callable[..., None], member: int, life: int, step: int | None) -> None:
        """A trainer that is told that its lease is over joins with a later life."""
        before = self.job.weights.version
        try:
            request(member, life, step)
        except UnknownClientError:
            assert self.job.weights.version == before
            if life == self.lives[member]:
                self.restart(member)

    def joined(self, member: int, life: int, _: None) -> None:
        step = self.job.join(member, life, self.now)
        assert life >= self.joins[member]
        self.joins[member] = life
        if life == self.lives[member] and self.knows[member] is None:
            self.knows[member] = step

    def begun(self, member: int, life: int, step: int) -> None:
        try:
            found = self.job.begin(member, life, step, self.now)
        except UnknownClientError:
            raise
        except ConfigError:  # late: this step is over
            assert (member, step) in self.applied
            return
        if found is not None and life == self.lives[member]:
            assert self.bound is None or self.job.spread <= self.bound
            self.began[member] = max(self.began[member], step)

    def pushed(self, member: int, life: int, step: int) -> None:
        before = self.job.weights.version
        found = self.job.push(member, life, step, np.eye(self.members)[member], self.now)
        assert found.applied == ((member, step) not in self.applied)
        assert self.job.weights.version == before + found.applied
        assert not found.applied or life == self.joins[member], "an earlier life changed the weights"
        self.applied.add((member, step))
        if life == self.lives[member] and self.knows[member] == step:
            self.knows[member] = step + 1
            self.done[member] += 1


class SummedRun(Run):
    """Intervals, each computed by several processes, until all have ended their epochs; ages of the values that they
    read."""

    def __init__(self, seed: int, step: VectorStep = SGD) -> None:
        super().__init__(seed)
        self.bound = self.rng.randint(0, 2)
        self.intervals, self.epochs = self.rng.randint(1, 4), self.rng.randint(1, 3)
        self.layers = tuple(self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 2)))
        self.spec = ParameterSpec("job", self.layers, self.intervals, "summed", step, "<f8", self.bound)
        self.start = np.arange(sum(self.layers), dtype=float)
        self.job = SummedJob(self.spec, self.start)
        self.epoch = [0] * self.intervals
        self.version: dict[tuple[int, int], int] = {}
        self.values = [-1] * self.intervals  # the epoch of the newest value of each interval; -1: from before the first
        self.ages: set[int] = set()
        self.heard: set[tuple[int, int, int]] = set()
        self.vectors: dict[int, np.ndarray] = {}

    def gradient(self, epoch: int, interval: int, layer: int) -> np.ndarray:
        """Sums of these depend on the order, so equal bits mean an equal order."""
        return np.array([_NUMBERS[(7 * epoch + 5 * interval + 3 * layer + n) % 64] for n in range(self.layers[layer])])

    def over(self) -> bool:
        return min(self.epoch) >= self.epochs

    def play(self) -> None:
        super().play()
        assert self.job.weights.version == self.epochs

    def event(self, chance: float) -> bool:
        interval = self.rng.randrange(self.intervals)
        epoch = self.epoch[interval]
        if chance < 0.55 and epoch < self.epochs:
            if (version := self.version.get((epoch, interval))) is None:
                self.send(self.begun, interval, epoch)
            else:
                left = [n for n in range(len(self.layers)) if (epoch, interval, n) not in self.heard]
                self.send(self.pushed, interval, epoch, self.rng.choice(left), version)
        return chance < 0.55

    def begun(self, interval: int, epoch: int) -> None:
        found = self.job.begin(interval, epoch)
        if found is None or found.values is None:
            return
        first = self.version.setdefault((epoch, interval), found.version)
        assert first == found.version, "forward and backward use different versions"
        assert np.array_equal(self.vectors.setdefault(found.version, found.values.copy()), found.values)
        assert epoch - self.bound <= found.version <= epoch
        if self.values[interval] < epoch:
            self.ages |= {epoch - value for other, value in enumerate(self.values) if other != interval}
            self.values[interval] = epoch

    def pushed(self, interval: int, epoch: int, layer: int, version: int) -> None:
        found = self.job.push(interval, epoch, layer, version, self.gradient(epoch, interval, layer))
        assert found.applied == ((epoch, interval, layer) not in self.heard)
        self.heard.add((epoch, interval, layer))
        if epoch == self.epoch[interval] and all((epoch, interval, n) in self.heard for n in range(len(self.layers))):
            self.epoch[interval] += 1

    def summed(self, epoch: int) -> np.ndarray:
        """Added up in the order of the intervals."""
        of_layers: list[Any] = [self.gradient(epoch, 0, layer) for layer in range(len(self.layers))]
        for interval in range(1, self.intervals):
            of_layers = [total + self.gradient(epoch, interval, layer) for layer, total in enumerate(of_layers)]
        return np.concatenate(of_layers)


def torch_run(step: VectorStep, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    values = torch.from_numpy(start.copy()).requires_grad_()
    made: Any = torch.optim.SGD if step.kind == "sgd" else torch.optim.Adam
    optimiser = made([values], lr=step.lr, weight_decay=step.weight_decay)
    for gradient in gradients:
        values.grad = torch.from_numpy(gradient.copy())
        optimiser.step()
    return values.detach().numpy()


def arrival_orders(orders: range) -> None:
    for seed in orders:
        ArrivalRun(seed).play()


def summed_orders(orders: range) -> None:
    ages: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for seed in orders:
        run = SummedRun(seed)
        run.play()
        ages[run.bound] |= run.ages
    assert 1 in ages[0]
    assert all(max(found) <= bound + 1 for bound, found in ages.items())


@pytest.mark.parametrize("orders", [arrival_orders, summed_orders])
def test_each_gradient_counts_once_in_any_order_of_events(orders: Any) -> None:
    orders(range(1_000))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_orders_of_events(part: int) -> None:
    arrival_orders(range(10_000 * part, 10_000 * part + 5_000))
    summed_orders(range(10_000 * part + 5_000, 10_000 * part + 10_000))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(4))
def test_sums_are_bit_equal_in_any_order_and_steps_are_those_of_torch(step: VectorStep, seed: int) -> None:
    run = SummedRun(seed, step)
    run.play()
    in_order = SummedJob(run.spec, run.start)
    for epoch in range(run.epochs):
        for interval in range(run.intervals):
            found = in_order.begin(interval, epoch)
            for layer in range(len(run.layers)):
                in_order.push(interval, epoch, layer, found.version, run.gradient(epoch, interval, layer))
    last = run.job.weights.of(run.epochs)
    assert last.tobytes() == in_order.weights.of(run.epochs).tobytes()
    expected = torch_run(step, run.start, [run.summed(epoch) for epoch in range(run.epochs)])
    np.testing.assert_allclose(last, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("<f8", 1e-12), ("<f4", 1e-5)])
def test_steps_on_arrival_are_those_of_torch(step: VectorStep, dtype: str, tolerance: float) -> None:
    spec = dataclasses.replace(ARRIVAL, optimiser=step, dtype=dtype, members=1)
    rng = np.random.default_rng(0)
    start = rng.normal(size=3).astype(dtype)
    gradients = [rng.normal(size=3).astype(dtype) for _ in range(30)]
    job = ArrivalJob(spec, start, 0.0)
    assert job.join(0, 1, 0.0) == 0
    for number, gradient in enumerate(gradients):
        job.begin(0, 1, number, 0.0)
        job.push(0, 1, number, gradient, 0.0)
    found = job.weights.of(30)
    assert found.dtype.str == dtype
    np.testing.assert_allclose(found, torch_run(step, start, gradients), rtol=tolerance, atol=tolerance)


def test_a_job_is_done_after_its_updates() -> None:
    job = ArrivalJob(dataclasses.replace(ARRIVAL, max_updates=1), ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.begin(0, 1, 0, 0.0)
    assert job.push(0, 1, 0, np.ones(3), 0.0) == (True, 1, True)
    found = job.begin(0, 1, 1, 0.0)
    assert (found.done, found.values) == (True, None)
    assert not job.push(0, 1, 1, np.ones(3), 0.0).applied
    assert job.weights.version == 1


@pytest.mark.parametrize(
    ("gradient", "error", "cause"),
    [
        (np.array([1.0, np.nan, 1.0]), NonFiniteError, "member|trainer 0"),
        (np.array([1.0, np.inf, 1.0]), NonFiniteError, "infinity or NaN"),
        (np.ones(2), ConfigError, r"<f8 \[2\] came from member 0, layer 0 takes <f8 \[3\]"),
        (np.ones((3, 1)), ConfigError, r"\[3, 1\]"),
        (np.ones(3, np.float32), ConfigError, r"<f4 \[3\]"),
        (np.full(3, 1e308), NonFiniteError, "weights after the step"),
    ],
)
def test_gradients_that_do_not_fit_change_nothing(gradient: np.ndarray, error: type[Exception], cause: str) -> None:
    spec = dataclasses.replace(ARRIVAL, optimiser=VectorStep("sgd", 10.0))
    job = ArrivalJob(spec, ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.begin(0, 1, 0, 0.0)
    with pytest.raises(error, match=cause):
        job.push(0, 1, 0, gradient, 0.0)
    assert job.push(0, 1, 0, np.ones(3), 0.0) == (True, 1, False)
    assert job.weights.of(1).tolist() == [-10.0] * 3


def test_gradients_of_intervals_that_do_not_fit_are_refused() -> None:
    job = SummedJob(SUMMED, ZEROS)
    with pytest.raises(ConfigError, match="epoch 0 has not begun"):
        job.push(0, 0, 0, 0, np.ones(2))
    job.begin(0, 0)
    for interval, epoch, layer, version, gradient, cause in (
        (2, 0, 0, 0, np.ones(2), "there is no interval 2 of 2"),
        (0, 0, 2, 0, np.ones(2), "there is no layer 2 of 2"),
        (0, 0, 0, 1, np.ones(2), "a gradient of version 1, not 0"),
        (0, 0, 1, 0, np.ones(2), r"layer 1 takes <f8 \[1\]"),
    ):
        with pytest.raises(ConfigError, match=cause):
            job.push(interval, epoch, layer, version, gradient)
    with pytest.raises(NonFiniteError):
        job.push(0, 0, 0, 0, np.array([0.0, np.nan]))
    with pytest.raises(ConfigError, match="epoch 1 cannot begin"):
        job.begin(0, 1)
    assert job.push(0, 0, 0, 0, np.full(2, 1.7e308)).applied
    job.push(0, 0, 1, 0, np.ones(1))
    job.begin(1, 0)
    job.push(1, 0, 1, 0, np.ones(1))
    with pytest.raises(NonFiniteError, match="epoch 0"):  # a sum overflows: the job ends with its cause
        job.push(1, 0, 0, 0, np.full(2, 1.7e308))
    with pytest.raises(NonFiniteError, match="epoch 0"):
        job.begin(0, 1)


def test_a_state_that_does_not_fit_is_refused() -> None:
    adam = dataclasses.replace(SUMMED, optimiser=VectorStep("adam", 0.1))
    for version, moments, error in (
        (-1, np.zeros(6), ConfigError),
        (1 << 62, np.zeros(6), ConfigError),
        (2, np.zeros(5), ConfigError),
        (2, np.zeros(6, np.float32), ConfigError),
        (2, np.full(6, np.inf), NonFiniteError),
    ):
        with pytest.raises(error):
            SummedJob(adam, ZEROS, version, moments)
    jobs = ParameterJobs(lambda: 1 << 20)
    with pytest.raises(ConfigError, match="begins anew"):
        jobs.create(ARRIVAL, ZEROS, 0.0, version=2)
    assert len(jobs) == 0
    with pytest.raises(ConfigError, match="optimiser keeps; at most"):
        dataclasses.replace(adam, layers=(3 << 20,)).check_state()


def test_jobs_share_a_quota_and_end_when_nobody_asks() -> None:
    jobs = ParameterJobs(lambda: ARRIVAL.nbytes)
    job = jobs.create(ARRIVAL, ZEROS, 0.0)
    assert jobs.create(ARRIVAL, ZEROS + 1, 1.0) is job, "the first weights count"
    with pytest.raises(ConfigError, match="exist, and were described otherwise"):
        jobs.create(dataclasses.replace(ARRIVAL, bound=2), ZEROS, 1.0)
    with pytest.raises(QuotaExceededError, match=f"{ARRIVAL.nbytes} of {ARRIVAL.nbytes} bytes are taken"):
        jobs.create(dataclasses.replace(ARRIVAL, name="other"), ZEROS, 1.0)
    assert jobs.expire(11.0) == ["job"], "a member's lease is over"
    assert len(jobs) == 1
    assert jobs.expire(42.0) == ["job"]
    with pytest.raises(UnknownNameError, match="job with weights 'job'"):
        jobs.get("job", 42.0)
    assert jobs.used_bytes == 0
    assert not jobs.delete("job")
    jobs = ParameterJobs(lambda: 1 << 40)
    for number in range(MAX_JOBS_WITH_WEIGHTS):
        jobs.create(dataclasses.replace(ARRIVAL, name=f"job{number}"), ZEROS, 0.0)
    with pytest.raises(QuotaExceededError, match="64 jobs"):
        jobs.create(ARRIVAL, ZEROS, 0.0)


def test_descriptions_survive_json_and_neither_other_text_nor_a_long_one_is_echoed() -> None:
    assert ParameterSpec.from_json(json.dumps(SUMMED.to_dict())) == SUMMED
    for text in ("", "nul", "[1,", "9" * 5000, "[" * 16_000, '{"a":' * 3000):
        with pytest.raises(ConfigError, match=r"^weights: the description is not JSON$"):
            ParameterSpec.from_json(text)
    with pytest.raises(
        ConfigError, match=r"^weights: the description has 17000 characters, at most 16384 are possible$"
    ):
        ParameterSpec.from_json("x" * 17_000)
    text = json.dumps({**SUMMED.to_dict(), "layers": [int("9" * 4000)] * 3})
    with pytest.raises(ConfigError) as caught:
        ParameterSpec.from_json(text)
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"layers": []}, "1 to 1024 layers"),
        ({"layers": [0]}, "at least one weight"),
        ({"layers": [1 << 30]}, "fit a message"),
        ({"members": 0}, "0 members"),
        ({"applies": "later"}, "'later'"),
        ({"bound": -1}, "bound -1"),
        ({"bound": None}, "need a bound"),
        ({"lease_s": 0}, "lease of 0 s"),
        ({"lease_s": 10**400}, "lease in seconds"),
        ({"lease_s": "soon"}, "'soon'"),
        ({"max_updates": -1}, "max_updates -1"),
        ({"dtype": "<i4"}, "'<i4'"),
        ({"name": "a b"}, "a b"),
        ({"colour": 1}, "unknown colour"),
        ({"optimiser": {"kind": "adagrad", "lr": 1.0}}, "'adagrad'"),
        ({"optimiser": {"kind": "adam"}}, "missing lr"),
        ({"optimiser": {"kind": "adam", "lr": 1.0, "betas": [1.0, 0.5]}}, "betas"),
        ({"optimiser": None}, "is not a description"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(change: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        ParameterSpec.from_dict({**SUMMED.to_dict(), **change})
