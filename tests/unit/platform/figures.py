"""Figures of a session and of a job to vary in tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from atta.observe.figures import JobFigures, SessionFigures

SESSION = SessionFigures(
    session="5e55",
    job="train",
    epoch=2,
    rank=1,
    world_size=4,
    batches=100,
    taken=10,
    seeds=1000,
    queued=3,
    in_flight=2,
    queued_bytes=3 << 20,
    lent_bytes=1 << 20,
    score=120.5,
    sigma=80.25,
    sample_ms=16.5,
    train_ms=8.25,
    error="",
)

JOB = JobFigures(
    job="sancus-5e55",
    epoch=12,
    direction="forward",
    sent_bytes=3 << 20,
    crossed_bytes=2 << 20,
    rows=12_345,
    age_min=0.0,
    age_mean=0.75,
    age_max=2.0,
    broadcasts=3,
    skipped=5,
)


def job(**changes: Any) -> JobFigures:
    return dataclasses.replace(JOB, **changes)


def session(**changes: Any) -> SessionFigures:
    return dataclasses.replace(SESSION, **changes)
