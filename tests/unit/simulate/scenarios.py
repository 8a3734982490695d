"""Profiles and scenarios for tests of the simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

from atta.scheduler.config import SchedulerConfig
from atta.simulate.profile import HopSize, Linear, Profile, Remote
from atta.simulate.scenario import Scenario

PROFILE = Profile(
    batch_size=1024,
    fan_outs=(15, 10, 5),
    hops=(HopSize(1024, 1.0), HopSize(10_000, 0.85), HopSize(60_000, 0.75), HopSize(100_000, 0.7)),
    local={
        "seed": Linear(200),
        "neighborhood": Linear(50, 0.01),
        "join": Linear(100, 0.02),
        "feature": Linear(30, 0.0003),
        "end": Linear(50),
    },
    remote={
        "neighborhood": Remote(0.2, 3.0, Linear(100, 0.01), Linear(100, 0.005)),
        "feature": Remote(0.015, 1.0, Linear(100, 0.0005), Linear(100, 0.0005)),
    },
    parts=2,
    spread=0.1,
    degree=30.0,
    mean_degree=12.0,
    row_bytes=264.0,
    batch_bytes=5e7,
    batch_us=1500.0,
    epoch_seeds=1_000_000,
    cores=2,
)
"""Batches with about 60 ms of CPU time, a third of it for remote rows."""


REPEATS = dataclasses.replace(PROFILE, repeats=(30_000.0, 10_000.0, 5_000.0, 3_000.0, 2_000.0, 10_000.0))
"""The same profile, with known rows that batches have in common."""


def scenario(profile: Profile = PROFILE, *, policy: str = "two-level", workers: int = 4, **options: Any) -> Scenario:
    scheduling = {k: options.pop(k) for k in ("prefetch", "net_in_flight", "queue_bytes", "max_dags") if k in options}
    config = SchedulerConfig(workers=workers, policy=policy, log_events=0, **scheduling)
    defaults: dict[str, Any] = {"cores": 4, "link": 1.25e9, "rtt_s": 1e-3, "train_s": 5e-3, "batches": 20}
    return Scenario(profile, scheduler=config, **{**defaults, **options})
