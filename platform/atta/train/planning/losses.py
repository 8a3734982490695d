"""What stale rows have cost in accuracy, from the benchmark's record, where this copy of Atta has one."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from atta.errors import DataError

__all__ = ["RECORD", "recorded_losses"]

RECORD = Path(__file__).resolve().parents[4] / "bench" / "results" / "stale-accuracy.json"
"""Written by ``bench.training.stale``. An installed package has none."""
_BESIDE = "exchange"


def recorded_losses(file: Path = RECORD) -> dict[str, str]:
    """A clause for each variant of the record: the most points that it lost beside exact training; {} without a file.

    Points are medians over paired seeds; the worst graph and number of layers counts.

    Raises:
        DataError: the file is no such record.
    """
    if not file.is_file():
        return {}
    try:
        return _clauses(json.loads(file.read_text())["results"], file.name)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(file, f"no record of accuracies: {error}") from error


def _clauses(runs: list[dict[str, Any]], name: str) -> dict[str, str]:
    tests = {(run["variant"], run["graph"], run["layers"], run["seed"]): float(run["test"]) for run in runs}
    lost: dict[tuple[str, str, int], list[float]] = {}
    for (variant, graph, layers, seed), test in tests.items():
        exact = tests.get((_BESIDE, graph, layers, seed))
        if variant != _BESIDE and exact is not None:
            lost.setdefault((variant, graph, layers), []).append(exact - test)
    worst: dict[str, tuple[float, str, int]] = {}
    for (variant, graph, layers), points in lost.items():
        found = (statistics.median(points), graph, layers)
        worst[variant] = max(found, worst.get(variant, found))
    return {variant: _clause(*found, name) for variant, found in worst.items()}


def _clause(points: float, graph: str, layers: int, name: str) -> str:
    if points <= 0:
        return f"in {name} it lost nothing beside exact training"
    return f"in {name} it lost at most {points:.1f} points beside exact training, on {graph} with {layers} layers"
