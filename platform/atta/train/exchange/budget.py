"""What a budget of accuracy lets rows between trainers lose: measured errors in, choices out. Pure functions of numbers
that all trainers have in common, so all choose the same.

A *cell* is what one owner sends of one layer in one direction. Each has a level, from exact to the cheapest. Owners
measure in every epoch how far their rows are from those that readers hold. Now and then a step is tried with these,
before all are sent. It says what such distances do to the gradient: the *sensitivity*. A budget allows an error of the
gradient, so by the sensitivity one of rows, and a cell takes the cheapest level that keeps to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from atta.train.exchange.policies import FEW_EPOCHS, LATEST, NEVER, RowPolicy, Rule

if TYPE_CHECKING:
    from atta.train.cooperative.source import Direction

WAYS: tuple[Direction, ...] = ("forward", "backward")
Cell: TypeAlias = "tuple[int, Direction, int]"
"""Layer, direction and owner."""


class Level(NamedTuple):
    """How rows of a cell travel: in what ``codec``, and sent when they are ``every`` epochs old."""

    name: str
    codec: str
    every: int = 1


LEVELS = (
    Level("exact", "none"),
    Level("int8", "int8"),
    *(Level(f"int8/{n}", "int8", n) for n in (2, 3, 4, 6, 8, 12, 16)),
)
"""From exact to the cheapest. All but the first send differences to what the reader has, so errors do not add up."""
_ROUNDED = 2.0**-7
"""What int8 loses of the difference that it packs, root mean square, about."""
ERROR_PER_POINT = 0.2
"""Error of a layer's gradient that a point of accuracy allows (bench/results/budget.md)."""
_MOST_ERROR = 0.5
_LEAST_SENSITIVITY = 0.05
_ROUNDING = 1e-6
"""An error of rows so small says nothing of the gradient: exact ones are rounded by as much."""
_FADING = 0.8
"""The largest change of rows that was seen fades by this factor in an epoch without a larger one."""
_SLOWLY = 0.98  # as _FADING, of norms of rows
_FIRST, _LAST = 5, 0.7
"""The first measurement: its epoch. The last one: its share of the epochs."""


@dataclass(frozen=True)
class Budget:
    """What a run may lose: ``points`` of accuracy, in ``epochs``."""

    points: float
    epochs: int

    def allowed(self, gain: float = math.inf) -> float:
        """Largest error of a layer's gradient, relative to its norm, while validation gains so many points: such an error
        loses a share of them, so more is allowed of fewer."""
        share = self.points / max(2 * gain, self.points, _ROUNDING)
        return min(_MOST_ERROR, max(ERROR_PER_POINT * self.points, share))

    @property
    def measurements(self) -> tuple[int, ...]:
        """Epochs whose step is tried with older rows first. Their distances grow; they are at most a 25th."""
        count, last = self.epochs // FEW_EPOCHS if self.points else 0, _LAST * self.epochs
        factor = (last / _FIRST) ** (1 / max(1, count - 1))
        return tuple(round(_FIRST * factor**number) for number in range(count))


class RowErrors(NamedTuple):
    """Rows of a cell in an epoch.

    Attributes:
        gap: distance to what readers had before the epoch.
        error: distance to what they read.
        norm: of the rows.
        age: of what readers had, in epochs, 1 or more.
    """

    gap: float
    error: float
    norm: float
    age: int


@dataclass(frozen=True)
class Choices:
    """What choices rest on. All is plain, for checkpoints.

    Attributes:
        norms: of a cell's rows, the largest of late: small gradients at the end of a run move weights little.
        drift: change of a cell's rows in an epoch, relative to that norm.
        sensitivity: error of the gradient by that of rows, relative to their norms, by direction; empty: not measured yet.
        gain: points by which the best validation has risen in the second half of the run so far; infinity: unknown.
        measured, judged: how many measurements, and evaluations, were taken into account.
    """

    norms: Mapping[Cell, float] = field(default_factory=dict)
    drift: Mapping[Cell, float] = field(default_factory=dict)
    sensitivity: Mapping[Direction, float] = field(default_factory=dict)
    gain: float = math.inf
    measured: int = 0
    judged: int = 0

    def bound(self, budget: Budget, way: Direction) -> float | None:
        """Most error of a cell's rows, relative to their norm; None: it is not known yet. Errors of layers and directions
        add up as squares do."""
        parts = max(1, len({cell[:2] for cell in self.drift}))
        found = self.sensitivity.get(way)
        return None if found is None else budget.allowed(self.gain) / (found * math.sqrt(parts))

    def level(self, cell: Cell, budget: Budget) -> Level:
        """How a cell's rows travel: as cheaply as goes with their change, and in int8 before what that does is known."""
        bound = self.bound(budget, cell[1])
        if budget.points == 0:
            return LEVELS[0]
        return LEVELS[1 if bound is None or cell not in self.drift else cheapest(self.drift[cell], bound)]


def next_choices(
    now: Choices,
    budget: Budget,
    seen: Mapping[Cell, RowErrors],
    gradient: float | None = None,
    evaluations: Sequence[float] = (),
) -> Choices:
    """The choices for the epoch after one in which ``seen`` was measured.

    ``gradient``: the largest error of a layer's gradient with the rows that readers had, if it was measured;
    ``evaluations``: all figures of validation so far, higher ones better, in points."""
    norms = {**now.norms, **{c: max(s.norm, _SLOWLY * now.norms.get(c, 0.0)) for c, s in seen.items()}}
    drift = {c: max(s.gap / norms[c] / s.age, _FADING * now.drift.get(c, 0.0)) for c, s in seen.items()}
    half = evaluations[: len(evaluations) // 2]
    gain = max(evaluations) - max(half) if half else math.inf
    found = dataclasses.replace(now, norms=norms, drift={**now.drift, **drift}, gain=gain, judged=len(evaluations))
    if gradient is not None:
        found = _measured(found, seen, gradient)
    if len(evaluations) > now.judged and falls_behind(evaluations, budget.points):
        found = dataclasses.replace(found, sensitivity={way: 2 * value for way, value in found.sensitivity.items()})
    return found


def cheapest(drift: float, bound: float) -> int:
    """The cheapest level with which rows that change by ``drift`` in an epoch are never further than ``bound`` from
    those that are read. Levels that are exact always fit."""
    fits = [drift * (level.every - 1 + level.every * _ROUNDED) <= bound for level in LEVELS[1:]]
    return fits.index(False) if False in fits else len(LEVELS) - 1


def _measured(now: Choices, seen: Mapping[Cell, RowErrors], gradient: float) -> Choices:
    """Each direction may be the cause of all of the error. A higher sensitivity counts at once, a lower one by half of
    the way."""
    found = dict(now.sensitivity)
    for way in WAYS:
        error = row_gap({cell: one for cell, one in seen.items() if cell[1] == way}, now.norms)
        if error > _ROUNDING:
            value = max(_LEAST_SENSITIVITY, gradient / error)
            found[way] = max(value, math.sqrt(value * found.get(way, value)))
    return dataclasses.replace(now, measured=now.measured + 1, sensitivity=found)


def row_gap(seen: Mapping[Cell, RowErrors], norms: Mapping[Cell, float]) -> float:
    """Relative gap of all rows: root of the sum over layers and directions, of the mean over owners, of squares."""
    of_key: dict[tuple[int, Direction], list[float]] = {}
    for cell, one in seen.items():
        of_key.setdefault(cell[:2], []).append((one.gap / norms[cell]) ** 2)
    return math.sqrt(sum(sum(squares) / len(squares) for squares in of_key.values()))


def falls_behind(evaluations: Sequence[float], points: float) -> bool:
    """Whether the last two evaluations are both more than ``points`` below the best one before them."""
    *before, last, latest = [-math.inf, -math.inf, *evaluations]
    return len(before) > 2 and max(last, latest) < max(before) - points


@dataclass
class BudgetPolicy(RowPolicy):
    """Rows as ``choices`` say, which the trainer renews after each epoch. Readers keep what came last."""

    budget: float
    epochs: int

    def __post_init__(self) -> None:
        self.plan, self.choices = Budget(self.budget, self.epochs), Choices()

    def history(self, direction: Direction) -> int | None:
        return 0

    def reads(self, epoch: int, direction: Direction) -> Rule | None:
        return LATEST

    def level(self, cell: Cell) -> Level:
        """How a cell's rows travel at present."""
        return self.choices.level(cell, self.plan)

    def sends(self, cell: Cell, epoch: int, held: int) -> bool:
        """Whether the owner sends its rows in ``epoch``, of which readers hold those of epoch ``held``."""
        return held == NEVER or epoch - held >= self.level(cell).every or self.measures(epoch)

    def measures(self, epoch: int) -> bool:
        """Whether the step of ``epoch`` is tried with the rows that readers hold, and then all are sent."""
        taken, starts = self.choices.measured, self.plan.measurements if self.choices.drift else ()
        return taken < len(starts) and epoch >= starts[taken]


def explained(settings: Any) -> list[str]:
    """What a run with these settings of ``exchange`` will do, in lines for people, who count epochs from 0."""
    if not settings.budget:
        return ["rows are exact in every epoch (--accuracy-loss 0)"]
    budget = Budget(settings.budget, settings.epochs)
    measured = (
        ", ".join(str(epoch - 1) for epoch in budget.measurements) or f"none, as there are fewer than {FEW_EPOCHS}"
    )
    return [
        f"levels by layer, direction and owner, from int8 on: {', '.join(level.name for level in LEVELS)} "
        "(int8/2: sent every second epoch)",
        f"allowed: an error of each layer's gradient of {ERROR_PER_POINT * budget.points:.3g} of its norm, and more while "
        f"validation gains little; this stands for {budget.points:g} points of accuracy, which nobody can measure beforehand",
        "measured: in every epoch how far rows are from what readers have; what this does to the gradient by a step with "
        f"what readers have, before all rows are sent, in epochs {measured}; before the first one all are sent in int8",
        "tighter: at once where an error would be too large, and everywhere if validation falls more than "
        f"{budget.points:g} points behind its best twice in a row",
    ]
