"""What a process of an inference does next: everything once, nothing too early, nothing that nobody reads."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client.inference.block import DegreeRule, LayerBlock, in_degrees, one_prepared
from atta.client.inference.task import InferencePlan, InferenceStep, block_size, share_count
from atta.errors import ConfigError


@given(st.integers(1, 40), st.integers(1, 12))
def test_shares_are_divided_evenly_and_without_gaps(shares: int, world: int) -> None:
    mine = [list(InferencePlan(1, shares, rank, world).mine) for rank in range(world)]
    assert list(chain(*mine)) == list(range(shares))
    assert max(map(len, mine)) - min(map(len, mine)) <= 1


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_order_of_processes_does_each_share_once_after_the_stage_before(stages, shares, world, random) -> None:
    plans = [InferencePlan(stages, shares, rank, world) for rank in range(world)]
    done, runs = np.zeros((stages, shares), bool), []
    at_work: dict[int, InferenceStep] = {}
    while True:
        rank = random.randrange(world)
        if rank in at_work:
            step = at_work.pop(rank)
            assert not done[step.stage, step.share]
            done[step.stage, step.share] = True
            continue
        step = plans[rank].next(done)
        if step and step.share is not None:
            assert step.stage == 0 or done[step.stage - 1].all()
            runs.append(step)
            at_work[rank] = step
        if done.all():
            break
        # Somebody can always go on, so nobody waits for ever.
        steps = [plan.next(done) for plan in plans]
        assert at_work or any(step and step.share is not None for step in steps)
    assert len(runs) == len(set(runs)) == stages * shares
    assert all(plan.next(done) is None for plan in plans)


def test_a_process_whose_files_are_finished_still_computes_what_others_read() -> None:
    plan = InferencePlan(2, 2, rank=0, world=2)
    done = np.array([[False, False], [True, False]])
    assert plan.next(done) == InferenceStep(0, 0)
    done[0, 0] = True
    assert plan.next(done) is None
    assert InferencePlan(2, 2, rank=1, world=2).next(np.array([[True, False], [True, False]])) == InferenceStep(0, 1)
    assert InferencePlan(2, 2, rank=1, world=2).next(np.array([[False, True], [True, False]])) == InferenceStep(0, None)


def test_nothing_is_computed_when_all_files_are_finished() -> None:
    assert InferencePlan(3, 2).next(np.array([[False, False], [False, False], [True, True]])) is None


@pytest.mark.parametrize(
    ("arguments", "words"), [((0, 1), "layer"), ((1, 0), "files"), ((1, 1, 1, 1), "rank"), ((1, 1 << 17), "files")]
)
def test_plans_that_make_no_sense_are_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        InferencePlan(*arguments)
    with pytest.raises(ConfigError, match="shape"):
        InferencePlan(2, 2).next(np.zeros((1, 2), bool))


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_process_and_partition_has_a_share(processes: int, parts: int) -> None:
    shares = share_count(processes, parts)
    assert shares % processes == 0
    assert parts <= shares < parts + processes


@given(st.integers(1, 10**9), st.integers(0, 10**11), st.integers(1, 4096), st.booleans())
def test_blocks_have_bounded_memory(vertices: int, edges: int, width: int, queued: bool) -> None:
    by_edge = block_size(vertices, edges, width, row_per_edge=True, queued=queued)
    summed = block_size(vertices, edges, width, row_per_edge=False, queued=queued)
    degree = edges / vertices
    assert 1 <= by_edge <= 1 << 15
    assert 1 <= summed <= 1 << 15
    assert by_edge == 1 or by_edge * degree * width * 4 <= 64 << 20
    assert summed == 1 or summed * degree <= 1 << 20
    assert summed == 1 or min(vertices, summed * (1 + degree)) * width * 4 <= (64 if queued else 128) << 20


def test_a_graph_that_fits_is_read_in_large_blocks() -> None:
    assert block_size(60_000, 3_000_000, 256, row_per_edge=False, queued=False) == (1 << 20) // 51
    assert block_size(245_000, 12_000_000, 256, row_per_edge=False, queued=False) == (1 << 17) // 50


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (DegreeRule(), [3, 2, 1, 1]),
        (DegreeRule(None), [3, 1, 1, 0]),
        (DegreeRule(2.0, "w"), [2.25 + 0.5, 3 + 2, 4, 2]),
        (DegreeRule(None, "w"), [2.75, 3, 4, 0]),
    ],
)
def test_in_degrees_have_one_self_loop_or_those_of_the_graph(rule: DegreeRule, wanted: list[float]) -> None:
    edges, weights = np.array([[0, 1, 1, 2, 2], [0, 0, 0, 1, 2]]), np.array([0.5, 2, 0.25, 3, 4], np.float32)
    block = LayerBlock(np.zeros((4, 1), np.float32), edges, 4, {}, {"w": weights})
    assert in_degrees(block, rule).tolist() == wanted


def test_the_next_item_is_prepared_while_one_is_in_use() -> None:
    made = []
    prepared = one_prepared(range(4), lambda n: made.append(n) or n * n)
    assert next(prepared) == 0
    assert list(prepared) == [1, 4, 9]
    assert made == [0, 1, 2, 3]

    def fail(number: int) -> int:
        if number == 1:
            raise ConfigError("no")
        return number

    failing = one_prepared(range(4), fail)
    assert next(failing) == 0
    with pytest.raises(ConfigError):
        next(failing)
