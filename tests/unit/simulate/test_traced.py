"""A profile from a trace: sizes and costs of an invented cluster, and faults of a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from atta.errors import DataError
from atta.observe.recording import Entry, Recording, SessionMark, TaskSpan
from atta.observe.timeline import document, trace_events
from atta.samplers.dag.instance import OTHERS
from atta.simulate import Scenario, simulate
from atta.simulate.traced import TYPICAL, profile_of_trace

ROW = 40.0
"""Number of bytes of a row.

Each batch has 10 seeds at home, then 20 vertices at home and 30 of the other owner. Of these 30, 12 are in the cache.
"""


def task(
    kind: str, op: str, cost: float, us: float, *, dag: int, moved: tuple[int, int] | None = None, cached: int = 0
) -> TaskSpan:
    lane, owner, owners = ("cpu", 0, "") if moved is None else ("net", OTHERS, "1")
    rows, nbytes = moved or (0, 0)
    start = float(dag)
    of = ("session-name", dag, dag, kind, op, lane, owner, 0, 1, cost, rows, nbytes, cached, 0, "done", owners)
    return TaskSpan(start + 1e-6 * us, start, start, *of)


def batch(dag: int, larger: float = 1.0) -> list[Entry]:
    return [
        task("seed", "seed", 0.0, 50.0, dag=dag),
        task("feature", "feature0", 10 * ROW, 30.0, dag=dag),
        task("neighborhood", "nbr1", 160.0, 100 + 160 * 0.5, dag=dag),
        task("join", "nbr1", 50.0, 25.0, dag=dag),
        task("feature", "feature1", (20 * larger + 12) * ROW, 30.0, dag=dag, cached=12),
        task("feature", "feature1", 18 * ROW, 900.0, dag=dag, moved=(18, round(18 * ROW))),
        task("end", "", 0.0, 10.0, dag=dag),
    ]


def write(path: Path, *recordings: list[Entry], cores: int = 4) -> Path:
    made = [Recording(part, f"host:{part}", 99.0, 0, 1000, False, tuple(e)) for part, e in enumerate(recordings)]
    path.write_text(document(trace_events(made), {"cores": cores}))
    return path


OPENED = SessionMark(0.0, "opened", "session-name", "job", 3, 50, 10, "5")


def test_sizes_and_costs(tmp_path: Path) -> None:
    unfinished = batch(9)[:3]
    path = write(tmp_path / "t.json", [OPENED, *batch(1), *batch(2), *unfinished], [])
    profile = profile_of_trace(path)
    assert (profile.batch_size, profile.fan_outs, profile.parts, profile.cores) == (10, (5,), 2, 4)
    assert profile.row_bytes == pytest.approx(ROW)
    assert [hop.new for hop in profile.hops] == pytest.approx([10, 50])
    assert [hop.home for hop in profile.hops] == pytest.approx([1.0, 0.4])
    assert profile.cache_hit == pytest.approx(12 / 30)
    assert profile.degree == pytest.approx(16)
    assert profile.spread == 0
    assert profile.local["join"].fixed_us + 50 * profile.local["join"].us_per_unit == pytest.approx(25)
    feature = profile.remote["feature"]
    assert feature.answer_bytes == pytest.approx(1.0)
    assert feature.request_bytes == pytest.approx(4 / ROW)
    assert feature.receive.fixed_us == pytest.approx(6)
    assert feature.receive.us_per_unit == pytest.approx(0.0005)
    assert feature.serve.us_per_unit == pytest.approx(profile.local["feature"].us_per_unit + 0.0005)
    assert profile.batch_us == pytest.approx(1900)
    assert profile.batch_bytes == pytest.approx(60 * (ROW + 8) + 24 * 50)
    assert profile.loop == TYPICAL.loop
    assert profile.measured["batches"] == 2
    outcome = simulate(Scenario(profile, batches=5))
    assert outcome.link_bytes_per_batch == pytest.approx(18 * (ROW + 4), rel=0.01)


def test_batches_of_different_sizes_spread(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [OPENED, *batch(1), *batch(2, larger=3.0)])
    assert profile_of_trace(path).spread == pytest.approx(
        0.5 * abs(math.log((10 + 20 + 30) / (10 + 60 + 30))), rel=1e-6
    )


def test_of_several_jobs_the_one_with_most_batches_counts(tmp_path: Path) -> None:
    other = SessionMark(0.0, "opened", "another-name", "job", 0, 50, 99, "7,7")
    strange = [entry._replace(session="another-name") for entry in batch(5)]  # type: ignore[union-attr, call-arg]
    path = write(tmp_path / "t.json", [OPENED, other, *batch(1), *strange, *batch(2)])
    assert profile_of_trace(path).batch_size == 10


def test_a_trace_that_begins_late_needs_to_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", batch(1))
    with pytest.raises(DataError, match="say --batch-size and --fan-out"):
        profile_of_trace(path)
    assert profile_of_trace(path, batch_size=10, fan_outs=(5,)).hops[1].new == pytest.approx(50)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        ("nothing", "is not a trace"),
        ("[]", "is not a trace"),
        (json.dumps({"traceEvents": []}), "no batch was begun and finished"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=words):
        profile_of_trace(path)


def test_other_loaders_cannot_be_simulated(tmp_path: Path) -> None:
    bare = [task("seed", "seed", 0.0, 5.0, dag=1), task("end", "", 0.0, 5.0, dag=1)]
    with pytest.raises(DataError, match="no batches of NeighborLoader"):
        profile_of_trace(write(tmp_path / "t.json", [OPENED, *bare]))
