"""Tracks of intervals: every stage of every epoch once, one after the other, and a bound."""

from __future__ import annotations

import json
from itertools import pairwise

from atta.observe.timeline import document
from atta.train.dorylus.progress import IntervalTracks, Work, stages_of


def test_a_track_per_interval_with_its_stages_in_order() -> None:
    stages = stages_of(2)
    tracks = IntervalTracks(stages, 2)
    clock = 0.0
    for epoch in range(2):
        for stage in range(len(stages)):
            for interval in (1, 0):
                tracks.begin(Work(epoch, stage, interval), clock + interval)
            for interval in (0, 1):
                tracks.end(Work(epoch, stage, interval), clock + 2.5)
            clock += 3
    events = json.loads(document(tracks.events(rank=3), {"left_out": tracks.left_out}))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["trainer 3", "interval 0", "interval 1"]
    for interval in range(2):
        mine = [e for e in events if e["ph"] == "X" and e["tid"] == interval]
        assert [e["name"] for e in mine] == [f"{one.part} {one.layer}" for one in stages] * 2
        assert [e["args"]["epoch"] for e in mine] == [0] * len(stages) + [1] * len(stages)
        assert {e["dur"] for e in mine} == {1e6 * (2.5 - interval)}
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(mine))
        assert {e["name"] for e in mine if e["cat"] == "worker"} == {"apply 0", "loss 1", "apply-back 0"}
        assert {e["pid"] for e in mine} == {3}


def test_more_spans_than_the_bound_are_counted_only() -> None:
    tracks = IntervalTracks(stages_of(1), 1, most=3)
    for epoch in range(5):
        tracks.begin(Work(epoch, 0, 0), epoch)
        tracks.end(Work(epoch, 0, 0), epoch + 0.5)
    assert [span.start for span in tracks.spans] == [0, 1, 2]
    assert tracks.left_out == 2
