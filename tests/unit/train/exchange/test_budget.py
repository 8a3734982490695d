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
    row_error,
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
    found = {}
    for cell, gap in gaps.items():
        found[cell] = RowErrors(gap, gap * draw(st.sampled_from([0.0, 0.01, 1.0])), draw(st.integers(1, 8)))
    return found


@st.composite
def choices(draw: st.DrawFn) -> Choices:
    return Choices(
        {cell: draw(st.integers(0, len(LEVELS) - 1)) for cell in CELLS},
        {cell: draw(st.integers(0, 4)) for cell in CELLS},
        {cell: draw(parts) for cell in CELLS},
        draw(st.sampled_from([{}, {"forward": 0.3}, {"forward": 3.0, "backward": 0.1}])),
        draw(st.integers(0, 4)),
    )


gradients = st.none() | st.floats(0, 3)


@given(choices(), figures(), gradients)
def test_without_a_budget_all_is_exact(now: Choices, seen: dict[Cell, RowErrors], gradient: float | None) -> None:
    assert next_choices(now, Budget(0, 100), seen, gradient).levels == {}


@given(choices(), figures(), gradients, st.floats(0.01, 5))
def test_a_level_rises_by_one_and_its_error_fits(
    now: Choices, seen: dict[Cell, RowErrors], gradient: float | None, points: float
) -> None:
    budget = Budget(points, 100)
    found = next_choices(now, budget, seen, gradient)
    for cell in CELLS:
        before, after = now.levels[cell], found.levels[cell]
        assert after <= before + 1
        level = LEVELS[after]
        # What is chosen is never further than the bound, if rows go on to change as they do.
        assert after == 0 or found.drift[cell] * (level.every - 1) <= found.bound(budget, cell[1])
        assert after <= max(2, before) or cell[1] in found.sensitivity
    way = WAYS[now.measured % 2]
    error = row_error({cell: one for cell, one in seen.items() if cell[1] == way})
    if gradient is not None and gradient > budget.allowed and error > 1e-6:  # then rows must be nearer than these
        assert found.bound(budget, way) < error
    assert found == next_choices(now, budget, dict(reversed(seen.items())), gradient)  # whatever the order


@given(choices(), figures(), st.floats(0, 3), st.floats(1, 3), st.floats(0.01, 5))
def test_larger_errors_never_loosen(
    now: Choices, seen: dict[Cell, RowErrors], gradient: float, factor: float, points: float
) -> None:
    budget = Budget(points, 100)
    better = next_choices(now, budget, seen, gradient)
    further = {cell: one._replace(gap=factor * one.gap) for cell, one in seen.items()}
    for worse in (
        next_choices(now, budget, further, gradient),
        next_choices(now, budget, seen, factor * gradient),
        next_choices(now, budget, seen, gradient, [90.0, 90.0, 90.0, 80.0, 80.0]),
        next_choices(now, Budget(points / factor, 100), seen, gradient),
    ):
        assert all(worse.levels[cell] <= better.levels[cell] for cell in CELLS)


def played(
    drift: Mapping[str, float], sensitivity: float, points: float = 0.5, epochs: int = 100
) -> tuple[list[Choices], dict[Cell, list[int]], list[int]]:
    """Rows that change by ``drift`` of their norm in every epoch, and gradients that are wrong by ``sensitivity`` times
    the error of rows: choices of all epochs, when each cell was sent, and when it was measured."""
    policy, versions = BudgetPolicy(points, epochs), dict.fromkeys(CELLS, NEVER)
    every, sent, measured = [], {cell: list[int]() for cell in CELLS}, []
    for epoch in range(1, epochs + 1):
        seen = {}
        for cell in CELLS:
            held, sends = versions[cell], policy.sends(cell, epoch, versions[cell])
            gap = drift[cell[1]] * (epoch - held)
            lost = gap * {"none": 0.0, "bf16": 2.0**-9, "int8": 2.0**-7}[policy.level(cell, epoch).codec]
            if held != NEVER:
                seen[cell] = RowErrors(gap, lost if sends else gap, epoch - held)
            if sends:
                versions[cell] = epoch
                sent[cell].append(epoch)
        gradient = None
        if way := policy.measures(epoch):
            measured.append(epoch)
            gradient = sensitivity * row_error({cell: one for cell, one in seen.items() if cell[1] == way})
        policy.choices = next_choices(policy.choices, policy.plan, seen, gradient)
        every.append(policy.choices)
    return every, sent, measured


@settings(max_examples=30, deadline=None)
@given(parts, parts, st.floats(0.1, 5), st.sampled_from([0.0, 0.1, 0.5, 2.0]), st.sampled_from([10, 40, 120]))
def test_ages_are_bounded_measurements_are_few_and_the_last_epochs_send_all(
    forward: float, backward: float, sensitivity: float, points: float, epochs: int
) -> None:
    every, sent, measured = played({"forward": forward, "backward": backward}, sensitivity, points, epochs)
    assert len(measured) <= epochs / 25
    ending = Budget(points, epochs).ending
    assert ending <= epochs
    for _cell, at in sent.items():
        assert at[0] == 1
        assert {*range(ending, epochs + 1)} <= {*at}
        assert max((b - a for a, b in itertools.pairwise(at)), default=1) <= 8
        assert points or at == [*range(1, epochs + 1)]
        assert epochs >= 25 or at == [*range(1, epochs + 1)]  # too few to measure: only fewer bytes per number
    assert all(names == every[-1].levels.keys() for names in (every[-1].good.keys(), every[-1].drift.keys()) if points)


def test_a_quiet_run_becomes_cheap_and_a_restless_one_stays_with_fewer_bytes_per_number() -> None:
    quiet, sent, measured = played({"forward": 0.001, "backward": 0.001}, sensitivity=1.0, epochs=120)
    assert [quiet[epoch].levels.get(CELLS[0], 0) for epoch in (0, 1, 2, 3, 4, 7)] == [0, 1, 2, 2, 2, 3]
    assert set(quiet[100].levels.values()) == {len(LEVELS) - 1}
    assert measured == [*Budget(0.5, 120).measurements]
    assert len(sent[CELLS[0]]) < 40
    restless, sent, measured = played({"forward": 0.3, "backward": 0.3}, sensitivity=1.0, epochs=120)
    assert set(restless[-1].levels.values()) == {NAMES.index("int8")}
    assert [120 - len(sent[cell]) for cell in CELLS] == [len(measured) / 2] * len(CELLS)
    mixed, _, _ = played({"forward": 0.001, "backward": 0.3}, sensitivity=1.0, epochs=120)
    assert {cell[1]: NAMES[level] for cell, level in mixed[-1].levels.items()} == {
        "forward": "int8/8",
        "backward": "int8",
    }


def test_a_measured_error_tightens_at_once_and_validation_tightens_all() -> None:
    levels = dict.fromkeys(CELLS, len(LEVELS) - 1)
    now, budget = Choices(levels, {}, {}, {"forward": 0.1, "backward": 0.1}, measured=2), Budget(0.5, 100)
    seen = {cell: RowErrors(0.01, 0.01, 7) for cell in CELLS}
    assert next_choices(now, budget, seen, 0.1 * budget.allowed).levels == levels
    over = next_choices(now, budget, seen, 60 * budget.allowed)
    assert over.sensitivity["forward"] > 100
    assert over.sensitivity["backward"] == 0.1
    assert {level < len(LEVELS) - 1 for cell, level in over.levels.items() if cell[1] == "forward"} == {True}
    assert {level for cell, level in over.levels.items() if cell[1] == "backward"} == {len(LEVELS) - 1}
    less = next_choices(over, budget, seen, None).sensitivity["forward"]
    halfway = next_choices(dataclasses.replace(over, measured=4), budget, seen, 0.0).sensitivity["forward"]
    assert halfway < less
    behind = next_choices(now, budget, seen, None, [90.0, 91.0, 90.4, 90.3])
    assert set(behind.levels.values()) == {len(LEVELS) - 2}
    assert behind.judged == 4
    again = next_choices(dataclasses.replace(behind, levels=levels), budget, seen, None, [90.0, 91.0, 90.4, 90.3])
    assert again.levels == levels  # an evaluation counts once
    assert [falls_behind(v, 0.5) for v in ([], [9.0], [9, 8], [9, 8, 8], [9, 8, 8.6], [9, 9, 8])] == [
        False, False, False, True, False, False,
    ]  # fmt: skip


def test_the_cheapest_level_for_a_change_of_rows() -> None:
    assert [NAMES[cheapest(drift, 0.1)] for drift in (0.0, 0.01, 0.03, 0.09, 0.5, 20.0, 1e9)] == [
        "int8/8", "int8/8", "int8/4", "int8/2", "int8", "bf16", "exact",
    ]  # fmt: skip
    policy = BudgetPolicy(0.5, 100)
    assert policy.reads(3, "backward") == LATEST
    assert policy.history("forward") == policy.history("backward") == 0


def test_what_a_run_will_do_is_said_before_it() -> None:
    own = config(strategy="exchange", trainers=2, trainers_per_server=1, budget=0.5, epochs=100).own
    said = "\n".join(explained(own))
    assert "0.5 points" in said
    assert f"in epochs {', '.join(str(epoch - 1) for epoch in Budget(0.5, 100).measurements)};" in said
    assert "from epoch 90 on" in said
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
