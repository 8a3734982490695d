"""Simulated pipelines: they end, they keep their bounds, and overlapping helps by what it should."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from atta.cli.simulate import simulate
from atta.errors import AttaError, ConfigError, DataError
from atta.simulate.pipeline import PipelineOutcome, PipelineScenario, planned_costs, simulate_pipeline
from atta.train.planning.forecast import Forecast, Forecaster
from atta.train.planning.sizes import HANDED, Machines, PlannedModel, Rates
from atta.train.strategies.dorylus import dorylus_forecasts
from tests.unit.planning.test_forecast import SIZES


def run(**options: Any) -> PipelineOutcome:
    return simulate_pipeline(PipelineScenario(**options))


def test_parts_add_up_and_pipe_overlaps_what_nopipe_does_in_turn() -> None:
    found = run(machines=1, intervals=1, epochs=3, graph_s=0.25, task_s=0.5, mode="pipe")
    assert found.epoch_s == pytest.approx([5 * 0.25 + 3 * 0.5] * 3)
    assert (found.oldest, found.relaunched, found.lost) == (0, 0, 0)
    common: dict[str, Any] = {"machines": 2, "intervals": 16, "epochs": 6, "graph_s": 0.01, "task_s": 0.1, "workers": 4}
    times = {mode: sum(run(mode=mode, **common).epoch_s) for mode in ("nopipe", "pipe", "async")}
    graph, tasks = 5 * 16 * 0.01, 3 * 4 * 0.1  # per epoch; four workers take four rounds of each task
    assert times["nopipe"] == pytest.approx(6 * (graph + tasks))
    assert times["nopipe"] > times["pipe"] >= times["async"] > 6 * max(graph, tasks) - 1e-6


@settings(max_examples=25)
@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 3),
    st.sampled_from([("pipe", 0), ("nopipe", 0), ("async", 0), ("async", 2)]),
    st.floats(0, 0.2), st.integers(0, 1000),
)  # fmt: skip
def test_all_epochs_end(machines: int, intervals: int, layers: int, mode: Any, kill: float, seed: int) -> None:
    scenario = PipelineScenario(
        machines=machines, intervals=intervals, layers=layers, mode=mode[0], staleness=mode[1], kill=kill, seed=seed,
        epochs=4, jitter_s=0.3, rtt_s=0.02, start_s=0.5, max_relaunch=50,
    )  # fmt: skip
    found = simulate_pipeline(scenario)
    assert len(found.epoch_s) == 4
    assert all(seconds >= 0 for seconds in found.epoch_s)
    assert found.oldest <= (mode[1] + 1 if mode[0] == "async" else 0)
    assert found == simulate_pipeline(scenario), "the same scenario, the same figures"
    assert kill > 0 or found.lost == 0


def test_hundreds_of_workers_die_and_the_job_goes_on() -> None:
    found = run(machines=2, intervals=100, workers=100, epochs=2, kill=0.1, jitter_s=0.05, max_relaunch=20)
    assert found.lost > 60
    assert found.relaunched >= 0.9 * found.lost
    assert found.workers <= 200
    with pytest.raises(AttaError, match="had no result after 2 relaunches"):
        run(kill=0.95, max_relaunch=2)


def test_scenarios_that_make_no_sense_are_refused() -> None:
    for options, words in (
        ({"machines": 0}, "machines must be at least 1"),
        ({"kill": 1.0}, "some workers must live"),
        ({"link": 0.0}, "must carry something"),
        ({"graph_s": float("nan")}, "graph_s nan is out of range"),
        ({"mode": "pipe", "staleness": 2}, "goes with mode=async"),
        ({"layers": 0}, "0 layers"),
    ):
        with pytest.raises(ConfigError, match=words):
            PipelineScenario(**options)


def test_the_command_shows_what_the_function_returns() -> None:
    words = "--strategy dorylus:intervals=4,mode=pipe,jitter=20ms,worker-link=20mbit,task-bytes=10KiB --machines 2 " \
        "--rtt 2ms --epochs 3 --seed 5"  # fmt: skip
    done = CliRunner().invoke(simulate, [*words.split(), "--json", "-"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    common = {"machines": 2, "intervals": 4, "epochs": 3, "seed": 5}
    wanted = run(mode="pipe", jitter_s=0.02, rtt_s=0.002, link=20e6 / 8, task_bytes=10240, **common)
    assert shown["outcome"] == dataclasses.asdict(wanted)
    assert "s per epoch after the first" in CliRunner().invoke(simulate, words.split()).output


def test_options_that_do_not_go_together_are_refused() -> None:
    for words, said in (
        ("--intervals 4", "--intervals: is a setting of dorylus: --strategy dorylus:intervals=VALUE"),
        ("--strategy dorylus --profile x", "--strategy needs no profile"),
        ("--strategy dorylus --cores 2 --sweep cores=1,2", "--cores, --sweep: does not go with --strategy"),
        ("--strategy dorylus --policy fifo --instances x", "--policy, --instances: does not go with --strategy"),
        ("--strategy dorylus:workers=0", "0 is not in the range"),
    ):
        done = CliRunner().invoke(simulate, words.split())
        assert done.exit_code == 2
        assert said in done.output


def plan(tmp_path: Path, **changed: Any) -> tuple[Path, Forecast]:
    model, rates = PlannedModel("gcn", 3, 32, 16), Rates(vertices=2e4, edges=3e5, internal=1e9, external=1e9)
    forecaster = Forecaster(SIZES, Machines(2, 1), model, rates)
    figures = {name: None if value == math.inf else value for name, value in vars(rates).items()}
    document = {
        "machines": {"servers": 2}, "network": vars(model), "sizes": {"exchanged": vars(SIZES.exchanged)},
        "rates": figures,
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(document | changed))
    return tmp_path / "plan.json", next(dorylus_forecasts(forecaster))


@pytest.mark.parametrize("intervals", [1, 5])
def test_where_nothing_overlaps_a_plan_and_its_simulation_agree(tmp_path: Path, intervals: int) -> None:
    file, planned = plan(tmp_path)
    costs = planned_costs(file, intervals)
    assert (costs["machines"], costs["layers"]) == (2, 3)
    found = run(intervals=intervals, workers=1, mode="nopipe", epochs=3, **costs)
    assert found.epoch_s == pytest.approx([planned.compute] * 3)
    rows = 3 * SIZES.exchanged.vertices * HANDED  # of an epoch, to workers or from them
    assert 2 * costs["task_bytes"] * intervals * 5 == pytest.approx(rows * 32 * 4)


def test_the_command_takes_what_a_plan_tells_but_for_what_is_given(tmp_path: Path) -> None:
    file, _ = plan(tmp_path)
    report = tmp_path / "out.json"
    asked = ["--strategy", f"dorylus:plan={file},intervals=2,graph=7ms", "--json", str(report)]
    done = CliRunner().invoke(simulate, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(report.read_text())["scenario"]
    costs = planned_costs(file, 2)
    assert found["graph_s"] == 0.007
    assert all(found[name] == costs[name] for name in ("layers", "task_s", "task_bytes"))
    with pytest.raises(DataError, match="cannot read the plan"):
        planned_costs(tmp_path / "none.json", 4)
    for changed in ({"rates": 5}, {"network": {}}, {"sizes": {}}, {"machines": {"servers": "x"}}):
        with pytest.raises(DataError, match="is not a file of `atta plan"):
            planned_costs(plan(tmp_path, **changed)[0], 4)
