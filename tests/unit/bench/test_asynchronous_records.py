"""bench/train/asynchronous.py: bounds, chosen learning rates, and what the commands run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atta_bench.train import asynchronous as script


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


def test_commands_are_those_of_the_comparison() -> None:
    stop = script.StopPattern(script.STRAGGLER, 0.9, 1.0)
    straggler = script.straggler_bench(Path("d"), 2, {"digest": 0.1, "digest-async": 0.03}, target=0.8, stop=stop)
    assert straggler.stop == stop
    assert {side: straggler.settings(side)["lr"] for side in script.SIDES} == {"digest": 0.1, "digest-async": 0.03}
    modes = script.dorylus_bench(Path("d"), 0, 0.8, layers=3)
    assert modes.names == ("nopipe", "pipe", "async", "async-s1", "exchange")
    assert modes.worker_faults == script.FAULTS
    assert modes.settings("async-s1")["staleness"] == 1
    assert modes.settings("pipe")["layers"] == 3


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
