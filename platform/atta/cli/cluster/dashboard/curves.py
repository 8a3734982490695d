"""What trainers export over time, and curves of it as inline SVG. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["SHOWN", "TrainerHistory", "curve", "figures_of"]

SHOWN = ("loss", "val_accuracy", "seeds_per_second", "epoch_seconds")
"""What has a curve, in this order."""
MOST_EPOCHS = 1000
"""Epochs of a trainer that are remembered."""
MOST_CHARACTERS = 1 << 20
"""Longest text of metrics that is read."""
_WIDTH, _HEIGHT, _EDGE = 260, 90, 6


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
    """An SVG of ``points``, with the last value in words; they need not be in equal steps."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    across, up = (_WIDTH - 2 * _EDGE) / max(xs[-1] - xs[0], 1), (_HEIGHT - 2 * _EDGE) / ((high - low) or 1.0)
    places = [(_EDGE + (x - xs[0]) * across, _HEIGHT - _EDGE - (y - low) * up) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dot = f'<circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="3"/>'
    words = f"{escape(title)}: {points[-1][1]:.4g} after {xs[-1]} epochs; {low:.4g} to {high:.4g}"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{words}"><polyline points="{line}"/>{dot}</svg>'
        f"<figcaption>{words}</figcaption></figure>"
    )
