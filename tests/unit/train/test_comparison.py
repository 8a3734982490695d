"""Runs beside each other: groups, spread, and tests over seeds, each against a count or a formula of its own."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import t

from atta.cli.main import cli
from atta.errors import ConfigError, DataError
from atta.train import TrainConfig, TrainReport
from atta.train.reports.comparison import compare_runs, differences, read_report
from tests.unit.train.test_reports import epochs


def report(best: float, seed: int = 0, count: int = 3, **settings: Any) -> TrainReport:
    """Its best epoch is the middle one."""
    values = [best - 0.25, best, best - 0.125][:count]
    told = [
        replace(e, remote_bytes=1024.0, exchanged_bytes=1.0).evaluated({"val_accuracy": v, "test_accuracy": v - 0.0625})
        for e, v in zip(epochs([None] * count), values, strict=True)
    ]
    return TrainReport(TrainConfig(data="x", seed=seed, checkpoint=f"runs/{seed}", **settings), told)


def welch(a: list[float], b: list[float]) -> float:
    """Two-sided p, by the formulas of Welch and Satterthwaite."""
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return 2 * float(t.sf(abs(statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(va + vb), freedom))


def test_p_is_that_of_welch_times_the_number_of_tests() -> None:
    rng = np.random.default_rng(3)
    groups = [rng.normal(mean, 0.02, n).tolist() for mean, n in ((0.8, 4), (0.83, 3), (0.81, 6), (0.9, 5))]
    first, *others = differences(groups)
    assert (first.p, first.gain) == (None, None)
    wanted = [min(1.0, 3 * welch(group, groups[0])) for group in groups[1:]]
    assert [other.p for other in others] == pytest.approx(wanted)
    assert [other.gain for other in others] == pytest.approx([np.mean(g) - np.mean(groups[0]) for g in groups[1:]])
    assert differences(groups[:2])[1].p == pytest.approx(welch(groups[1], groups[0]))


def test_where_there_is_no_test_the_reason_is_told() -> None:
    some, few, same = [0.5, 0.625, 0.75], [0.5, 0.625], [0.5, 0.5, 0.5]
    _, second, third, last = differences([some, few, some, []])
    assert "too few seeds: 2 and 3" in second.said
    assert (second.p, second.gain) == (None, 0.5625 - 0.625)
    assert third.p == 1.0, "the only test that is made needs no correction"
    assert (last.p, last.gain, last.said) == (None, None, "no figure")
    assert [d.said for d in differences([same, same])] == ["the first", "no spread over seeds"]
    assert [d.p for d in differences([few])] == [None]


def test_runs_that_differ_only_in_the_seed_are_a_group() -> None:
    reports = {f"a{n}": report(0.5 + 0.125 * n, n) for n in range(3)}
    reports |= {f"b{n}": report(0.75, n, lr=0.5, num_neighbors=(9, 9)) for n in range(2)} | {
        "b1 again": report(0.25, 1, lr=0.5, num_neighbors=(9, 9))
    }
    found = compare_runs(reports)
    assert [group.name for group in found.groups] == ["lr=0.01 num-neighbors=15,10,5", "lr=0.5 num-neighbors=9,9"]
    first, second = found.groups
    assert [*first.reports] == ["a0", "a1", "a2"]
    assert first.spread("validation") == [0.625, 0.125]
    assert first.spread("last") == [0.5, 0.125]
    assert first.spread("bytes") == [3 * 1025.0, 0.0]
    assert second.by_seed("test") == [0.6875, 0.4375], "a repeated seed counts once"
    assert found.compared == "test"
    assert "too few seeds: 2 and 3" in found.differences[1].said
    told = report(0.5)
    told.config = replace(told.config, data=None, cluster="c.toml")
    assert [group.name for group in compare_runs({"a": told, "b": report(0.5)}).groups] == ["cluster=c.toml", "data=x"]
    patient = {"a": report(0.5, patience=3), "b": report(0.5)}
    assert [group.name for group in compare_runs(patient).groups] == ["patience=3", "no patience"]
    (alone,) = compare_runs({"a": report(0.5)}).groups
    assert (alone.name, alone.spread("test")) == ("all runs", [0.4375])


def test_the_command_prints_writes_and_draws(tmp_path: Path) -> None:
    files = []
    for name, settings, best in (("a", {}, 0.5), ("b", {"hidden": 64}, 0.75)):
        for seed in range(3):
            files.append(str(tmp_path / f"{name}{seed}.json"))
            text = json.dumps(report(best + 0.01 * seed**2, seed, **settings).to_json())
            Path(files[-1]).write_text(text)
    pytest.importorskip("matplotlib")
    plot = ["--plot", str(tmp_path / "p.png"), "--json", str(tmp_path / "c.json")]
    done = CliRunner().invoke(cli, ["compare", *files, *plot], catch_exceptions=False)
    document = json.loads((tmp_path / "c.json").read_text())
    first, second = document["groups"]
    a, b = ([run["test"] for run in group["runs"].values()] for group in (first, second))
    assert second["against_first"]["p"] == pytest.approx(welch(a, b))
    assert first["mean_and_deviation"]["validation"][1] == pytest.approx(statistics.stdev([0.5, 0.51, 0.54]))
    assert [run["seed"] for run in first["runs"].values()] == [0, 1, 2]
    for text in ("hidden=256", "hidden=64", f" {welch(a, b):.3g} ", "76.67 ± 2.08 %", "+25.00 points"):
        assert text in done.output
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    alone = CliRunner().invoke(cli, ["compare", files[0]], catch_exceptions=False).output
    assert "50.00 % " in alone
    assert "bytes" in alone


def test_bytes_have_no_column_where_none_were_sent(tmp_path: Path) -> None:
    told = report(0.5)
    told.epochs = [replace(e, remote_bytes=0.0, exchanged_bytes=0.0) for e in told.epochs]
    (tmp_path / "r.json").write_text(json.dumps(told.to_json()))
    shown = CliRunner().invoke(cli, ["compare", str(tmp_path / "r.json")], catch_exceptions=False).output
    assert "50.00 %" in shown
    assert "bytes" not in shown


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "json: Expecting property"),
        ("[]", "or one of another version of Atta$"),
        ('{"epochs": 3}', "or one of another version of Atta$"),
        ('{"schema": 1, "config": {}, "epochs": [], "restarts": 0}', "give either --data"),
        (json.dumps({**report(0.5).to_json(), "epochs": []}), "without an epoch"),
        (json.dumps({**report(0.5).to_json(), "epochs": [{"epoch": 1}]}), "or one of another version of Atta$"),
        (json.dumps({**report(0.5).to_json(), "schema": 2}), "its schema is 2, and this Atta reads 1"),
        (json.dumps({**(told := report(0.5).to_json()), "config": {**told["config"], "pace": 3}}), "unknown .*pace"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(DataError, match=said):
        read_report(tmp_path / "r.json")


def test_folders_and_other_metrics_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder without a report\.json, which atta train --checkpoint writes"):
        read_report(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        read_report(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="b: is judged by val_mse, a by val_accuracy"):
        compare_runs({"a": report(0.5), "b": report(0.5, task="regression")})
