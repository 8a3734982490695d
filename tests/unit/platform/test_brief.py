"""Which tasks the event loop runs itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from atta.samplers.dag.instance import Kind, Lane, Task
from atta.scheduler.fine import brief_us, is_brief


def task(kind: Kind, cost: float = 0.0) -> Task:
    return Task(kind, "op", 0, 0, 1, Lane.CPU, cost)


@pytest.mark.parametrize("kind", [Kind.NEIGHBORHOOD, Kind.JOIN, Kind.FEATURE])
def test_cheaper_tasks_are_brief_if_dearer_ones_are(kind: Kind) -> None:
    found = [is_brief(task(kind, 10.0**power), 30.0, seeds=1, vertices=1) for power in range(9)]
    assert found[0]
    assert not found[-1]
    assert all(cheap >= dear for cheap, dear in pairwise(found))


def test_a_single_worker_leaves_more_to_the_event_loop() -> None:
    assert brief_us(1) > brief_us(2) == brief_us(8)


def test_seeds_and_the_end_go_by_the_size_of_the_batch() -> None:
    seed, end = task(Kind.SEED), task(Kind.END)
    assert is_brief(seed, 200.0, seeds=1024, vertices=0)
    assert not is_brief(seed, 30.0, seeds=1024, vertices=0)
    assert is_brief(end, 30.0, seeds=1024, vertices=16_384)
    assert not is_brief(end, 30.0, seeds=1024, vertices=16_385)


def test_walks_of_an_operator_are_never_brief() -> None:
    assert not is_brief(task(Kind.BATCH), 200.0, seeds=1, vertices=1)
