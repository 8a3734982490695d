"""``atta simulate --strategy dorylus``: how figures of simulated pipelines are shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from atta.cli.output import printer, write_json

if TYPE_CHECKING:
    from atta.simulate.pipeline.run import PipelineOutcome
    from atta.simulate.pipeline.scenario import PipelineScenario


def run_pipeline(scenario: PipelineScenario, json_file: str | None, *, quiet: bool) -> None:
    """Simulate a pipeline, and show what it did."""
    from atta.simulate.pipeline.run import simulate_pipeline

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
