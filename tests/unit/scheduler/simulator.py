"""Workloads of one machine, with half of its vertices at another. They compare policies with ``atta.simulate``."""

from __future__ import annotations

from dataclasses import dataclass

from atta.scheduler import SchedulerConfig
from atta.simulate import HopSize, Linear, Outcome, Profile, Scenario, simulate

ROWS = 200.0
"""Vertices per hop. Requests for them take a round trip and nothing else."""


@dataclass(frozen=True)
class Workload:
    """``sample_ms``: CPU time of a batch. ``train_ms``: time per batch on ``train_threads`` cores (0 = elsewhere)."""

    cores: int
    sample_ms: float
    rtt_ms: float
    train_ms: float
    train_threads: int = 0
    spread: float = 0.3  # of batch sizes, log-normal

    def profile(self) -> Profile:
        """Hops, joins and features take equal parts of the CPU time, all of it for the vertices at home."""
        third_us = 1e3 * self.sample_ms / 3
        return Profile(
            batch_size=round(ROWS),
            fan_outs=(15, 10, 5),
            hops=(HopSize(ROWS, 0.5),) * 4,
            local={
                "neighborhood": Linear(us_per_unit=third_us / (3 * ROWS / 2)),
                "join": Linear(us_per_unit=third_us / (3 * ROWS)),
                "feature": Linear(us_per_unit=third_us / (4 * ROWS / 2)),
            },
            spread=self.spread,
            row_bytes=1.0,
            batch_bytes=1e6,
        )


def run(config: SchedulerConfig, work: Workload, batches: int, *, known: bool = False) -> Outcome:
    """Figures of two such machines; ``known``: the size of a batch need not be measured first."""
    return simulate(
        Scenario(
            work.profile(),
            cores=work.cores,
            rtt_s=1e-3 * work.rtt_ms,
            scheduler=config,
            train_s=1e-3 * work.train_ms,
            train_threads=work.train_threads,
            lockstep=False,
            batches=batches,
            known_batch_bytes=known,
        )
    )
