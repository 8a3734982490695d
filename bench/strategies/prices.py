"""Price files, and what a run cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atta.train.planning.value import PriceList, value_of
from atta.wire.parts import read_toml
from atta_bench.strategies.figures import Figures

__all__ = ["read_prices", "values"]


def read_prices(path: str | Path) -> PriceList:
    """The price list in a TOML file (``atta.train.planning.value``).

    Raises:
        DataError: the file is missing or is not TOML.
        ConfigError: a key or a price is wrong.
    """
    found = read_toml(path)
    return PriceList.parse(found, str(path))


def values(
    prices: PriceList, servers: int, epochs: Sequence[Mapping[str, Any]], target: float | None = None
) -> Figures:
    """Cost and value of a run, of its training alone: set-up and evaluation are left out.

    With a ``target`` the run counts until the first epoch whose test accuracy reaches it; without one, to its end. A
    run that does not reach its target has neither cost nor value.
    """
    counted = list(epochs)
    if target is not None:
        last = next((n for n, e in enumerate(epochs) if (e["test_accuracy"] or 0.0) >= target), None)
        if last is None:
            return {}
        counted = counted[: last + 1]
    seconds = sum(float(e["seconds"]) for e in counted)
    did = [e.get("pipeline") or {} for e in counted]
    worker_s, tasks = (sum(float(d.get(name, 0.0)) for d in did) for name in ("worker_s", "tasks"))
    cost = prices.cost(seconds, servers, worker_s=worker_s, requests=tasks)
    workers = prices.worker.cost(worker_s, tasks)
    found = {"cost": cost, "workers_cost": workers} if workers else {"cost": cost}
    return found | ({"value": value_of(seconds, cost)} if cost else {})
