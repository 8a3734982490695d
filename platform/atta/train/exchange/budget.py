"""What a budget of accuracy lets rows between trainers lose: measured errors in, choices out. Pure functions of numbers
that all trainers have in common, so all choose the same.

A *cell* is what one owner sends of one layer in one direction. Each has a level, from exact to the cheapest. Owners
measure in every epoch how far their rows are from those that readers hold. Now and then a step that reads older rows, of
one direction, is made beside an exact one. It says what such distances do to the gradient: the *sensitivity*. A budget
allows an error of the gradient, and so by the sensitivity one of rows. A cell keeps to levels whose error is smaller."""

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
    Level("bf16", "bf16"),
    Level("int8", "int8"),
    Level("int8/2", "int8", 2),
    Level("int8/4", "int8", 4),
    Level("int8/8", "int8", 8),
)
"""From exact to the cheapest. All but the first send differences to what the reader has, so errors do not add up."""
_FINEST = 2
"""The cheapest level that sends in every epoch."""
_LOSSES = {"none": 0.0, "bf16": 2.0**-9, "int8": 2.0**-7}
"""What a codec loses of the difference that it packs, root mean square, about."""
ERROR_PER_POINT = 0.2
"""Error of a layer's gradient that a point of accuracy allows (bench/results/budget.md)."""
_MOST_ERROR = 0.5
_SENSITIVITY = 2.0
"""Error of the gradient by that of rows, until it is measured. Before, rows are sent in every epoch."""
_LEAST_SENSITIVITY = 0.05
_ROUNDING = 1e-6
"""An error of rows so small says nothing of the gradient: exact ones are rounded by as much."""
_FADING = 0.8
"""The largest change of rows that was seen fades by this factor in an epoch without a larger one."""
_PATIENCE = 3
"""Good epochs in a row after which rows are sent less often. Fewer bytes per number need one."""
_FIRST, _LAST = 5, 0.7
"""The first measurement: its epoch. The last one: its share of the epochs."""


@dataclass(frozen=True)
class Budget:
    """What a run may lose: ``points`` of accuracy, in ``epochs``."""

    points: float
    epochs: int

    @property
    def allowed(self) -> float:
        """Largest error of a layer's gradient, relative to its norm."""
        return min(_MOST_ERROR, ERROR_PER_POINT * self.points)

    @property
    def measurements(self) -> tuple[int, ...]:
        """Epochs with an exact step, of rows and of gradients in turns. Their distances grow; they are at most a 25th."""
        count, last = self.epochs // FEW_EPOCHS if self.points else 0, _LAST * self.epochs
        factor = (last / _FIRST) ** (1 / max(1, count - 1))
        return tuple(round(_FIRST * factor**number) for number in range(count))

    @property
    def ending(self) -> int:
        """The first of the last epochs, a tenth, in which all rows are sent again: the final weights see fresh rows."""
        return self.epochs + 1 - max(1, self.epochs // 10)


class RowErrors(NamedTuple):
    """Rows of a cell in an epoch, relative to their norm.

    Attributes:
        gap: distance to what readers had before the epoch.
        error: distance to what they read.
        age: of what they had, in epochs, 1 or more.
    """

    gap: float
    error: float
    age: int


@dataclass(frozen=True)
class Choices:
    """What was chosen, and what that rests on. All is plain, for checkpoints.

    Attributes:
        levels: place in ``LEVELS`` by cell; others are exact.
        good: epochs in a row in which a cell could have been cheaper.
        drift: change of a cell's rows in an epoch, relative to their norm.
        sensitivity: error of the gradient by that of rows, relative to their norms, by direction.
        measured, judged: how many measurements, and evaluations, were taken into account.
    """

    levels: Mapping[Cell, int] = field(default_factory=dict)
    good: Mapping[Cell, int] = field(default_factory=dict)
    drift: Mapping[Cell, float] = field(default_factory=dict)
    sensitivity: Mapping[Direction, float] = field(default_factory=dict)
    measured: int = 0
    judged: int = 0

    def bound(self, budget: Budget, direction: Direction) -> float:
        """Most error of a cell's rows, relative to their norm. Errors of layers and directions add up as squares do."""
        parts = max(1, len({cell[:2] for cell in self.drift}))
        return budget.allowed / (self.sensitivity.get(direction, _SENSITIVITY) * math.sqrt(parts))


def next_choices(
    now: Choices,
    budget: Budget,
    seen: Mapping[Cell, RowErrors],
    gradient: float | None = None,
    evaluations: Sequence[float] = (),
) -> Choices:
    """The choices for the epoch after one in which ``seen`` was measured.

    ``gradient``: the largest error of a layer's gradient, if it was measured; ``evaluations``: all figures of validation so
    far, higher ones better, in points. A cell whose error would pass the bound gets tighter at once; it gets looser by one
    level, after good epochs."""
    if budget.points == 0:
        return Choices()
    drift = {c: max(s.gap / s.age, _FADING * now.drift.get(c, 0.0)) for c, s in seen.items()}
    found = dataclasses.replace(now, drift={**now.drift, **drift}, judged=len(evaluations))
    if gradient is not None:
        found = _measured(found, seen, gradient)
    behind = len(evaluations) > now.judged and falls_behind(evaluations, budget.points)
    if behind:
        found = dataclasses.replace(found, sensitivity={way: 2 * value for way, value in found.sensitivity.items()})
    levels, good = dict(now.levels), dict(now.good)
    for cell in seen:
        level = now.levels.get(cell, 0)
        fitting = cheapest(found.drift[cell], found.bound(budget, cell[1]))
        if cell[1] not in found.sensitivity:
            fitting = min(fitting, _FINEST)
        if behind and level > _FINEST:
            fitting = min(fitting, level - 1)
        good[cell] = good.get(cell, 0) + 1 if fitting > level else 0
        if fitting < level:
            levels[cell] = fitting
        elif good[cell] >= (_PATIENCE if level >= _FINEST else 1):
            levels[cell], good[cell] = level + 1, 0
    return dataclasses.replace(found, levels=levels, good=good)


def cheapest(drift: float, bound: float) -> int:
    """The cheapest level with which rows that change by ``drift`` in an epoch are never further than ``bound`` from
    those that are read. Levels that are exact always fit."""
    fits = [drift * (level.every - 1 + level.every * _LOSSES[level.codec]) <= bound for level in LEVELS]
    return fits.index(False) - 1 if False in fits else len(LEVELS) - 1


def _measured(now: Choices, seen: Mapping[Cell, RowErrors], gradient: float) -> Choices:
    """A higher sensitivity counts at once, a lower one by half of the way."""
    way = WAYS[now.measured % len(WAYS)]
    error, before = row_error({cell: one for cell, one in seen.items() if cell[1] == way}), now.sensitivity.get(way)
    found = dataclasses.replace(now, measured=now.measured + 1)
    if error <= _ROUNDING:
        return found
    value = max(_LEAST_SENSITIVITY, gradient / error)
    if before is not None and value < before:
        value = math.sqrt(value * before)
    return dataclasses.replace(found, sensitivity={**now.sensitivity, way: value})


def row_error(seen: Mapping[Cell, RowErrors]) -> float:
    """Error of all rows: root of the sum over layers and directions, of the mean over owners, of squares."""
    of_key: dict[tuple[int, Direction], list[float]] = {}
    for (layer, direction, _), one in seen.items():
        of_key.setdefault((layer, direction), []).append(one.error**2)
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

    def level(self, cell: Cell, epoch: int) -> Level:
        """How a cell's rows travel in ``epoch``."""
        level = self.choices.levels.get(cell, 0)
        return LEVELS[min(level, _FINEST) if epoch >= self.plan.ending else level]

    def sends(self, cell: Cell, epoch: int, held: int) -> bool:
        """Whether the owner sends its rows in ``epoch``, of which readers hold those of epoch ``held``."""
        if held == NEVER or cell[1] != self.measures(epoch):
            return held == NEVER or epoch - held >= self.level(cell, epoch).every
        return False

    def measures(self, epoch: int) -> Direction | None:
        """The direction of which nothing is sent in ``epoch``, because an exact step is made; None: there is none."""
        taken, starts = self.choices.measured, self.plan.measurements if self.choices.drift else ()
        return WAYS[taken % len(WAYS)] if taken < len(starts) and epoch >= starts[taken] else None


def explained(settings: Any) -> list[str]:
    """What a run with these settings of ``exchange`` will do, in lines for people, who count epochs from 0."""
    if not settings.budget:
        return ["rows are exact in every epoch (--accuracy-loss 0)"]
    budget = Budget(settings.budget, settings.epochs)
    measured = (
        ", ".join(str(epoch - 1) for epoch in budget.measurements) or f"none, as there are fewer than {FEW_EPOCHS}"
    )
    return [
        f"levels by layer, direction and owner, from exact on: {', '.join(level.name for level in LEVELS)} "
        "(int8/2: sent every second epoch)",
        f"allowed: an error of each layer's gradient of {budget.allowed:.3g} of its norm; this stands for "
        f"{budget.points:g} points of accuracy, which nobody can measure beforehand",
        "measured: in every epoch how far rows are from what readers have; what this does to the gradient by an exact "
        f"step beside one with older rows, in epochs {measured}; before, rows are sent in every epoch",
        "tighter: at once where an error would be too large, and everywhere if validation falls more than "
        f"{budget.points:g} points behind its best twice in a row",
        f"from epoch {budget.ending - 1} on all rows are sent, in int8 at the least",
    ]
