"""Launch policies: when to launch the next DAG of a session, and which ready task runs next.

``POLICIES`` is the one list of them: the command line, daemons, the simulator and benchmarks read it. To add a policy,
write its two functions (or take existing ones) and add one entry.

``by_score`` is ByteGNN's policy with four more rules; the first that applies decides. Saturation: enough tasks wait for
the workers or the links, so do not launch, as another batch would make none of them faster and all of them later.
Widening: see ``ScheduledSession.may_widen``. Liveness: nothing is in flight and nothing finished, so launch. Pipeline
floor: launch while fewer batches are held than training takes during one sampling time, plus one; otherwise the queue
would run dry (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from atta.errors import known_name
from atta.scheduler.coarse import Load, ScheduledSession, launch_score
from atta.scheduler.config import SchedulerConfig

LaunchRule = Callable[[ScheduledSession, Load, float, SchedulerConfig], float]
"""(session, load, now, config) -> seconds until the next launch is due: 0 = now, inf = not before another event."""
TaskOrder = Callable[[int, float], tuple[int, float]]
"""(DAG id, estimated microseconds) -> key; the smallest runs first, equals in order of arrival."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to launch the next DAG of a session, and which ready task runs next. ``has_depth``: it is ``prefetch``."""

    rule: LaunchRule
    order: TaskOrder
    help: str
    has_depth: bool = False

    @property
    def oldest_first(self) -> bool:
        """Whether the tasks of an older batch go first, whatever they cost. Other daemons are then asked to do so."""
        return self.order(0, math.inf) < self.order(1, 0.0)


# -- launch rules ------------------------------------------------------------------------------------------------------


def by_score(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """ByteGNN's launch score with the rules of saturation, widening, liveness and pipeline floor."""
    pace = session.pace
    finished, held = session.line
    if load.saturated or not session.may_widen(load, config):
        return math.inf
    if held == 0 or pace.sigma is None or (config.pipeline_floor and held < pace.depth + 1):
        return 0.0
    gap_ms = 1e3 * (now - session.last_launch)
    # The score is proportional to the gap, so the gap at which it reaches sigma is known.
    per_ms = launch_score(1.0, pace, config, utilisation=load.percent, queued=finished)
    missing_ms = pace.sigma / per_ms - gap_ms if per_ms > 0 else math.inf
    return 0.0 if missing_ms <= 0 else min(max(missing_ms / 1e3, 1e-3), config.sleep_s)


def one_at_a_time(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """Launch when the session's DAG before has ended."""
    return 0.0 if session.at_work == 0 else math.inf


def fixed_depth(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """Keep ``prefetch`` batches in flight or finished."""
    return 0.0 if session.at_work + session.finished < config.prefetch else math.inf


def greedy(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> float:
    """Launch as many DAGs as the caps allow."""
    return 0.0


# -- orders of tasks ---------------------------------------------------------------------------------------------------


def oldest_then_cheapest(dag: int, cost_us: float) -> tuple[int, float]:
    """ByteGNN's order: the oldest batch is finished first. Within a batch, cheap tasks make their successors ready
    sooner."""
    return dag, cost_us


def first_come(dag: int, cost_us: float) -> tuple[int, float]:
    """In order of arrival."""
    return 0, 0.0


POLICIES: dict[str, Policy] = {
    "two-level": Policy(by_score, oldest_then_cheapest, "Launch by ByteGNN's score, run the oldest batch first."),
    "sequential": Policy(one_at_a_time, oldest_then_cheapest, "Launch a batch when the one before is finished."),
    "prefetch": Policy(fixed_depth, oldest_then_cheapest, "Keep a fixed number of batches prepared.", has_depth=True),
    "fifo": Policy(greedy, first_come, "Launch as many batches as memory allows, run tasks in order of arrival."),
}
"""By name; ``SchedulerConfig`` names the default, the others are baselines."""


def policy_named(name: str) -> Policy:
    """The policy of this name; raises UnknownNameError, which suggests the nearest one."""
    return POLICIES[known_name("scheduling policy", name, POLICIES)]
