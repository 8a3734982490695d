"""Rows that readers hold: random histories against a dictionary of all that was ever sent."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, NonFiniteError, StaleRowError
from atta.train.exchange.messages import HeldRows, check_finite
from atta.train.exchange.policies import Rule

COUNTS = [2, 0, 3, 1]
OWNERS = [owner for owner, count in enumerate(COUNTS) if count]


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(0, 3)), max_size=25),
    st.integers(0, 20),
    st.integers(0, 20),
    st.booleans(),
)
def test_a_reader_gets_the_newest_rows_that_it_may_use(
    history: int, puts: list[tuple[int, int]], oldest: int, span: int, saved: bool
) -> None:
    held, rule = HeldRows(COUNTS, history), Rule(oldest, oldest + span)
    known: dict[int, dict[int, torch.Tensor]] = {owner: {} for owner in OWNERS}
    version = 0
    for number, (owner, later) in enumerate(puts):
        version += later + (version in known[owner])
        known[owner][version] = torch.full((COUNTS[owner], 2), float(number))
        held.put(owner, known[owner][version], version)
    if saved:
        fresh = HeldRows(COUNTS, history)
        fresh.load_state(held.state())
        held = fresh
    kept = {owner: dict(list(rows.items())[-history - 1 :]) for owner, rows in known.items()}
    assert held.nbytes == sum(rows.nbytes for of_owner in kept.values() for rows in of_owner.values())
    wanted = {o: max((v for v in rows if oldest <= v <= oldest + span), default=None) for o, rows in kept.items()}
    if None in wanted.values():
        first = next(owner for owner, found in wanted.items() if found is None)
        with pytest.raises(StaleRowError, match=f"layer 2, backward: rows of trainer {first} have versions"):
            held.newest(rule, (2, "backward"))
        return
    values, versions = held.newest(rule, (2, "backward"))
    assert versions.tolist() == [wanted[owner] for owner in OWNERS for _ in range(COUNTS[owner])]
    assert torch.equal(values, torch.cat([kept[owner][found] for owner, found in wanted.items() if found is not None]))


def test_rows_of_other_trainers_are_not_taken_up() -> None:
    held = HeldRows(COUNTS, 1)
    held.put(2, torch.ones(3, 2), 4)
    held.put(2, torch.ones(3, 2), 5)
    held.put(0, torch.ones(2, 2), 6)
    with pytest.raises(StaleRowError, match="trainer 2 have versions 4, 5; the reader may use 6 to 6"):
        held.newest(Rule(6, 6), (1, "forward"))
    for counts in ([2, 0, 3], [2, 0, 4, 1]):
        with pytest.raises(ConfigError, match="saved rows"):
            HeldRows(counts, 1).load_state(held.state())


@given(
    st.lists(st.floats(width=32) | st.sampled_from([math.inf, -math.inf, math.nan, 3e38, -3e38]), max_size=20),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_numbers_are_finite_if_each_is(numbers: list[float], dtype: torch.dtype) -> None:
    """Sums of large numbers may be infinite, and infinities may cancel out."""
    values = torch.tensor([*numbers, 3e38, 3e38], dtype=torch.float32).to(dtype)
    if all(math.isfinite(value) for value in values.tolist()):
        check_finite(values, 2, 1, (1, "forward"))
        return
    with pytest.raises(NonFiniteError, match=r"trainer 2, epoch 1, layer 1: rows have an infinity or NaN") as error:
        check_finite(values, 2, 1, (1, "forward"))
    assert (error.value.trainer, error.value.epoch, error.value.layer) == (2, 1, 1)
    with pytest.raises(NonFiniteError, match="gradients of rows"):
        check_finite(values, 2, 1, (1, "backward"))
