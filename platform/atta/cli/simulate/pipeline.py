"""``atta simulate --strategy dorylus``: options of simulated pipelines, and how their figures are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from atta.cli.output import DURATION, RATE, SIZE, printer, write_json

if TYPE_CHECKING:
    from atta.simulate.pipeline import PipelineOutcome, PipelineScenario

__all__ = ["OPTIONS", "pipeline_options", "run_pipeline"]

_MODES = ("nopipe", "pipe", "async")
OPTIONS: Mapping[str, tuple[Any, str]] = {
    "plan": (str, "A file of `atta plan --strategy auto --json`: its servers, layers and costs, unless others are given."),
    "intervals": (click.IntRange(1, 4096), "Intervals of each trainer  [default: 16]."),
    "layers": (click.IntRange(1, 100), "Layers of the model  [default: 2]."),
    "mode": (click.Choice(_MODES), "As in `atta train`  [default: async]."),
    "staleness": (click.IntRange(0, 64), "As in `atta train`  [default: 0]."),
    "workers": (click.IntRange(1, 10_000), "Most workers of a trainer  [default: 100]."),
    "graph": (DURATION, "Gathering, or scattering, an interval  [default: 10ms]."),
    "compute": (DURATION, "Computing a worker's task  [default: 10ms]."),
    "task-bytes": (SIZE, "Of a task, and of its result  [default: 0]."),
    "worker-link": (RATE, "Rate of each worker's link, each way  [default: infinitely fast]."),
    "jitter": (DURATION, "A task takes longer by up to this  [default: 0]."),
    "kill": (click.FloatRange(0, 0.99), "Share of tasks during which their worker dies  [default: 0]."),
    "worker-start": (DURATION, "How long a worker takes to start  [default: 2s]."),
    "worker-timeout": (DURATION, "As in `atta train`  [default: from the mean]."),
    "max-relaunch": (click.IntRange(0, 1000), "As in `atta train`  [default: 5]."),
}
"""Type and help of each option."""
_FIELDS = {
    "graph": "graph_s", "compute": "task_s", "worker-link": "link", "jitter": "jitter_s", "worker-start": "start_s",
    "worker-timeout": "timeout_s",
}  # fmt: skip


def pipeline_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of simulated pipelines."""
    for name, (kind, text) in reversed(list(OPTIONS.items())):
        command = click.option(f"--{name}", type=kind, help=f"With --strategy: {text[0].lower()}{text[1:]}")(command)
    strategy = click.option("--strategy", type=click.Choice(["dorylus"]), help="Simulate training, not sampling.")
    return strategy(command)


def run_pipeline(given: Mapping[str, Any], json_file: str | None, *, quiet: bool) -> None:
    """Simulate a pipeline with the options of the command that were ``given``, and show what it did."""
    from atta.simulate.pipeline import PipelineScenario, planned_costs, simulate_pipeline

    fields = {_FIELDS.get(name, name.replace("-", "_")): value for name, value in given.items() if value is not None}
    if plan := fields.pop("plan", None):
        fields = planned_costs(plan, fields.get("intervals", PipelineScenario.intervals)) | fields
    scenario = PipelineScenario(**fields)
    outcome = simulate_pipeline(scenario)
    if not quiet and json_file != "-":
        _print(scenario, outcome)
    plain = asdict(scenario) | {"link": None if scenario.link == float("inf") else scenario.link}
    write_json(json_file, {"schema": 1, "scenario": plain, "outcome": asdict(outcome)})


def _print(scenario: PipelineScenario, outcome: PipelineOutcome) -> None:
    later = outcome.epoch_s[1:] or outcome.epoch_s
    printer().print(
        f"{scenario.mode}: {sum(later) / len(later):.4g} s per epoch after the first ({outcome.epoch_s[0]:.4g} s); rows at "
        f"most {outcome.oldest} epochs old"
    )
    printer().print(
        f"{outcome.workers} workers, {100 * outcome.working:.0f} % of their time at work; "
        f"trainers busy {100 * outcome.busy:.0f} %; "
        f"{outcome.relaunched} tasks relaunched, {outcome.lost} workers lost, {outcome.ignored} results ignored"
    )
