"""What trainers export over time, and curves of it as inline SVG. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from prometheus_client.parser import text_string_to_metric_families

SHOWN = ("loss", "val_accuracy", "seeds_per_second", "epoch_seconds")
"""What has a curve, in this order."""
MOST_EPOCHS = 1000
"""Epochs of a trainer that are remembered."""
MOST_CHARACTERS = 1 << 20
"""Longest text of metrics that is read."""
_WIDTH, _HEIGHT, _EDGE = 300, 146, 8
_LEFT, _BOTTOM = 46, 112
"""Where the axes meet."""


def figures_of(text: str) -> tuple[int, dict[str, float]]:
    """Number of ended epochs, and the latest epoch's figures by name, from a trainer's Prometheus metrics.

    Raises:
        ValueError: the text is none of metrics, or too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{len(text)} characters of metrics")
    epochs, found = 0, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("atta_training_")
            if name == "epochs_total":
                epochs = int(sample.value)
            elif name == "metric":
                found[sample.labels.get("metric", "")] = sample.value
            elif name == "phase_seconds":
                found[f"phase {sample.labels.get('phase', '')}"] = sample.value
            elif sample.name != name and not sample.labels:
                found[name] = sample.value
    return epochs, found


@dataclass
class TrainerHistory:
    """What one trainer has exported so far.

    Attributes:
        address: of its metrics.
        error: why the last attempt failed; empty: it did not.
        points: ended epochs, and the figures of the latest one.
    """

    address: str
    error: str = ""
    points: deque[tuple[int, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=MOST_EPOCHS))

    def add(self, epochs: int, figures: Mapping[str, float]) -> None:
        """Take what was scraped. A run that begins anew replaces the one before."""
        self.error = ""
        if self.points and epochs < self.points[-1][0]:
            self.points.clear()
        if not epochs or (self.points and epochs == self.points[-1][0]):
            return
        self.points.append((epochs, dict(figures)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(ended epochs, value) where the figure is known."""
        return [(epochs, figures[name]) for epochs, figures in self.points if name in figures]


def curve(title: str, points: Sequence[tuple[int, float]]) -> str:
    """An SVG of ``points`` with axes, and the last value in words; they need not be in equal steps."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    right, left = _WIDTH - _EDGE, _LEFT
    across, up = (right - left) / max(xs[-1] - xs[0], 1), (_BOTTOM - _EDGE) / ((high - low) or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (x - xs[0]) * across, _BOTTOM - (y - low) * up

    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
    at_x, at_y = place(*points[-1])
    words = f"{escape(title)}: {points[-1][1]:.4g} after {xs[-1]} epochs; {low:.4g} to {high:.4g}"
    marks = "".join(_mark(*place(xs[0], y), f"{y:.4g}", across=True) for y in _ticks(low, high))
    marks += "".join(_mark(*place(x, low), f"{x:g}", across=False) for x in _ticks(xs[0], xs[-1], whole=True))
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{words}">'
        f'<path class="axes" d="M{left} {_EDGE}V{_BOTTOM}H{right}"/>{marks}'
        f'<text class="unit" x="{right}" y="{_HEIGHT - 4}">epochs</text>'
        f'<polyline points="{line}"/><circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3"/></svg>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _mark(x: float, y: float, text: str, *, across: bool) -> str:
    """A tick with its number: beside the upright axis, with a line ``across`` the picture, or below the other one."""
    if across:
        line = f'<path class="grid" d="M{x:.1f} {y:.1f}H{_WIDTH - _EDGE}"/>'
        return f'{line}<text class="up" x="{x - 4:.1f}" y="{y + 4:.1f}">{text}</text>'
    return f'<text class="along" x="{x:.1f}" y="{_BOTTOM + 14}">{text}</text>'


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """At most five round numbers within [low, high]; at least one. ``whole``: integers."""
    if high <= low:
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)] or [low]
