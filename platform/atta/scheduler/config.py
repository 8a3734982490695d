"""Settings of the scheduler, in one place; docs/internals/scheduler.md explains the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from atta.errors import ConfigError

MOST_THREADS = 8
"""Most threads that serve links. One moves about as many bytes as a fast network."""


_LEAST = {
    "workers net_in_flight chunk_rows queue_bytes fetch_bytes prefetch calibration_batches widening_batches": 1,
    "at_hand buffer_bytes max_dags window log_events": 0,
}


@dataclass(frozen=True)
class SchedulerConfig:
    """Units stand in the names; utilisations are percent of the whole machine."""

    workers: int = 2
    """Number of CPU tasks that run at once."""
    at_hand: int = 0
    """Number of CPU tasks that the shell gets beyond those. So a worker has its next task while the shell still hears of
    the one before. The order of tasks cannot change any more for them."""
    net_in_flight: int = 16
    """Number of tasks that wait for other daemons at once."""
    chunk_rows: int = 65_536
    """Largest number of rows in one task."""
    queue_bytes: int = 1 << 30
    """Most bytes per session: finished batches plus the estimated size of those in flight."""
    buffer_bytes: int = 0
    """Most bytes of all sessions together, also of batches that consumers have taken and still read; 0 = no bound."""
    fetch_bytes: int = 32 << 20
    """Policy "two-level": launch nothing while this many bytes of rows are still to come from other daemons. They keep
    a link of 25 Gbit/s busy for 10 ms."""
    widening_batches: int = 256
    """Policy "two-level": while no worker idles or the machine is busy, a loader may have a fifth batch at once after
    this many batches, a sixth after twice as many, and so on. Its first ones, as many, count as the beginning."""
    max_dags: int = 0
    """Per session: most DAGs in flight plus finished batches; 0 = max(16, 2 x workers)."""
    policy: str = "two-level"
    """When to launch and what to run next: a name in ``policies.POLICIES``. ``Scheduler`` refuses unknown ones."""
    prefetch: int = 4
    """Policy "prefetch": DAGs in flight plus finished batches."""
    window: int = 0
    """A batch asks for rows of other owners when so many later ones of its session have been sampled; 0: at once. The
    first batch of a session never waits, the second for one, and so on."""
    own_rows: bool = False
    """Whether it asks for rows at home as late, because they are on the disk."""
    target_utilisation: float = 95.0
    """C*: the CPU utilisation of the operating point from which sigma is calibrated."""
    target_queue: float = 4.0
    """Q*: the queue length of that operating point."""
    empty_queue: float = 0.5
    """Q0: number of batches that an empty queue counts as."""
    least_headroom: float = 1.0
    """Floor of f: even on a fully used machine the score keeps rising."""
    pipeline_floor: bool = True
    """Launch regardless of the score while fewer batches are held than training takes during one sampling time."""
    calibration_batches: int = 8
    """Number of batches after which sigma is frozen."""
    averaging: float = 0.2
    """Weight of the newest measurement in the running means of sampling and training times."""
    utilisation_window_s: float = 0.1
    """Time constant of the running mean of the CPU utilisation."""
    sleep_s: float = 0.1
    """Longest time until a launch that its score refused is considered again. Before, each sample of the utilisation and
    each event of the session gives reason to."""
    log_events: int = 1024
    """Length of the decision log; 0 = none."""

    def __post_init__(self) -> None:
        for names, least in _LEAST.items():
            for name in names.split():
                if not getattr(self, name) >= least:
                    raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in "target_queue empty_queue least_headroom utilisation_window_s sleep_s averaging".split():  # noqa: SIM905
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.averaging > 1:
            raise ConfigError(f"averaging must be at most 1, not {self.averaging}")
        if not 0 <= self.target_utilisation < 100:
            raise ConfigError(f"target_utilisation must be at least 0 and below 100, not {self.target_utilisation}")

    @property
    def dag_cap(self) -> int:
        """DAGs in flight plus finished batches that one session may have."""
        return self.max_dags or max(16, 2 * self.workers)


def link_threads(threads: int) -> int:
    """Number of native threads that serve the links of a daemon with so many worker threads."""
    return min(MOST_THREADS, max(1, threads // 2))
