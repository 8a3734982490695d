"""Figures of daemons in words, as `atta top` and the dashboard show them."""

from __future__ import annotations

from collections.abc import Mapping

from atta.cli.work import size

UNKNOWN = "-"


def lane(counters: Mapping[str, float], lane: str) -> str:
    """Number of tasks that wait + number of tasks that run."""
    ready, running = counters.get(f"scheduler_ready_{lane}", 0.0), counters.get(f"scheduler_running_{lane}", 0.0)
    return f"{ready:.0f} + {running:.0f}"


def ratio(predicted: float | None, stale: float | None) -> str:
    """How far predicted rows are from fresh ones, beside stale rows."""
    return UNKNOWN if predicted is None or not stale else f"{predicted / stale:.2f}"


def number(value: float | None, unit: str = "") -> str:
    """A figure, with a decimal where it is small."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}{unit}" if abs(value) >= 100 else f"{value:.1f}{unit}"


def bytes_per_s(value: float | None) -> str:
    """A rate of bytes."""
    return UNKNOWN if value is None else f"{size(value)}/s"
