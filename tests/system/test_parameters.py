"""Weights of jobs on a real daemon: steps, long polls, leases, repeated messages and refusals."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import atta
from atta.client.parameters import JobState, JobWeights
from atta.errors import (
    ConfigError,
    DeadlineError,
    QuotaExceededError,
    RemoteError,
    UnknownClientError,
    UnknownNameError,
)
from atta.kvstore.parameters import ParameterSpec, VectorStep
from tests.system.conftest import SmallGraph
from tests.waiting import eventually

SPEC = ParameterSpec("job", (3, 2), 2, "arrival", VectorStep("sgd", 1.0), "<f8", 0, lease_s=30.0)
SUMMED = ParameterSpec("sums", (3, 2), 2, "summed", VectorStep("sgd", 1.0), "<f8", 0)
ZEROS, ONES = np.zeros(5), np.ones(5)


@pytest.fixture(scope="module")
def cluster(small_graph: SmallGraph) -> Iterator[atta.LocalCluster]:
    with atta.local(small_graph.dataset(1, "random"), threads=1, options=("--tables", "1MiB")) as found:
        yield found


@pytest.fixture
def job(cluster: atta.LocalCluster) -> Iterator[JobWeights]:
    """A job whose second member has left, so that the first one waits for nobody."""
    made = cluster.weights(SPEC)
    made.create(ZEROS)
    assert made.join(1, 1) == 0
    made.leave(1, 1)
    assert made.join(0, 1) == 0
    yield made
    made.drop()


def test_intervals_are_summed_and_their_version_is_pinned(cluster: atta.LocalCluster) -> None:
    sums = cluster.weights(SUMMED)
    sums.create(ZEROS)
    for interval in (1, 0):
        assert sums.begin(interval, 0, within_s=5).version == 0
        for layer, width in enumerate(SUMMED.layers):
            assert sums.push(interval, 0, np.full(width, 2.0 + layer), layer=layer).applied
            assert not sums.push(interval, 0, np.full(width, 2.0 + layer), layer=layer).applied
    found = sums.begin(1, 1, within_s=5)
    assert found.values is not None
    assert (found.version, found.values.tolist()) == (1, [-4.0, -4.0, -4.0, -6.0, -6.0])
    with pytest.raises(ConfigError, match="of version 0, not 1"):
        sums.push(1, 1, np.ones(3), layer=0, version=0)
    with pytest.raises(ConfigError, match="do not join"):
        sums.join(0, 1)
    assert sums.drop()
    assert not sums.drop()


def test_a_job_goes_on_from_what_another_one_was(cluster: atta.LocalCluster) -> None:
    adam = dataclasses.replace(SUMMED, name="first", optimiser=VectorStep("adam", 0.1))
    first, second, third = (
        cluster.weights(dataclasses.replace(adam, name=name)) for name in ("first", "second", "third")
    )
    first.create(ZEROS)
    for interval in (0, 1):
        first.begin(interval, 0, within_s=5)
        for layer, width in enumerate(adam.layers):
            assert first.push(interval, 0, np.full(width, 1.0 + interval), layer=layer, version=0).applied
    state = first.state()
    assert (state.version, len(state.moments)) == (1, 10)
    assert second.create(ZEROS, state) == 1
    with pytest.raises(ConfigError, match="epoch 2 cannot begin; next is 1"):
        second.begin(0, 2, within_s=5)
    again = second.state()
    assert again.values.tobytes() == state.values.tobytes()
    assert again.moments.tobytes() == state.moments.tobytes()
    with pytest.raises(ConfigError, match=r"takes <f8 \[10\]"):
        third.create(ZEROS, JobState(2, ZEROS, np.zeros(9)))
    first.drop(), second.drop()


def test_a_silent_trainer_holds_others_until_its_lease_is_over(cluster: atta.LocalCluster) -> None:
    job = cluster.weights(dataclasses.replace(SPEC, name="leases", lease_s=0.5))
    job.create(ZEROS)
    for member in (0, 1):
        job.join(member, 1)
        job.begin(member, 0, life=1, within_s=5)
    job.push(0, 0, ONES, life=1)
    with pytest.raises(DeadlineError, match="step 1 of member 0"):
        job.begin(0, 1, life=1, within_s=0.1)
    assert job.begin(0, 1, life=1, within_s=20).version == 1
    with pytest.raises(UnknownClientError, match="its lease is over"):
        job.push(1, 0, ONES, life=1)
    assert job.join(1, 2) == 1
    assert eventually(lambda: cluster.stats()[0]["weights"] == 0), "a job of which nobody speaks is dropped"
    with pytest.raises(UnknownNameError, match="part 0"):
        job.pull()


def test_bad_requests_are_refused_and_the_job_goes_on(job: JobWeights, cluster: atta.LocalCluster) -> None:
    job.begin(0, 0, life=1, within_s=5)
    for values, error, cause in (
        (np.array([1.0, np.nan, 1.0, 1.0, 1.0]), RemoteError, "infinity or NaN"),
        (np.ones(4), ConfigError, r"layer 0 takes <f8 \[5\]"),
        (np.ones(5, np.float32), ConfigError, "<f4"),
        (np.ones((5, 1)), ConfigError, r"\[5, 1\]"),
    ):
        with pytest.raises(error, match=cause):
            job.push(0, 0, values, life=1)
    with pytest.raises(ConfigError, match="step 7 has not begun"):
        job.push(0, 7, ONES, life=1)
    with pytest.raises(ConfigError, match="no member 2 of 2"):
        job.join(2, 1)
    large = dataclasses.replace(SPEC, name="large", layers=(100_000,))
    with pytest.raises(QuotaExceededError, match="start the daemons with more --tables"):
        cluster.weights(large).create(np.zeros(100_000))
    other = cluster.weights(dataclasses.replace(SPEC, bound=3))
    with pytest.raises(ConfigError, match="were described otherwise"):
        other.create(ZEROS)
    assert job.push(0, 0, ONES, life=1).applied


def test_readers_never_see_half_an_update(job: JobWeights) -> None:
    seen: list[np.ndarray] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            values = job.pull().values
            assert values is not None
            seen.append(values)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(100):
        job.begin(0, step, life=1, within_s=5)
        job.push(0, step, ONES, life=1)
    over.set()
    for reader in readers:
        reader.join(timeout=20)
    assert len(seen) > 1
    assert all((values == values[0]).all() for values in seen)
    with pytest.raises(ConfigError, match="version 1 of the weights is not kept"):
        job.pull(1)
