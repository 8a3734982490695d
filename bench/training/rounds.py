"""Rounds of ``atta bench strategies`` that are kept, and bounds on their medians."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta_bench.record import rows_of
from atta_bench.strategies import StrategiesBench, run

__all__ = ["Figures", "Round", "measured", "median", "quotients", "verdict", "verdict_rows"]

Figures = dict[str, float]
Round = dict[str, Figures]
"""Figures by variant."""


def measured(file: Path, bench: StrategiesBench) -> Round:
    """The figures of one round, made unless ``file`` has them.

    Raises:
        SystemExit: a variant failed.
    """
    if file.exists():
        found: Round = json.loads(file.read_text())
        return found
    report = run(bench, lambda text: print(text, file=sys.stderr, flush=True))
    if report.errors:
        raise SystemExit(f"{file.stem}: {report.errors}")
    found = {name: dict(rounds[0]) for name, rounds in report.rounds.items()}
    file.write_text(json.dumps(found))
    print(f"{file.stem}: " + ", ".join(f"{n} {f['mean_epoch_seconds']:.3f} s" for n, f in found.items()), flush=True)
    return found


def median(rounds: Sequence[Round], variant: str, figure: str) -> str:
    """Median (minimum to maximum) of a figure over the rounds that have it; how many lack it."""
    values = [r[variant][figure] for r in rounds if figure in r[variant]]
    if not values:
        return "none"
    missing = len(rounds) - len(values)
    text = f"{statistics.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"
    return f"{text}, {missing} without" if missing else text


def quotients(rounds: Sequence[Round], figure: str, ours: str, theirs: str) -> list[float]:
    """``ours`` / ``theirs`` in each round that has both."""
    return [r[ours][figure] / r[theirs][figure] for r in rounds if figure in r[ours] and figure in r[theirs]]


def verdict(what: str, values: Sequence[float], bound: float, *, most: bool) -> dict[str, Any]:
    """A bound on the median of ``values``; one without values does not hold."""
    found = statistics.median(values) if values else None
    holds = found is not None and (found <= bound if most else found >= bound)
    return {"bound": what, "median": found, "values": list(values), "holds": holds}


def verdict_rows(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of all bounds."""
    rows = (
        (v["bound"], "none" if v["median"] is None else f"{v['median']:.3f}", "yes" if v["holds"] else "**no**")
        for v in verdicts
    )
    return rows_of(("bound", "median over seeds", "holds"), *rows)
