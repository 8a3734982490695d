"""Profiles on disk, from counters and from a trace: sizes and costs, and errors that name the fault."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.engine.runner import TaskCosts
from atta.errors import ConfigError, DataError
from atta.observe.recording import Entry, Recording, SessionMark, TaskSpan
from atta.observe.timeline import document, trace_events
from atta.samplers.batch.items import FeatureItem, owners_of
from atta.samplers.dag.instance import OTHERS, Kind, Lane, Task
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.fine import Line
from atta.simulate.cluster import simulate
from atta.simulate.fitting import Measurements, ServedDataset, Waits, profile_of
from atta.simulate.profile import Profile, load_profile, save_profile
from atta.simulate.scenario import Scenario
from atta.simulate.traced import TYPICAL, profile_of_trace
from tests.unit.simulate.scenarios import PROFILE


def spoil(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "p.json"
    save_profile(path, PROFILE)
    document = json.loads(path.read_text())
    for name, value in changes.items():
        *way, last = name.split("__")
        place = document
        for key in way:
            place = place[int(key) if key.isdigit() else key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("changes", "said"), [
    ({"format": "other"}, "is not a profile"),
    ({"version": 2}, "version 2, this release reads version 3"),
    ({"version": None}, "version None"),
    ({"loop__task": 1.0}, "did you mean 'task_us'"),
    ({"loop__task_us": -1}, "loop.task_us is -1"),
    ({"hops": None}, "'hops' is missing"),
    ({"hop": []}, "did you mean 'hops'"),
    ({"aggregate": "max"}, "aggregate is max, must be one of sum, mean, gcn"),
    ({"aggregate": 1}, "aggregate is 1, must be a text"),
    ({"hops__1__home": 1.5}, r"hops\[1\].home is 1.5"),
    ({"hops__1__new": "many"}, r'hops\[1\].new is "many", must be a number'),
    ({"hops__1__new": -1}, r"hops\[1\].new is -1"),
    ({"hops": []}, "must have 4 entries"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"batch_size": 1.5}, "batch_size is 1.5, must be a whole number"),
    ({"batch_size": True}, "batch_size is true"),
    ({"fan_outs": 15}, "fan_outs is 15, must be a list"),
    ({"fan_outs": [15, 0, 5]}, "fan_outs is 0"),
    ({"local__seed__fixed": 1.0}, "did you mean 'fixed_us'"),
    ({"local__jion": {}}, "did you mean 'join'"),
    ({"local__seed": 3}, "local.seed is 3, must be an object"),
    ({"remote__feature__serve__us_per_unit": -0.5}, "remote.feature.serve.us_per_unit is -0.5"),
    ({"cache_hit": 2}, "cache_hit is 2"),
    ({"crowding": 0.5}, "crowding is 0.5, must be at least 1"),
    ({"wake_us": -1}, "wake_us is -1"),
])  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = spoil(tmp_path, **changes)
    with pytest.raises(DataError, match=said) as caught:
        load_profile(path)
    assert caught.value.path == str(path)


def test_a_round_trip_no_file_and_no_json(tmp_path: Path) -> None:
    save_profile(tmp_path / "good.json", PROFILE)
    assert load_profile(tmp_path / "good.json") == PROFILE
    path = tmp_path / "p.json"
    for content, words in ((None, "cannot read"), ("{", "not JSON"), ("[]", "not a profile")):
        if content is not None:
            path.write_text(content)
        with pytest.raises(DataError, match=words):
            load_profile(path)


@pytest.mark.parametrize("options", [
    {"machines": 0}, {"cores": 0}, {"batches": 0}, {"link": 0.0}, {"rtt_s": -1.0}, {"cache_hit": 1.5},
    {"fan_outs": (0,)}, {"train_s": float("inf")}, {"neighbours": 0}, {"peers": 0},
])  # fmt: skip
def test_scenarios_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Scenario(PROFILE, scheduler=SchedulerConfig(), **options)
    with pytest.raises(ConfigError, match="batch_bytes is nan"):
        Profile(1, (), PROFILE.hops[:1], {}, batch_bytes=float("nan"))


SEVERAL = st.lists(st.integers(0, 1000), min_size=2, max_size=20, unique=True)


@given(fixed=st.floats(0, 10), slope=st.floats(0, 10), xs=SEVERAL)
def test_a_line_is_found_again(fixed: float, slope: float, xs: list[int]) -> None:
    found = Line.through((float(x), fixed + slope * x) for x in xs).fit()
    assert found == pytest.approx((fixed, slope), rel=1e-4, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=20))
def test_costs_are_never_negative(points: list[tuple[float, float]]) -> None:
    fixed, slope = Line.through(points).fit()
    assert fixed >= 0
    assert slope >= 0


def test_daemons_sum_by_kind_and_lane_and_lines_fit() -> None:
    costs = TaskCosts()
    here = Task(Kind.NEIGHBORHOOD, "nbr1", 0, 0, 1, Lane.CPU, 10.0)
    there = Task(Kind.NEIGHBORHOOD, "nbr1", OTHERS, 0, 1, Lane.NET, 4.0)
    for task in (here, there):
        costs.ran(task, 0.5)
        costs.answered(task, 100, 3)
    costs.ran(here, 0.7)
    names = ("n", "x", "xx", "y", "xy", "r")
    stats = costs.stats()
    assert [stats[f"cost_neighborhood_cpu_{n}"] for n in names] == pytest.approx([2, 20, 200, 1.2, 12, 0])
    assert [stats[f"cost_neighborhood_net_{n}"] for n in names] == [1, 4, 16, 100, 400, 3]
    assert Line().fit() == Line.through([]).fit() == (0.0, 0.0)
    assert Line.through([(0.0, 2.0), (0.0, 4.0)]).fit() == (3.0, 0.0)
    assert Line.through([(2.0, 2.0), (2.0, 4.0)]).fit() == (0.0, 1.5)


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), max_size=4))
def test_requests_are_the_owners_of_all_items_together(rows_of: list[list[int]]) -> None:
    items = []
    for counts in rows_of:
        starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(starts[-1])
        items.append(FeatureItem("node", ("x",), rows, rows, starts))
    assert owners_of(items) == len({owner for counts in rows_of for owner, rows in enumerate(counts) if rows})


BATCH, REQUEST, BYTE = 3e-3, 1e-3, 2e-9
"""Seconds of other threads on the machine that is measured."""
LOOP_BATCH, LOOP_TASK, LOOP_REQUEST, LOOP_BYTE = 7e-4, 5e-5, 3e-4, 1e-9
"""Seconds of its event loops."""
SESSION, LOOP_SESSION = 8e-3, 4e-3


def seen(
    batches: int, remote: int, owners: int, nbytes: float, hops: int = 2, *, linked: bool = False, sessions: int = 0
) -> Measurements:
    """A run of so many batches, remote tasks and owners per remote task. ``linked``: no request is a message."""
    fresh, home = ([vertices * batches] * (hops + 1) for vertices in (100.0, 50.0))
    run = Measurements(batches, fresh=fresh, home=home, sizes=[300.0] * batches)
    run.totals["sessions_opened"] = sessions

    def tasks(kind: str, lane: str, count: int, x: float, y: float, requests: int = 0) -> None:
        sums = zip(("n", "x", "xx", "y", "xy", "r"), (1.0, x, x * x, y, x * y, requests), strict=True)
        for name, value in sums:
            run.totals[f"cost_{kind}_{lane}_{name}"] = run.of(kind, lane, name) + count * value

    for x in (100.0, 300.0)[:hops]:
        tasks("neighborhood", "cpu", batches, x, 50e-6 + 1e-6 * x)
    tasks("seed", "cpu", batches, 0.0, 200e-6)
    tasks("feature", "cpu", batches, 1000.0, 1e-3)
    tasks("neighborhood", "net", remote, 50.0, nbytes / remote, owners)
    at_home = {kind: run.of(kind, "cpu", "n") for kind in ("neighborhood", "seed", "feature")}
    busy = sum(run.of(kind, "cpu", "y") for kind in at_home)
    requests = remote * owners
    messages = LOOP_REQUEST * requests * (not linked) + LOOP_BYTE * nbytes
    tasks_here = LOOP_TASK * (sum(at_home.values()) + remote)
    run.totals["loop_cpu_s"] = LOOP_BATCH * batches + tasks_here + messages + LOOP_SESSION * sessions
    run.totals["link_requests_asked"] = requests * linked
    work = 1e-6 * 50.0 * remote  # a unit takes as long for another daemon as at home
    others = work + BATCH * batches + REQUEST * requests + BYTE * nbytes + SESSION * sessions
    run.totals["cpu_s"] = busy + others + run.totals["loop_cpu_s"]
    return run


EIGHT: list[Any] = [(20, 80, 7, 4e7), (80, 320, 7, 4e7), (90, 300, 2, 1e5), (20, 20, 7, 1e6, 1)]


def test_what_is_left_is_told_apart() -> None:
    """Over eight partitions, with seven owners per task, and fewer in batches of few vertices."""
    described = ServedDataset("id", 8, 8.0, 4000)
    made = profile_of([seen(*size) for size in EIGHT], described, 100, (5, 5), measured={"where": "here"})
    assert made.local["neighborhood"].fixed_us == pytest.approx(50)
    assert made.local["neighborhood"].us_per_unit == pytest.approx(1)
    assert made.local["seed"].fixed_us == pytest.approx(200)
    assert made.batch_us == pytest.approx(1e6 * BATCH, rel=1e-3)
    remote = made.remote["neighborhood"]
    assert remote.answer_bytes == pytest.approx(4e7 / 80 / 50)
    assert remote.receive.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    assert remote.receive.us_per_unit == pytest.approx(1e6 * BYTE / 2 * remote.answer_bytes, rel=1e-3)
    assert remote.serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    assert remote.serve.us_per_unit == pytest.approx(1 + remote.receive.us_per_unit, rel=1e-3)
    half = 1e6 * LOOP_REQUEST / 2
    found = made.loop.batch_us, made.loop.task_us, made.loop.request_us, made.loop.answer_us, made.loop.us_per_byte
    assert found == pytest.approx((1e6 * LOOP_BATCH, 1e6 * LOOP_TASK, half, half, 1e6 * LOOP_BYTE), rel=1e-3)
    assert [hop.new for hop in made.hops] == [100.0] * 3
    assert [hop.home for hop in made.hops] == [0.5] * 3
    assert made.degree == pytest.approx((100 + 300) / (50 + 50))  # in-edges of the vertices expanded at home
    assert made.parts == 8
    assert made.spread == pytest.approx(0.0, abs=1e-9)
    assert made.measured["where"] == "here"

    runs = [seen(*size, linked=True) for size in EIGHT]  # requests over links cost the event loops nothing
    made = profile_of(runs, ServedDataset("id", 8, 8.0, 4000), 100, (5, 5), measured={})
    found = made.loop.batch_us, made.loop.task_us, made.loop.us_per_byte
    assert found == pytest.approx((1e6 * LOOP_BATCH, 1e6 * LOOP_TASK, 1e6 * LOOP_BYTE), rel=1e-3)
    assert made.loop.request_us == made.loop.answer_us == 0
    assert made.remote["neighborhood"].serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)


def test_with_two_partitions_the_event_loops_share_of_a_request_counts_as_its_tasks() -> None:
    runs = [seen(20, 80, 1, 4e7), seen(80, 320, 1, 4e7), seen(90, 360, 1, 1e5), seen(20, 20, 1, 1e6, hops=1)]
    made = profile_of(runs, ServedDataset("id", 2, 8.0, 4000), 100, (5, 5), measured={})
    assert made.loop.request_us == made.loop.answer_us == 0
    assert made.remote["neighborhood"].serve.fixed_us == pytest.approx(1e6 * REQUEST / 2, rel=1e-3)
    tasks = 2 + 1 + 1 + 4  # of a batch: two hops, seeds and rows at home, four of the other owner
    whole = LOOP_BATCH + LOOP_TASK * tasks + LOOP_REQUEST * 4
    assert made.loop.batch_us + tasks * made.loop.task_us == pytest.approx(1e6 * whole, rel=0.05)


def test_sessions_are_told_from_batches_by_an_epoch_of_one_batch() -> None:
    sizes = ((24, 96, 7, 4e7), (96, 384, 7, 4e7), (900, 3000, 2, 1e5))
    runs = [seen(*size, linked=True, sessions=8) for size in sizes]
    runs += [seen(n, 2 * n, 7, 1e6, hops=1, linked=True, sessions=opened) for n, opened in ((32, 32), (24, 8))]
    made = profile_of(runs, ServedDataset("id", 8, 8.0, 4000), 100, (5, 5), measured={})
    assert made.session_us == pytest.approx(1e6 * SESSION, rel=1e-3)
    assert made.loop.session_us == pytest.approx(1e6 * LOOP_SESSION, rel=1e-3)
    assert made.batch_us == pytest.approx(1e6 * BATCH, rel=1e-3)
    assert made.loop.batch_us == pytest.approx(1e6 * LOOP_BATCH, rel=1e-3)


@pytest.mark.parametrize(("dearer", "crowding"), [(1.3, 1.3), (1.0, 1.0), (0.9, 1.0)])
def test_crowding_is_what_a_batch_costs_beside_others_over_what_it_costs_alone(dearer: float, crowding: float) -> None:
    run, alone = seen(20, 80, 1, 4e7), seen(20, 80, 1, 4e7)
    run.totals["cpu_s"] *= dearer
    described, waits = ServedDataset("id", 2, 8.0, 4000), Waits(2e-4, 1e-3)
    made = profile_of([run, seen(80, 320, 1, 4e7)], described, 100, (5, 5), measured={}, alone=alone, waits=waits)
    assert made.crowding == pytest.approx(crowding)
    assert (made.wake_us, made.timer_us) == pytest.approx((200.0, 1000.0))


def test_cached_rows_are_no_vertices_at_home() -> None:
    """A cluster whose dataset is not at hand: of 100 rows 40 were of the own machine, and 24 of the others in its cache."""
    run = Measurements(1, fresh=[10.0, 90.0], sizes=[100.0])
    run.totals |= {"cost_feature_cpu_x": 64 * 8.0, "cost_feature_net_x": 36 * 8.0, "remote_rows": 36, "cached_rows": 24}
    run.totals["cpu_s"] = 1.0
    made = profile_of([run], ServedDataset("id", 2, 8.0, 100), 10, (9,), measured={})
    assert (made.hops[1].home, made.cache_hit) == pytest.approx((0.4, 24 / 60))


ROW = 40.0
"""Number of bytes of a row.

Each batch has 10 seeds at home, then 20 vertices at home and 30 of the other owner. Of these 30, 12 are in the cache.
"""


def task(kind: str, op: str, cost: float, us: float, *, dag: int, moved: Any = None, cached: int = 0) -> TaskSpan:
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


def test_rows_that_a_window_finds_in_the_cache_are_looked_up_late(tmp_path: Path) -> None:
    """All 30 rows of the other owner are asked of the cache when they are fetched; it has 12."""
    late = [entry for entry in batch(1) if (entry.op, entry.lane) != ("feature1", "net")]  # type: ignore[union-attr]
    late[4] = task("feature", "feature1", 20 * ROW, 30.0, dag=1)
    late.insert(5, task("feature", "feature1", 30 * ROW, 900.0, dag=1, moved=(18, round(18 * ROW)), cached=12))
    early, found = (
        profile_of_trace(write(tmp_path / "t.json", [OPENED, *entries], [])) for entries in (batch(1), late)
    )
    assert (found.row_bytes, found.cache_hit) == pytest.approx((ROW, 12 / 30))
    assert [(hop.new, hop.home) for hop in found.hops] == [(hop.new, hop.home) for hop in early.hops]
    assert simulate(Scenario(found, batches=5)).rows_per_batch == pytest.approx(18, rel=0.01)
    in_sums = late[5]._replace(summed_rows=5)  # type: ignore[call-arg]
    with pytest.raises(DataError, match="an aggregating loader"):
        profile_of_trace(write(tmp_path / "t.json", [OPENED, *late[:5], in_sums, *late[6:]], []))


def test_batches_spread_and_of_several_jobs_the_largest_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [OPENED, *batch(1), *batch(2, larger=3.0)])
    spread = 0.5 * abs(math.log((10 + 20 + 30) / (10 + 60 + 30)))
    assert profile_of_trace(path).spread == pytest.approx(spread, rel=1e-6)
    other = SessionMark(0.0, "opened", "another-name", "job", 0, 50, 99, "7,7")
    strange = [entry._replace(session="another-name") for entry in batch(5)]  # type: ignore[union-attr, call-arg]
    path = write(tmp_path / "t.json", [OPENED, other, *batch(1), *strange, *batch(2)])
    assert profile_of_trace(path).batch_size == 10
    path = write(tmp_path / "t.json", batch(1))
    with pytest.raises(DataError, match="say --batch-size and --fan-out"):
        profile_of_trace(path)
    assert profile_of_trace(path, batch_size=10, fan_outs=(5,)).hops[1].new == pytest.approx(50)


def test_wrong_files_and_those_of_other_loaders_are_named(tmp_path: Path) -> None:
    path, nothing = tmp_path / "t.json", json.dumps({"traceEvents": []})
    wrong = {
        None: "cannot read",
        "x": "is not a trace",
        "[]": "is not a trace",
        nothing: "no batch was begun and finished",
    }
    for content, words in wrong.items():
        if content is not None:
            path.write_text(content)
        with pytest.raises(DataError, match=words):
            profile_of_trace(path)
    bare = [task("seed", "seed", 0.0, 5.0, dag=1), task("end", "", 0.0, 5.0, dag=1)]
    with pytest.raises(DataError, match="no batches of NeighborLoader"):
        profile_of_trace(write(tmp_path / "t.json", [OPENED, *bare]))
