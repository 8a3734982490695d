"""The record of the simulator: settings, forecasts, and the file for people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atta.simulate import LoopCosts, simulate
from atta_bench.loader import simulated
from tests.unit.simulate.scenarios import PROFILE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "FORECAST_MACHINES", (2, 20))
    monkeypatch.setattr(simulated, "FORECAST_LINKS", ("100mbit", "100gbit"))
    monkeypatch.setattr(simulated, "FORECAST_BATCHES", 15)


def test_forecasts_say_what_limits_larger_clusters(tmp_path: Path) -> None:
    loop = LoopCosts(batch_us=100, task_us=50, request_us=300, answer_us=300)  # a busy loop where owners are many
    scenarios = simulated.forecast_scenarios(replace(PROFILE, loop=loop))
    forecasts = simulated.forecast(scenarios, list(map(simulate, scenarios)))
    assert [(cast["machines"], cast["link"]) for cast in forecasts] == [
        (2, "100mbit"), (20, "100mbit"), (2, "100gbit"), (20, "100gbit"),
    ]  # fmt: skip
    slow, _, *fast = (cast["limit"] for cast in forecasts)
    assert [slow, *fast] == ["link", "cores", "event loop"]
    assert forecasts[0]["seeds_per_s"] < forecasts[2]["seeds_per_s"]
    cpu = {"measured_cpu_us": 61.5, "simulated_cpu_us": 63.0}
    clusters = [
        {"name": "2 machines", "machines": 2, "measured": 1000.0, "simulated": 1100.0, **cpu},
        {"name": "4 machines", "machines": 4, "measured": 1000.0, "simulated": 800.0, **cpu},
    ]
    simulated.record(clusters, forecasts, "typed", tmp_path)
    text = (tmp_path / "simulated.md").read_text()
    assert "| 2 machines | 1,000 | 1,100 | +10.0% | 61.5 | 63.0 |" in text
    assert "Within 15%: 1 of 2; median error 15.0%" in text
    assert "| 2 | 1 of 1 | 10.0% | +10.0% |" in text
    assert "| 4 | 0 of 1 | 20.0% | -20.0% |" in text
    last = forecasts[-1]
    assert f"| 20 | 100gbit | {last['seeds_per_s']:,.0f} |" in text
    assert f"| event loop, {last['limit_busy']:.0%} |" in text


@pytest.mark.parametrize("machines", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8))])
def test_settings_can_be_simulated(machines: int) -> None:
    setting = next(s for s in simulated.SETTINGS if s.machines == machines and s.link)
    assert simulate(simulated.scenario(setting, replace(PROFILE, parts=machines), epochs=2)).seeds_per_s > 0
    assert len({s.name for s in simulated.SETTINGS}) == len(simulated.SETTINGS)
