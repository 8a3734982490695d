"""The launch score of ByteGNN (§4.2, Algorithm 1) as plain functions of measured values.

docs/internals/scheduler.md explains the terms.

::

    balance = T_sample / (T_train * max(Q, Q0))        Q: finished batches not yet taken
    f(C)    = max(floor, 101 - exp(C / c)),  c = 100 / ln 101
    score   = T_gap * f(C) * balance                   T_gap: milliseconds since the session's last launch
    launch if score >= sigma

Times are milliseconds, utilisations percent of the whole machine.
"""

from __future__ import annotations

import math

from atta.scheduler.config import SchedulerConfig

__all__ = ["balance", "headroom", "launch_score", "threshold"]

_C = 100.0 / math.log(101.0)


def headroom(utilisation: float) -> float:
    """f(C) before its floor: 100 on an idle machine, 0 on a fully used one; ``utilisation`` in percent."""
    return 101.0 - math.exp(min(max(utilisation, 0.0), 100.0) / _C)


def balance(sample_ms: float | None, train_ms: float | None, queued: float, empty_queue: float) -> float:
    """How far sampling lags behind training. While a time is unknown, both count as equal."""
    ratio = sample_ms / train_ms if sample_ms is not None and train_ms is not None else 1.0
    return ratio / max(queued, empty_queue)


def launch_score(
    gap_ms: float,
    *,
    utilisation: float,
    queued: float,
    sample_ms: float | None,
    train_ms: float | None,
    config: SchedulerConfig,
) -> float:
    """The launch score, with Q0 and the floor of f."""
    room = max(headroom(utilisation), config.least_headroom)
    return gap_ms * room * balance(sample_ms, train_ms, queued, config.empty_queue)


def threshold(sample_ms: float, config: SchedulerConfig) -> float:
    """sigma, from the operating point (C*, Q*) at which the machine should settle.

    There T_gap equals T_train, so the score equals T_sample * f(C*) / Q*.
    """
    return sample_ms * headroom(config.target_utilisation) / config.target_queue
