"""What limits a run: clusters in which only one thing is scarce."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atta.simulate import Linear, LoopCosts, Profile, Remote, simulate
from atta.simulate.cluster import limit_of
from tests.unit.simulate.scenarios import PROFILE, scenario

FREE = replace(PROFILE, local={}, remote={}, batch_us=0.0, spread=0.0)
"""Batches that take round trips and nothing else."""
BUSY = replace(FREE, local={"join": Linear(20_000)})
"""Batches with 60 ms of CPU time."""
SERVED = replace(FREE, remote={"feature": replace(PROFILE.remote["feature"], serve=Linear(10_000))})
"""Batches with 30 ms of CPU time at their owners."""

SENT = replace(FREE, remote={"feature": Remote(0.0, 1.0)})
"""Batches that pull 12 MB."""


@pytest.mark.parametrize(("limit", "profile", "options"), [
    ("cores", BUSY, {"cores": 1}),
    ("cores", BUSY, {"cores": 2, "train_s": 0.04, "train_threads": 2}),
    ("event loop", replace(FREE, loop=LoopCosts(task_us=2000)), {}),
    ("event loop", replace(FREE, loop=LoopCosts(request_us=2000)), {"machines": 8}),
    ("link", SENT, {"link": 1e7}),
    ("link", replace(SENT, parts=3, placement=((0, 1, 0), (0, 0, 1), (0, 1, 0))), {"machines": 3, "link": 1e7}),
    ("trainer", BUSY, {"train_s": 0.1}),
    ("trainer", BUSY, {"cores": 3, "train_s": 0.1, "train_threads": 1}),
    ("worker threads", BUSY, {"workers": 1, "cores": 8}),
    ("serving threads", SERVED, {"serve_threads": 1, "cores": 8}),
    ("requests", FREE, {"net_in_flight": 1, "rtt_s": 20e-3}),
    ("batches in flight", FREE, {"policy": "sequential", "rtt_s": 20e-3}),
    ("batches in flight", BUSY, {"policy": "sequential", "cores": 8}),
])  # fmt: skip
def test_what_is_scarce_is_the_limit(limit: str, profile: Profile, options: dict[str, Any]) -> None:
    defaults = {"cores": 8, "workers": 8, "serve_threads": 8, "machines": 2, "link": 1e12, "train_s": 1e-4}
    outcome = simulate(scenario(profile, **{**defaults, "batches": 60, "known_batch_bytes": True, **options}))
    assert outcome.limit == limit
    if limit == "batches in flight":
        assert outcome.limit_busy < 0.75
    else:
        assert 0.75 < outcome.limit_busy <= 1 + 1e-9


def test_more_of_the_limit_is_faster() -> None:
    """The limit is no mere name: twice as much of it helps, and twice as much of anything else does not."""
    options: dict[str, Any] = {"cores": 4, "workers": 4, "serve_threads": 4, "train_s": 0.0, "link": 2e7, "batches": 40}
    before = simulate(scenario(PROFILE, **options))
    assert before.limit == "link"
    more = {name: simulate(scenario(PROFILE, **{**options, name: 2 * options[name]})) for name in ("link", "cores")}
    assert more["link"].seeds_per_s > 1.5 * before.seeds_per_s
    assert more["cores"].seeds_per_s == pytest.approx(before.seeds_per_s, rel=0.02)


def test_waiting_for_something_full_is_no_limit_of_its_own() -> None:
    idle = dict.fromkeys(
        ("cores", "event loop", "link", "trainer", "worker threads", "serving threads", "requests"), 0.1
    )
    assert limit_of(idle) == ("batches in flight", 0.1)
    waiting = idle | {"link": 0.9, "requests": 1.0, "worker threads": 0.95}
    assert limit_of(waiting) == ("link", 0.9)
    assert limit_of(idle | {"requests": 1.0, "serving threads": 0.95}) == ("serving threads", 0.95)
    assert limit_of(idle | {"requests": 0.8}) == ("requests", 0.8)
