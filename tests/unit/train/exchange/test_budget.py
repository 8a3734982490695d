"""The choices of a budget, against epochs that are played through; bounds that no figure passes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.train.exchange.budget import (
    LEVELS,
    WAYS,
    Budget,
    BudgetPolicy,
    Cell,
    Choices,
    RowErrors,
    cheapest,
    explained,
    falls_behind,
    next_choices,
    row_gap,
)
from atta.train.exchange.budgeted import BudgetTrainer, layer_of
from atta.train.exchange.policies import LATEST, NEVER
from tests.unit.train.test_config import config

CELLS: tuple[Cell, ...] = tuple((layer, way, owner) for layer in (1, 2) for way in WAYS for owner in (0, 1))
NAMES = [level.name for level in LEVELS]
parts = st.just(0.0) | st.floats(1e-3, 2)


@st.composite
def figures(draw: st.DrawFn) -> dict[Cell, RowErrors]:
    gaps = {cell: draw(parts) for cell in CELLS}
    return {c: RowErrors(gap, gap * draw(st.sampled_from([0.0, 0.01, 1.0])), 1.0, draw(st.integers(1, 8)))
            for c, gap in gaps.items()}  # fmt: skip


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    norms, drift = ({cell: draw(drawn) for cell in CELLS} for drawn in (st.floats(0.5, 2), parts))
    return Choices(
        norms, drift, draw(st.sampled_from([{}, {"forward": 0.3, "backward": 3.0}])), measured=draw(st.integers(0, 4))
    )


gradients = st.none() | st.floats(0, 3)


def places(now: Choices, budget: Budget) -> dict[Cell, int]:
    return {cell: LEVELS.index(now.level(cell, budget)) for cell in CELLS}


@given(choices(), figures(), gradients)
def test_without_a_budget_all_is_exact(now: Choices, seen: dict[Cell, RowErrors], gradient: float | None) -> None:
    assert {*places(next_choices(now, Budget(0, 100), seen, gradient), Budget(0, 100)).values()} == {0}


@given(choices(), figures(), gradients, st.floats(0.01, 5))
def test_the_error_of_a_level_fits(
    now: Choices, seen: dict[Cell, RowErrors], gradient: float | None, points: float
) -> None:
    budget = Budget(points, 100)
    found = next_choices(now, budget, seen, gradient)
    for cell in CELLS:
        level, bound = found.level(cell, budget), found.bound(budget, cell[1])
        # What is chosen is never further than the bound, if rows go on to change as they do.
        assert level.every == 1 or (bound and found.drift[cell] * (level.every - 1) <= bound)
    for way in WAYS:
        error = row_gap({cell: one for cell, one in seen.items() if cell[1] == way}, found.norms)
        if gradient is not None and gradient > budget.allowed(found.gain) and error > 1e-6:  # then rows must be nearer
            assert (found.bound(budget, way) or 0) < error
    assert found == next_choices(now, budget, dict(reversed(seen.items())), gradient)  # whatever the order


@given(choices(), figures(), st.floats(0, 3), st.floats(1, 3), st.floats(0.01, 5))
def test_larger_errors_never_loosen(
    now: Choices, seen: dict[Cell, RowErrors], gradient: float, factor: float, points: float
) -> None:
    budget = Budget(points, 100)
    better = places(next_choices(now, budget, seen, gradient), budget)
    further = {cell: one._replace(gap=factor * one.gap) for cell, one in seen.items()}
    quiet = places(next_choices(now, budget, seen), budget)
    assert all(places(next_choices(now, budget, further), budget)[cell] <= quiet[cell] for cell in CELLS)
    for worse in (
        places(next_choices(now, budget, seen, factor * gradient), budget),
        places(next_choices(now, budget, seen, gradient, [80.0, 90.0, 99.0, 80.0, 80.0]), budget),
        places(next_choices(now, Budget(points / factor, 100), seen, gradient), Budget(points / factor, 100)),
    ):
        assert all(worse[cell] <= better[cell] for cell in CELLS)


def played(
    drift: Mapping[str, float], sensitivity: float, points: float = 0.5, epochs: int = 100
) -> tuple[list[dict[Cell, int]], dict[Cell, list[int]], list[int]]:
    """Rows that change by ``drift`` of their norm in every epoch, and gradients that are wrong by ``sensitivity`` times
    the error of rows: places of levels after all epochs, when each cell was sent, and when it was measured."""
    policy, versions = BudgetPolicy(points, epochs), dict.fromkeys(CELLS, NEVER)
    every, sent, measured = [], {cell: list[int]() for cell in CELLS}, []
    for epoch in range(1, epochs + 1):
        seen = {}
        for cell in CELLS:
            held, sends = versions[cell], policy.sends(cell, epoch, versions[cell])
            gap = drift[cell[1]] * (epoch - held)
            if held != NEVER:
                seen[cell] = RowErrors(gap, gap / 128 if sends else gap, 1.0, epoch - held)
            if sends:
                versions[cell] = epoch
                sent[cell].append(epoch)
        gradient = None
        if policy.measures(epoch):
            measured.append(epoch)
            gradient = sensitivity * row_gap(seen, dict.fromkeys(CELLS, 1.0))
        policy.choices = next_choices(policy.choices, policy.plan, seen, gradient)
        every.append(places(policy.choices, policy.plan))
    return every, sent, measured


@settings(max_examples=30, deadline=None)
@given(parts, parts, st.floats(0.1, 5), st.sampled_from([0.0, 0.1, 0.5, 2.0]), st.sampled_from([10, 40, 120]))
def test_ages_are_bounded_and_measurements_are_few_and_see_fresh_rows(
    forward: float, backward: float, sensitivity: float, points: float, epochs: int
) -> None:
    _, sent, measured = played({"forward": forward, "backward": backward}, sensitivity, points, epochs)
    assert len(measured) <= epochs / 25
    for at in sent.values():
        assert at[0] == 1
        assert {*measured} <= {*at}
        assert max((b - a for a, b in itertools.pairwise(at)), default=1) <= LEVELS[-1].every
        assert (points and measured) or at == [*range(1, epochs + 1)]  # too few to measure: only fewer bytes per number


def test_a_quiet_run_becomes_cheap_and_a_restless_one_stays_with_fewer_bytes_per_number() -> None:
    quiet, sent, measured = played({"forward": 0.001, "backward": 0.001}, sensitivity=1.0, epochs=120)
    assert {*quiet[0].values()} == {NAMES.index("int8")}
    assert [*map(set, map(dict.values, quiet[3:5]))] == [{NAMES.index("int8")}, {len(LEVELS) - 1}]
    assert measured == [*Budget(0.5, 120).measurements]
    assert len(sent[CELLS[0]]) <= 120 / LEVELS[-1].every + len(measured) + 5
    restless, sent, _ = played({"forward": 0.3, "backward": 0.3}, sensitivity=1.0, epochs=120)
    assert {*restless[-1].values()} == {NAMES.index("int8")}
    assert [len(sent[cell]) for cell in CELLS] == [120] * len(CELLS)
    mixed, _, _ = played({"forward": 0.001, "backward": 0.3}, sensitivity=1.0, epochs=120)
    assert {*mixed[-1].values()} == {NAMES.index("int8")}  # rows may be the cause, although they are quiet


def test_a_measured_error_tightens_at_once_and_validation_tightens_all() -> None:
    ones, drift = dict.fromkeys(CELLS, 1.0), dict.fromkeys(CELLS, 0.01)
    now, budget = Choices(ones, drift, {"forward": 0.1, "backward": 0.1}, measured=2), Budget(0.5, 100)
    seen = {cell: RowErrors(0.07, 0.07, 1.0, 7) for cell in CELLS}
    assert {*places(now, budget).values()} == {len(LEVELS) - 1}
    assert {*places(next_choices(now, budget, seen, 0.1 * budget.allowed()), budget).values()} == {len(LEVELS) - 1}
    over = next_choices(now, budget, seen, 2 * budget.allowed())
    # So distances become half, if one direction is the cause, and less, as the other one may add to it.
    assert over.bound(budget, "forward") == over.bound(budget, "backward") == pytest.approx(0.07 / 2 / 2**0.5)
    assert {NAMES[place] for place in places(over, budget).values()} == {"int8/3"}
    less = next_choices(over, budget, seen, 0.0).sensitivity["forward"]
    assert less == pytest.approx((over.sensitivity["forward"] * 0.05) ** 0.5)  # half of the way to the least one
    behind = next_choices(now, budget, seen, None, [90.0, 91.0, 90.4, 90.3])
    assert (behind.sensitivity, behind.judged) == ({"forward": 0.2, "backward": 0.2}, 4)
    again = next_choices(behind, budget, seen, None, [90.0, 91.0, 90.4, 90.3])
    assert again.sensitivity == behind.sensitivity  # an evaluation counts once
    assert [falls_behind(v, 0.5) for v in ([], [9.0], [9, 8], [9, 8, 8], [9, 8, 8.6], [9, 9, 8])] == [
        False, False, False, True, False, False,
    ]  # fmt: skip


def test_more_is_allowed_while_validation_gains_less() -> None:
    budget = Budget(0.5, 100)
    assert [budget.allowed(gain) for gain in (9.0, 2.0, 1.0, 0.0)] == [0.1, 0.125, 0.25, 0.5]
    assert Budget(0, 100).allowed(0.0) == 0
    gains = [
        next_choices(Choices(), budget, {}, None, values).gain for values in ([], [80], [80, 85], [80, 85, 84, 86])
    ]
    assert gains == [float("inf"), float("inf"), 5, 1]


def test_small_rows_late_in_a_run_may_change_more() -> None:
    """Gradients fade: what is large beside them is small beside those that moved the weights."""
    now = Choices(dict.fromkeys(CELLS, 1.0))
    found = next_choices(now, Budget(0.5, 100), {cell: RowErrors(0.02, 0.0, 0.1, 1) for cell in CELLS})
    assert {*found.norms.values()} == {0.98}
    assert [*found.drift.values()] == pytest.approx([0.02 / 0.98] * len(CELLS))


def test_the_cheapest_level_for_a_change_of_rows() -> None:
    assert [NAMES[cheapest(drift, 0.1)] for drift in (0.0, 0.005, 0.01, 0.03, 0.09, 0.5, 20.0, 1e9)] == [
        "int8/16", "int8/16", "int8/8", "int8/4", "int8/2", "int8", "exact", "exact",
    ]  # fmt: skip
    policy = BudgetPolicy(0.5, 100)
    assert policy.reads(3, "backward") == LATEST
    assert policy.history("forward") == policy.history("backward") == 0


def test_what_a_run_will_do_is_said_before_it() -> None:
    own = config(strategy="exchange", trainers=2, trainers_per_server=1, budget=0.5, epochs=100).own
    said = "\n".join(explained(own))
    assert "0.5 points" in said
    assert f"in epochs {', '.join(str(epoch - 1) for epoch in Budget(0.5, 100).measurements)}; before" in said
    assert "--accuracy-loss 0" in explained(dataclasses.replace(own, budget=0.0))[0]  # type: ignore[type-var]


def test_gradients_are_compared_by_layer() -> None:
    model = torch.nn.ModuleDict({"convs": torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)])})
    draws = np.random.default_rng(3)
    exact = [draws.standard_normal(p.shape).astype(np.float32) for p in model.parameters()]
    cheap = [g + 0.1 * draws.standard_normal(g.shape).astype(np.float32) for g in exact]
    for parameter, gradient in zip(model.parameters(), exact, strict=True):
        parameter.grad = torch.from_numpy(gradient)
    trainer: Any = SimpleNamespace(model=model, _max=float, optimizer=torch.optim.Adam(model.parameters(), 0.0))
    found = BudgetTrainer._compared(trainer, map(torch.from_numpy, cheap))
    for name, own in (("convs.0", slice(0, 2)), ("convs.1", slice(2, 4))):
        a, b = (np.concatenate([g.ravel() for g in gradients[own]]).astype(np.float64) for gradients in (exact, cheap))
        wanted = [a @ b / np.linalg.norm(a) / np.linalg.norm(b), np.linalg.norm(a - b) / np.linalg.norm(a)]
        assert found[name] == pytest.approx(wanted, rel=1e-6)
    assert [*map(layer_of, ("convs.10.lin.weight", "lin.weight", "layers.2.conv.mlp.0.bias"))] == [
        "convs.10", "lin", "layers.2",
    ]  # fmt: skip
