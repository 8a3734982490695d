"""``atta simulate`` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from atta.cli.main import cli
from atta.errors import AttaError, ConfigError, DataError
from atta.simulate.profile import save_profile
from tests.unit.simulate.scenarios import PROFILE


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    save_profile(path, PROFILE)
    return str(path)


def run(*words: str) -> str:
    return CliRunner().invoke(cli, ["simulate", *words], catch_exceptions=False, standalone_mode=False).output


def test_table_and_json(profile: str, tmp_path: Path) -> None:
    words = ("--profile", profile, "--machines", "3", "--link", "1gbit", "--rtt", "2ms", "--batches", "5", "--json")
    shown = run(*words, str(tmp_path / "one.json"))
    assert "seeds/s" in shown
    assert "3 machines" in shown
    assert run(*words, "-") == (tmp_path / "one.json").read_text(), "the same scenario writes the same file"
    (only,) = json.loads((tmp_path / "one.json").read_text())["runs"]
    assert only["results"]["seeds_per_s"] > 0
    assert only["config"]["link"] == 1.25e8
    assert only["config"]["cores"] == PROFILE.cores
    (only,) = json.loads(run("--profile", profile, "--batches", "3", "--json", "-"))["runs"]
    assert only["config"]["machines"] == PROFILE.parts
    assert only["config"]["scheduler"]["workers"] == PROFILE.cores
    assert only["config"]["link"] is None


def test_the_limit_is_named_for_every_column(profile: str) -> None:
    words = ("--profile", profile, "--machines", "2", "--batches", "30", "--sweep", "link=50mbit,100gbit")
    runs = json.loads(run(*words, "--cores", "2", "--json", "-"))["runs"]
    assert [r["results"]["limit"] for r in runs] == ["link", "cores"]
    (line,) = (line for line in run(*words, "--cores", "2").splitlines() if "limited by" in line)
    assert [f"{r['results']['limit']}, {r['results']['limit_busy']:.0%}" in line for r in runs] == [True, True]


def test_sixty_four_machines_of_a_profile_of_two(profile: str) -> None:
    words = ("--profile", profile, "--batches", "1", "--json", "-", "--machines")
    two, many = (json.loads(run(*words, machines))["runs"][0] for machines in ("2", "64"))
    assert many["config"]["peers"] == 16
    assert two["results"]["requests_per_batch"] == 5
    assert many["results"]["requests_per_batch"] == pytest.approx(5 * 63, rel=0.01)
    assert many["results"]["link_bytes_per_batch"] == pytest.approx(
        2 * (63 / 64) * two["results"]["link_bytes_per_batch"], rel=0.1
    )


def test_more_batches_than_an_epoch_has_are_warned_of(profile: str) -> None:
    words = ("--profile", profile, "--batch-size", "100000", "--machines", "2", "--batches")
    assert "warning" not in run(*words, "5")
    assert "an epoch of 1,000,000 seeds has only 5 batches of 100000 on each of 2 machines" in run(*words, "6")
    assert "warning" not in run(*words, "6", "--quiet")
    (only,) = json.loads(run(*words, "6", "--quiet", "--json", "-"))["runs"]
    assert only["config"]["epoch_batches"] == 5


def test_what_is_not_known_of_other_clusters_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ahead.json"
    save_profile(path, replace(PROFILE, cache_hit=0.4, window=4, aggregate="mean", summed=0.5))
    words, said = (
        ("--profile", str(path), "--batches", "3"),
        "40% of the remote rows are at hand and 0.50 rows and sums",
    )
    assert "not known" not in run(*words, "--machines", "2")
    shown = run(*words, "--machines", "4", "--window", "0")
    assert said in shown
    assert "how that changes with other partitions, --window is not known" in shown
    assert "at hand" not in run(*words, "--machines", "4", "--cache-hit", "0.4")
    assert "not known" not in run(*words, "--machines", "4", "--quiet")


@pytest.mark.parametrize(("option", "values"), [
    ("cores", "1,2"), ("policy", "two-level,sequential"), ("link", "100mbit,1gbit"), ("rtt", "1ms,10ms"),
    ("train-ms", "0,25.5"), ("cache-hit", "0,0.5,1"), ("window", "0,4"), ("batch_size", "256,512"),
])  # fmt: skip
def test_sweeps(profile: str, option: str, values: str) -> None:
    words = ("--profile", profile, "--batches", "4", "--sweep", f"{option}={values}")
    document = json.loads(run(*words, "--json", "-"))
    assert [r["value"] for r in document["runs"]] == values.split(",")
    assert document["simulate"] == option.replace("_", "-")
    results = [r["results"] for r in document["runs"]]
    assert results[0] != results[1]
    assert f"{document['simulate']} {values.split(',', maxsplit=1)[0]}" in " ".join(run(*words).split())


@pytest.mark.parametrize(("words", "error", "said"), [
    (("--sweep", "polcy=a"), ConfigError, "did you mean 'policy'"),
    (("--sweep", "cores"), ConfigError, "write it like"),
    (("--sweep", "cores=one"), ConfigError, "--sweep cores=one: 'one' is not"),
    (("--sweep", "cores=0"), ConfigError, "--sweep cores=0: 0 is not in the range x>=1"),
    (("--policy", "fastest"), ConfigError, "unknown scheduling policy"),
    (("--profile", "absent.json"), DataError, "cannot read"),
])  # fmt: skip
def test_wrong_options(profile: str, words: tuple[str, ...], error: type[AttaError], said: str) -> None:
    with pytest.raises(error, match=said):
        run("--profile", profile, *words)


def test_needs_a_profile_or_something_to_measure() -> None:
    for words in ((), ("--measure", "data/x")):
        with pytest.raises(click.UsageError, match="--out"):
            run(*words)


@pytest.mark.parametrize(("words", "said"), [
    ("--split nope --data nowhere --out {out}", "--out, --data, --split: goes with --measure"),
    ("--aggregate mean --cache-share 5", "--aggregate, --cache-share: goes with --measure"),
    ("--epochs 2", "--epochs: goes with --measure and --strategy"),
    ("--cores 2 --sweep cores=1,2", "--cores: --sweep cores varies it"),
    ("--num-neighbors 5 --batch-size 2 --sweep batch_size=1,2", "--batch-size: --sweep batch-size varies it"),
    ("--policy fifo --prefetch 3", "--prefetch: the depth goes with --policy prefetch"),
    ("--sweep policy=fifo,two-level --prefetch 4", "--prefetch: the depth goes with --policy prefetch"),
    ("--sweep prefetch=1,2", "--sweep: the depth goes with --policy prefetch"),
])  # fmt: skip
def test_options_that_say_nothing_of_a_scenario_are_refused(
    profile: str, tmp_path: Path, words: str, said: str
) -> None:
    with pytest.raises(click.UsageError, match=said):
        run("--profile", profile, *words.format(out=tmp_path / "out.json").split())


def test_a_depth_goes_with_a_policy_that_has_one(profile: str) -> None:
    words = ("--profile", profile, "--batches", "2", "--json", "-")
    for more in ("--policy prefetch --sweep prefetch=1,2", "--prefetch 3 --sweep policy=fifo,prefetch"):
        assert len(json.loads(run(*words, *more.split()))["runs"]) == 2


@pytest.mark.parametrize(("words", "said"), [
    ("--machines 2 --share-pulls", "--machines, --share-pulls/--no-share-pulls: does not go with --measure"),
    ("--cache-rank recent --window 2", "--window, --cache-rank: needs --cache-share"),
    ("--json -", "--json: does not go with --measure"),
    ("--data {here}", "--data: goes with --measure CLUSTER"),
])  # fmt: skip
def test_options_of_scenarios_are_refused_before_anything_is_measured(tmp_path: Path, words: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        run("--measure", str(tmp_path), "--out", str(tmp_path / "p.json"), *words.format(here=tmp_path).split())
    with pytest.raises(click.UsageError, match="--threads: goes with --measure DATASET"):
        run("--measure", "cluster.toml", "--out", str(tmp_path / "p.json"), "--threads", "2")
    with pytest.raises(AttaError, match="--aggregate: needs the dataset"):
        run("--measure", "cluster.toml", "--out", str(tmp_path / "p.json"), "--aggregate", "mean")
