"""Output of ``atta simulate``: the figures of one scenario, or of several values of one option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from atta.simulate.cluster import Outcome
from atta.simulate.scenario import Scenario

__all__ = ["SimulatedRun", "document", "table"]

_ROWS: tuple[tuple[str, str, float, str], ...] = (
    ("seeds/s, all machines", "seeds_per_s", 1, ",.4g"),
    ("batches/s per machine", "batches_per_s", 1, ",.4g"),
    ("epoch, s", "epoch_s", 1, ",.4g"),
    ("simulated, s", "duration_s", 1, ",.4g"),
    ("DAG completion, mean ms", "completion_ms_mean", 1, ",.4g"),
    ("DAG completion, p95 ms", "completion_ms_p95", 1, ",.4g"),
    ("cores busy, %", "cores_busy", 100, ".1f"),
    ("event loop busy, %", "loop_busy", 100, ".1f"),
    ("trainer busy, %", "trainer_busy", 100, ".1f"),
    ("uplinks busy, %", "uplinks_busy", 100, ".1f"),
    ("downlinks busy, %", "downlinks_busy", 100, ".1f"),
    ("requests in flight, %", "requests_busy", 100, ".1f"),
    ("requests per batch", "requests_per_batch", 1, ",.4g"),
    ("MB sent per batch", "link_bytes_per_batch", 1e-6, ",.4g"),
    ("CPU ms per batch", "cpu_ms_per_batch", 1, ",.4g"),
    ("most batches held", "most_held", 1, ",d"),
    ("most MB waiting", "most_bytes", 1e-6, ",.4g"),
)


@dataclass(frozen=True)
class SimulatedRun:
    """One simulation. ``label`` is the value of the swept option."""

    label: str
    scenario: Scenario
    outcome: Outcome


def table(runs: Sequence[SimulatedRun], option: str = "") -> Table:
    """One column per run; ``option``: the swept option, empty for none."""
    scenario = runs[0].scenario
    size = f"{scenario.machines} machine" + ("s" if scenario.machines > 1 else "")
    shown = Table(title="simulated" if option else f"{size}, simulated")
    shown.add_column("")
    for run in runs:
        shown.add_column(f"{option} {run.label}" if option else run.label, justify="right")
    for name, attribute, scale, style in _ROWS:
        values = [getattr(run.outcome, attribute) for run in runs]
        shown.add_row(name, *("unknown" if v is None else format(v * scale, style) for v in values))
    shown.add_row("limited by", *(f"{run.outcome.limit}, {run.outcome.limit_busy:.0%}" for run in runs))
    return shown


def document(runs: Sequence[SimulatedRun], option: str, profile: str) -> dict[str, Any]:
    """Output of ``--json``. It has no date and no host name, so equal scenarios give equal files."""
    return {
        "schema": 1,
        "simulate": option or None,
        "profile": profile,
        "runs": [{"value": r.label, "config": _config(r.scenario), "results": r.outcome.to_dict()} for r in runs],
    }


def _config(scenario: Scenario) -> dict[str, Any]:
    config = asdict(scenario)
    del config["profile"]
    if math.isinf(config["link"]):
        config["link"] = None  # JSON has no infinity
    config["batch_size"] = scenario.batch_size or scenario.profile.batch_size
    config["fan_outs"] = list(scenario.fan_outs or scenario.profile.fan_outs)
    config["epoch_batches"] = scenario.epoch_batches
    return config
