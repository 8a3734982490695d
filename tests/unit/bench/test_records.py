"""What the records of benchmarks compute from their runs, and what they run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atta.cli.train import train
from atta.errors import ConfigError
from atta.simulate.cluster import simulate
from atta.simulate.profile import LoopCosts
from atta.train import Nodes, TrainConfig
from atta_bench import claims
from atta_bench.chaos import command as reliability
from atta_bench.claims import CLAIMS, ROOT, Claim, shown
from atta_bench.loader import simulated
from atta_bench.train import asynchronous as script
from atta_bench.train import memory
from atta_bench.train.killed import account, lives, wrong_steps
from atta_bench.train.stale import differences, ratios, verdicts
from tests.unit.simulate.scenarios import PROFILE


def figures(**changed: float) -> dict[str, float]:
    return {"test_accuracy": 0.8, "mean_epoch_seconds": 1.0, **changed}


def test_a_side_takes_the_learning_rate_that_is_soonest_or_else_the_most_accurate() -> None:
    tuned = {
        0.01: {"a": figures(seconds_to_target=9.0), "b": figures(test_accuracy=0.6)},
        0.03: {"a": figures(seconds_to_target=4.0), "b": figures(test_accuracy=0.7)},
        0.1: {"a": figures(test_accuracy=0.9), "b": figures(test_accuracy=0.5)},
    }
    assert [script.soonest(tuned, side) for side in "ab"] == [0.03, 0.03]


def test_a_bound_is_judged_by_the_median_and_does_not_hold_without_values() -> None:
    made = [{"a": figures(t=x), "b": figures(t=y)} for x, y in ((1.0, 2.0), (3.0, 4.0), (8.0, 9.0))]
    made.append({"a": figures(), "b": figures(t=1.0)})
    values = script.quotients(made, "t", "a", "b")
    assert values == [0.5, 0.75, pytest.approx(8 / 9)]
    assert script.verdict("a / b", values, 0.8, most=True)["holds"]
    assert not script.verdict("a / b", values, 0.8, most=False)["holds"]
    assert not script.verdict("a / b", [], 0.8, most=True)["holds"]
    assert script.median(made, "a", "t") == "3 (1 to 8), 1 without"
    assert script.median(made, "a", "u") == "none"


def test_a_kept_round_is_not_made_again(tmp_path: Path) -> None:
    kept = {"a": figures()}
    (tmp_path / "round.json").write_text(json.dumps(kept))
    assert script.measured(tmp_path / "round.json", script.dorylus_bench(Path("nowhere"), 0, 0.8)) == kept


def test_values_are_of_equally_many_epochs(tmp_path: Path) -> None:
    """2 servers for so many epochs of a second each; workers add as many tasks, of two seconds."""
    epochs = script.DORYLUS_EPOCHS
    systems = [*script.MODES, "exchange"]
    made = [{s: figures(mean_epoch_seconds=1.0 + n) for n, s in enumerate(systems)}]
    made[0]["nopipe"] |= {"pipeline/worker_s": 2.0, "pipeline/tasks": 1.0}
    for found in made[0].values():
        script.add_value(found)
    servers = 2 * 0.432 * epochs / 3600
    workers = 2 * epochs * 0.01125 / 3600 + epochs * 0.2e-6
    assert made[0]["nopipe"]["workers_cost"] == pytest.approx(workers)
    assert made[0]["nopipe"]["value"] == pytest.approx(1 / (epochs * (servers + workers)))
    assert made[0]["pipe"]["value"] == pytest.approx(1 / (2 * epochs * 2 * servers))
    script.record_values(made, ["About."], "command", tmp_path)
    found = json.loads((tmp_path / "async-value.json").read_text())
    assert found["ratios"]["pipe"] == [pytest.approx(4 / 9)]  # epochs of 3 s and of 2 s: time and cost
    assert f"| seconds | {epochs} ({epochs} to {epochs}) |" in (tmp_path / "async-value.md").read_text()


def cell(variant: str, seed: int, test: float) -> dict[str, Any]:
    return {"graph": "sbm", "layers": 3, "variant": variant, "seed": seed, "test": test}


def test_bounds_compare_the_same_seeds_and_predictions_are_judged_when_they_have_settled() -> None:
    cells = [cell("exchange", 0, 80.0), cell("exchange", 1, 70.0), cell("exchange", 2, 90.0)]
    cells += [cell("digest-10", 0, 79.0), cell("digest-10", 2, 86.0), cell("digest-10", 7, 10.0)]
    assert differences(cells, "sbm", 3, "digest-10", "exchange") == [-1.0, -4.0]
    (found,) = verdicts(cells)
    assert (found["median"], found["least"], found["holds"]) == (-2.5, -2.5, True)
    cells += [cell("pipegcn", 1, 60.0) | {"said": "warning: many points"}, cell("full", 1, 60.0)]
    held = {(v["variant"], v["or_said"]): (v["holds"], v["said"]) for v in verdicts(cells)}
    assert held["pipegcn", False] == held["full", True] == (False, "")
    assert held["pipegcn", True] == (True, "warning: many points")
    # Fifteen synchronisations every 10 epochs are over after epoch 150.
    run = {"errors": [(150, 1, 9.0, 1.0), (160, 1, 1.0, 2.0), (160, 2, 3.0, 4.0), (170, 1, 3.0, 4.0)]}
    assert ratios(run) == {1: (0.5 + 0.75) / 2, 2: 0.75}


def marks(began: float, at: tuple[int, int] | None, steps: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """A process that took 0.1 s to start, 2 s for imports, 0.5 s for the process group."""
    found: list[dict[str, Any]] = [
        {"mark": "begins", "t": began, "imports": 0.0, "spawned": began - 0.1, "began": began},
        {"mark": "joins", "t": began + 2.0, "imports": 1.5},
        {"mark": "joined", "t": began + 2.75, "imports": 1.75},
    ]
    if at is not None:
        found.append({"mark": "loaded", "t": began + 3.0, "imports": 2.0, "epoch": at[0], "step": at[1]})
    return found + [{"mark": "stepped", "t": t, "imports": 2.0, "digest": digest} for t, digest in steps]


BEFORE = marks(100.0, None, [(104.0 + step, str(step)) for step in range(1, 14)])
AFTER = marks(120.0, (1, 2), [(124.0, "11"), (125.0, "12"), (126.0, "13"), (127.0, "14")])
EPOCH_STEPS = 8


def test_the_time_after_a_kill_is_divided_whole_and_steps_are_compared() -> None:
    assert lives([], EPOCH_STEPS) == []
    first, second = lives([*BEFORE, *AFTER], EPOCH_STEPS)
    assert (first.first, first.last, second.first, second.last) == (1, 13, 11, 14)
    kill = account(1, 117.5, 118.0, first, second)
    assert (kill.rank, kill.step, kill.again) == (1, 13, 3)
    assert kill.total == pytest.approx(127.0 - 117.5)
    assert (kill.imports, kill.group, kill.repeating) == pytest.approx((2.0, 0.5, 3.0))
    assert kill.own + kill.interpreter + kill.imports + kill.group == pytest.approx(kill.total)
    found = lives([*BEFORE, *AFTER], EPOCH_STEPS)
    expected = [str(step) for step in range(1, 15)]
    assert wrong_steps(found, expected) == 0
    assert wrong_steps(found, [*expected[:11], "other", *expected[12:]]) == 2  # step 12 was done twice


def document(seed: int, **changes: Any) -> dict[str, Any]:
    kill = {"kind": "kill", "target": "daemon-0", "in_use": True, "pause_s": 4.0, "serves_s": 3.0}
    return {
        "settings": {"seed": seed, "parts": 2, "replicas": 1, "consumers": 2, "folder": "FOLDER"},
        "command": f"atta chaos --seed {seed}", "load_average": [float(seed), 1.0, 1.0], "batches": 10, "steps": 4,
        "repeated_steps": 1, "starts": {"daemon-0": 2}, "errors": {"RemoteError": 1}, "violations": [], "lives": [],
        "faults": [
            {**kill, "after_serving_s": 0.5}, {**kill, "after_serving_s": 2.5}, {**kill, "in_use": False},
            {"kind": "stop", "target": "daemon-1", "in_use": True, "pause_s": 6.0},
        ], **changes,
    }  # fmt: skip


def test_several_runs_make_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.json").write_text(json.dumps(document(seed)))
    words = ["reliability", "--out", str(tmp_path), "--name", "both", *(str(tmp_path / f"{n}.json") for n in (1, 2))]
    monkeypatch.setattr("sys.argv", words)
    reliability.main()
    text, found = (tmp_path / "both.md").read_text(), json.loads((tmp_path / "both.json").read_text())
    assert "`atta chaos --seed 1|2`" in text
    assert "Batches checked: 20. Steps of the trainer checked: 8, of which 2 again" in text
    assert "went on after: 2 RemoteError" in text
    assert "| kill, daemon in use | 4 | 4 | 4.0 | 4.0 | 4.0 |" in text
    assert "| stop, daemon in use | 2 | 0 | 6.0 | 6.0 | 6.0 |" in text
    assert "served again after 3.0 s (median; at most 3.0 s)" in text
    assert "| daemon in use | 4 | 2 | 1.5 | 2.5 | 2.5 |" in text
    assert found["settings"]["seed"] == [1, 2]
    assert "folder" not in found["settings"]
    assert len(found["faults"]) == 8
    assert "Without a replica" in text
    with_replica = document(1)
    with_replica["settings"]["replicas"] = 2
    assert not any("Without a replica" in line for line in reliability.report(with_replica))


def test_forecasts_say_what_limits_larger_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "FORECAST_MACHINES", (2, 20))
    monkeypatch.setattr(simulated, "FORECAST_LINKS", ("100mbit", "100gbit"))
    monkeypatch.setattr(simulated, "FORECAST_BATCHES", 15)
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


@pytest.mark.slow
@pytest.mark.parametrize("machines", [2, 4, 8])
def test_settings_can_be_simulated(machines: int) -> None:
    setting = next(s for s in simulated.SETTINGS if s.machines == machines and s.link)
    assert simulate(simulated.scenario(setting, replace(PROFILE, parts=machines), epochs=2)).seeds_per_s > 0
    assert len({s.name for s in simulated.SETTINGS}) == len(simulated.SETTINGS)


ONE = Claim("X1", "a claim", "2 x", 1.5, True, lambda work: 2.0)


def test_bounds_of_claims_hold_on_their_side_and_stand_in_the_table() -> None:
    least, most = replace(ONE, least=True), replace(ONE, least=False)
    assert [shown(least, figure).reached for figure in (1.5, 1.49, float("nan"))] == [True, False, False]
    assert [shown(most, figure).reached for figure in (1.5, 1.51)] == [True, False]
    table = (ROOT / "bench/results/claims.md").read_text()
    rows = re.findall(r"^\| (\w\d) \|", table, re.MULTILINE)
    short = [claim.id for claim in CLAIMS]
    assert sorted(set(short)) == sorted(short)
    assert set(short) <= set(rows)
    assert f"`make claims` repeats {', '.join(short[:-1])} and {short[-1]}" in table


def test_a_missed_bound_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = replace(ONE, id="X2", measure=lambda work: float(work.exists()))
    monkeypatch.setattr(claims, "CLAIMS", (ONE, missed))
    assert claims.main(["--only", "X1", "--strict"]) == 0
    assert claims.main(["--json", str(tmp_path / "f.json")]) == 0
    assert claims.main(["--only", "X2", "--strict"]) == 1
    out = capsys.readouterr().out
    assert "| X2 | a claim | 2 x | at least 1.5 | 1.0 | NO |" in out
    assert [one["reached"] for one in json.loads((tmp_path / "f.json").read_text())["claims"]] == [True, False]
    assert claims.main(["--list"]) == 0
    assert capsys.readouterr().out == "X1  a claim\nX2  a claim\n"
    with pytest.raises(SystemExit):
        claims.main(["--only", "Z9"])


def test_the_same_training_vertices_per_step() -> None:
    shape = memory.Shape(nodes=5000, edges=10, features=3)  # 2000 training vertices
    assert shape.batch == 1000
    each = TrainConfig(data="x", **memory.options("minibatch", 28, shape.batch))
    assert each.batch_size * each.trainers == 1000
    shared = TrainConfig(data="x", **memory.options("cooperative", 28, shape.batch))
    assert 2000 / (shared.co_batches or 0) == 1000
    assert (each.depth, each.hidden, each.model) == (shared.depth, shared.hidden, shared.model)


@pytest.mark.parametrize("strategy", ["minibatch", "cooperative"])
def test_the_command_has_the_same_settings(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    seen: list[TrainConfig] = []

    def fit(config: TrainConfig, nodes: Nodes, so_far: object) -> None:
        assert nodes == Nodes()
        seen.append(config)
        raise ConfigError("seen enough")

    monkeypatch.setattr("atta.train.fit", fit)
    monkeypatch.setattr(TrainConfig, "check_named", lambda _: None)
    settings = memory.options(strategy, 28, 1000)
    CliRunner().invoke(train, ["--data", "x", *memory.as_arguments(settings)])
    assert seen == [TrainConfig(data="x", **settings)]
