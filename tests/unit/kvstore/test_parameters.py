"""Weights of jobs: each update once, in whatever order messages come; checked against torch.optim."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from atta.errors import ConfigError, NonFiniteError, QuotaExceededError, UnknownClientError, UnknownNameError
from atta.kvstore.parameter_jobs import MAX_JOBS_WITH_WEIGHTS, ArrivalJob, ParameterJobs, SummedJob
from atta.kvstore.parameters import ParameterSpec, VectorStep
from tests.unit.invariants import validate
from tests.unit.kvstore.parameters_runs import ArrivalRun, SummedRun

STEPS = [VectorStep("sgd", 0.1), VectorStep("sgd", 0.1, 0.01), VectorStep("adam", 0.1), VectorStep("adam", 0.1, 0.01)]
ARRIVAL = ParameterSpec("job", (2, 1), 2, "arrival", VectorStep("sgd", 1.0), "<f8", 1, lease_s=10.0)
SUMMED = ParameterSpec("job", (2, 1), 2, "summed", VectorStep("sgd", 1.0), "<f8", 1, lease_s=10.0)
ZEROS = np.zeros(3)


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


def test_each_gradient_of_a_trainer_is_one_update_in_any_order_of_events() -> None:
    arrival_orders(range(1_000))


def test_each_gradient_of_an_interval_is_summed_once_in_any_order_of_events() -> None:
    summed_orders(range(1_000))


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
            assert found is not None
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


def test_a_bound_holds_the_fast_trainer_until_the_lease_of_the_slow_one_is_over() -> None:
    job = ArrivalJob(ARRIVAL, ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.join(1, 1, 0.0)
    for step in range(2):
        assert job.begin(0, 1, step, 1.0) is not None
        job.push(0, 1, step, np.ones(3), 1.0)
    assert job.begin(0, 1, 2, 9.0) is None
    assert job.begin(0, 1, 2, 10.5) is not None
    with pytest.raises(UnknownClientError, match="lease is over"):
        job.begin(1, 1, 0, 10.5)
    job.push(0, 1, 2, np.ones(3), 10.5)
    assert job.join(1, 2, 11.0) == 3, "it comes back beside the others and does not hold them"


def test_a_gradient_of_a_former_life_changes_nothing() -> None:
    job = ArrivalJob(ARRIVAL, ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.begin(0, 1, 0, 0.0)
    assert job.join(0, 2, 0.0) == 0
    with pytest.raises(UnknownClientError, match="later life"):
        job.push(0, 1, 0, np.ones(3), 0.0)
    with pytest.raises(UnknownClientError, match="later life"):
        job.join(0, 1, 0.0)
    job.begin(0, 2, 0, 0.0)
    assert job.push(0, 2, 0, np.ones(3), 0.0).applied
    assert not job.push(0, 2, 0, np.ones(3), 0.0).applied
    assert job.weights.of(1).tolist() == [-1.0, -1.0, -1.0]


def test_a_member_that_left_holds_nobody() -> None:
    job = ArrivalJob(ARRIVAL, ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.leave(1, 0, 0.0)
    for step in range(4):
        assert job.begin(0, 1, step, 0.0) is not None
        job.push(0, 1, step, np.ones(3), 0.0)


def test_a_job_is_done_after_its_updates() -> None:
    job = ArrivalJob(dataclasses.replace(ARRIVAL, max_updates=1), ZEROS, 0.0)
    job.join(0, 1, 0.0)
    job.begin(0, 1, 0, 0.0)
    assert job.push(0, 1, 0, np.ones(3), 0.0) == (True, 1, True)
    found = job.begin(0, 1, 1, 0.0)
    assert found is not None
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
def test_gradients_that_do_not_fit_are_refused_and_change_nothing(
    gradient: np.ndarray, error: type[Exception], cause: str
) -> None:
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
    assert job.push(0, 0, 0, 0, np.ones(2)).applied


@pytest.mark.parametrize("step", STEPS)
def test_a_job_goes_on_from_its_state(step: VectorStep) -> None:
    spec = dataclasses.replace(SUMMED, optimiser=step, layers=(3,), members=1)
    gradients = [np.array([1.0, -2.0, 0.5]) * (n + 1) for n in range(6)]

    def steps(job: SummedJob, epochs: range) -> SummedJob:
        for epoch in epochs:
            started = job.begin(0, epoch)
            assert started is not None
            assert started.version == epoch
            job.push(0, epoch, 0, epoch, gradients[epoch])
            validate(job)
        return job

    half = steps(SummedJob(spec, ZEROS), range(3)).weights
    whole = steps(SummedJob(spec, half.of(3), 3, half.moments), range(3, 6)).weights
    assert whole.version == 6
    np.testing.assert_allclose(whole.of(6), torch_run(step, ZEROS, gradients), rtol=1e-12)
    assert len(whole.moments) == 3 * step.moments


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


def test_a_sum_that_overflows_ends_the_job_with_its_cause() -> None:
    job = SummedJob(dataclasses.replace(SUMMED, layers=(1,)), np.zeros(1))
    for interval in range(2):
        job.begin(interval, 0)
    job.push(0, 0, 0, 0, np.full(1, 1.7e308))
    with pytest.raises(NonFiniteError, match="epoch 0"):
        job.push(1, 0, 0, 0, np.full(1, 1.7e308))
    with pytest.raises(NonFiniteError, match="epoch 0"):
        job.begin(0, 1)


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


def test_there_are_at_most_so_many_jobs() -> None:
    jobs = ParameterJobs(lambda: 1 << 40)
    for number in range(MAX_JOBS_WITH_WEIGHTS):
        jobs.create(dataclasses.replace(ARRIVAL, name=f"job{number}"), ZEROS, 0.0)
    with pytest.raises(QuotaExceededError, match="64 jobs"):
        jobs.create(ARRIVAL, ZEROS, 0.0)


def test_a_description_survives_json() -> None:
    assert ParameterSpec.from_json(json.dumps(SUMMED.to_dict())) == SUMMED


@pytest.mark.parametrize("text", ["", "nul", "[1,", "9" * 5000, "[" * 16_000, '{"a":' * 3000])
def test_a_description_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^weights: the description is not JSON$"):
        ParameterSpec.from_json(text)


def test_a_long_description_is_not_echoed() -> None:
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
