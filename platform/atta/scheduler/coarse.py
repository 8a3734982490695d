"""The coarse level: when to launch the next DAG of a session (ByteGNN §4.2, Algorithm 1).

::

    balance = T_sample / (T_train * max(Q, Q0))        Q: finished batches not yet taken
    f(C)    = max(floor, 101 - exp(C / c)),  c = 100 / ln 101
    score   = T_gap * f(C) * balance                   T_gap: milliseconds since the session's last launch
    launch if score >= sigma, else look again within 5 ms

Besides the score: caps on batches and bytes (``Session.within_caps``), and four rules, the first that applies. Saturation: workers
or links have enough waiting for them, do not launch: another batch would make none of them faster and all of them later. Growth: so
many batches at once as never before take memory that nobody has touched, so their number grows by steps (``Session.may_grow``).
Liveness: nothing is in flight and nothing finished, launch. Pipeline floor: no more batches are in flight or finished than training
takes while one batch is being sampled (Little's law), and one, so the queue would run dry: launch. Times are milliseconds here,
seconds outside.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from atta.samplers.dag.spec import Plan
from atta.scheduler.config import SchedulerConfig

__all__ = ["LAUNCH_RULES", "LaunchRule", "Load", "Pace", "Session", "balance", "headroom", "launch_score"]

_C = 100.0 / math.log(101.0)
_ALWAYS = 4
"""Batches that a session may hold in any case."""
SIZE_MARGIN = 1.125
"""The next batches may be so much larger than the largest one seen; sizes within a session differ by a few percent."""


def headroom(utilisation: float) -> float:
    """f(C) before its floor: 100 on an idle machine, 0 on a fully used one; ``utilisation`` in percent."""
    return 101.0 - math.exp(min(max(utilisation, 0.0), 100.0) / _C)


def balance(sample_ms: float | None, train_ms: float | None, queued: float, empty_queue: float) -> float:
    """How far sampling lags behind training; times that are not known yet count as equal."""
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


class Load:
    """How busy the machine is. The CPU utilisation is a running mean over a short window; unknown counts as idle.

    ``saturated``: the scheduler's own tasks keep workers or links busy for some time, whatever is launched; ``idle``: a worker has
    nothing to do; ``shared``: there are sessions of several jobs.
    """

    def __init__(self, window_s: float) -> None:
        self.percent = 0.0
        self.saturated = False
        self.idle = True
        self.shared = False
        self._window_s = window_s
        self._at: float | None = None

    def sample(self, percent: float, now: float) -> None:
        """Take in one measurement."""
        percent = min(max(percent, 0.0), 100.0)
        weight = 1.0 if self._at is None else 1.0 - math.exp(-max(now - self._at, 0.0) / self._window_s)
        self.percent += weight * (percent - self.percent)
        self._at = now


@dataclass
class Pace:
    """What has been measured about the batches of a session."""

    sample_ms: float | None = None  # running mean: launch to end of a DAG
    train_ms: float | None = None  # running mean: the consumer's time per batch
    sigma: float | None = None  # threshold of the launch score; None until the first batch is finished
    batch_bytes: float | None = None  # estimated size of a batch
    work_ms: float | None = None  # running mean: time of the tasks of a DAG at home, added up
    finished: int = 0
    largest: int = 0  # bytes
    most: int = 0  # batches in flight or finished at once, ever
    grown_at: int = 0  # ``finished`` when there were more of them for the last time
    total_ms: float = 0.0  # of the batches that calibrate sigma

    @property
    def depth(self) -> float:
        """Batches that training takes while one is being sampled; 0 while a time is unknown."""
        return self.sample_ms / self.train_ms if self.sample_ms is not None and self.train_ms is not None else 0.0

    def inherited(self, config: SchedulerConfig) -> Pace:
        """What the next session of the same profile starts from: the latest means, and sigma frozen at their value."""
        if self.sample_ms is None:
            return dataclasses.replace(self)
        sigma = _sigma(self.sample_ms, config)
        return dataclasses.replace(self, sigma=sigma, finished=max(self.finished, config.calibration_batches))

    def sampled(self, ms: float, nbytes: int, config: SchedulerConfig, work_ms: float = 0.0) -> None:
        """A batch is finished, ``ms`` after its launch; its tasks have kept workers busy for ``work_ms``.

        sigma follows from the operating point (C*, Q*) at which the machine should settle: there T_gap equals T_train, so
        the score equals mean T_sample * f(C*) / Q*. It is frozen after the first batches; from then on slower sampling
        raises the score above it.
        """
        self.finished += 1
        self.largest = max(self.largest, nbytes)
        self.batch_bytes = SIZE_MARGIN * self.largest
        self.sample_ms = _mean(self.sample_ms, ms, config.averaging)
        if work_ms > 0:
            self.work_ms = _mean(self.work_ms, work_ms, config.averaging)
        if self.finished <= config.calibration_batches:
            self.total_ms += ms
            self.sigma = _sigma(self.total_ms / self.finished, config)

    def trained(self, ms: float, trainers: int, config: SchedulerConfig) -> None:
        """The consumers report their time per batch; several of them drain the queue so many times faster."""
        self.train_ms = _mean(self.train_ms, ms / trainers, config.averaging)


def _sigma(sample_ms: float, config: SchedulerConfig) -> float:
    return sample_ms * headroom(config.target_utilisation) / config.target_queue


def _mean(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


@dataclass(eq=False)
class Session:
    """The coarse level's state of one session."""

    name: str
    plan: Plan
    batches: Sequence[int]
    trainers: int
    profile: str
    pace: Pace
    weight: float = 1.0
    launched: int = 0  # position of the next batch to launch
    announced: int = 0  # position of the next batch to announce
    in_flight: int = 0
    last_launch: float = -math.inf  # seconds
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)  # finished out of order: batch -> (dag, bytes)
    queue: dict[int, int] = field(default_factory=dict)  # announced and not taken: batch -> bytes
    finished_bytes: int = 0  # of both
    dags: dict[int, None] = field(default_factory=dict)  # launched and not announced, in launch order
    growing: int = 0  # of those in flight, how many were more at once than ever
    check_at: float = math.inf  # when to consider the next launch
    turn: float = 0.0  # milliseconds of work per weight, see ``charge``
    before: Session | None = None  # the one of this profile that was open already: its batches are taken first
    closed: bool = False

    @property
    def finished(self) -> int:
        """Q: finished batches that have not been taken."""
        return len(self.waiting) + len(self.queue)

    @property
    def line(self) -> tuple[int, int]:
        """Batches finished, and in flight or finished, that the consumer has before it: also those of the session before."""
        finished, held = self.finished, self.in_flight + self.finished
        if self.before is None or self.before.closed:
            return finished, held
        return finished + self.before.finished, held + self.before.in_flight + self.before.finished

    def grown(self) -> bool:
        """A batch has been launched: whether there are more at once than ever, now remembered."""
        held = self.line[1]
        if held <= self.pace.most:
            return False
        self.pace.most, self.pace.grown_at = held, self.pace.finished
        self.growing += 1
        return True

    def may_grow(self, load: Load, config: SchedulerConfig) -> bool:
        """Whether one more batch at once is worth its memory, should there never have been so many.

        Buffers are used again, and touching a new one can take longer than making a batch. So beyond four batches there is one more
        while a worker and the machine are idle, as many again at a time in the beginning (as in TCP's slow start the number
        doubles with what has been finished), later a quarter; and else only now and then. With none in flight it is the score that
        decides how many finished ones wait; with several jobs, their turns.
        """
        pace = self.pace
        if load.shared or self.in_flight == 0 or self.line[1] < max(_ALWAYS, pace.most):
            return True
        if pace.finished - pace.grown_at >= config.growth_batches:
            return True
        idle = load.idle and load.percent < config.target_utilisation
        return idle and self.growing < (pace.most if pace.finished < config.growth_batches else max(1, pace.most // 4))

    @property
    def hungry(self) -> bool:
        """Whether there are batches left to launch."""
        return self.launched < len(self.batches)

    def charge(self, turn: float) -> float:
        """A batch is launched when ``turn`` has been reached; where it begins, from which the turn goes on.

        Start-time fair queueing (Goyal, Vin and Cheng 1996): a batch takes its session's turn forward by its work at home over
        the session's weight, and the session whose turn is the earliest launches next. One that did not want anything for a
        while has no credit for it.
        """
        start = max(turn, self.turn)
        self.turn = start + (self.pace.work_ms or 0.0) / self.weight
        return start

    @property
    def held_bytes(self) -> float:
        """Bytes of finished batches, and the estimate of those in flight."""
        return self.finished_bytes + self.in_flight * (self.pace.batch_bytes or 0.0)

    def within_caps(self, config: SchedulerConfig, free_bytes: float = math.inf) -> bool:
        """Whether one more DAG keeps the bounds on batches and bytes.

        ``free_bytes``: what all sessions together leave of the buffers. A session that holds something leaves as much as it will
        hold (the dynamic threshold of shared-memory switches, Choudhury and Hahne 1998), so that stalled ones never use up all;
        one that holds nothing may take what there is, and goes beyond its own bounds.
        """
        held = self.in_flight + self.finished
        if held == 0:
            return free_bytes >= min(self.pace.batch_bytes or 0.0, config.buffer_bytes or math.inf)
        if held >= config.dag_cap:
            return False
        if self.pace.batch_bytes is None:  # sizes unknown: measure one batch first
            return False
        return self.held_bytes + self.pace.batch_bytes <= min(config.queue_bytes, free_bytes)


LaunchRule = Callable[[Session, Load, float, SchedulerConfig], float]
"""(session, load, now, config) -> seconds until the next launch is due: 0 = now, inf = not before another event."""


def by_score(session: Session, load: Load, now: float, config: SchedulerConfig) -> float:
    """ByteGNN's launch score with the rules of liveness and pipeline floor."""
    pace = session.pace
    finished, held = session.line
    if load.saturated or not session.may_grow(load, config):
        return math.inf
    if held == 0 or pace.sigma is None or (config.pipeline_floor and held < pace.depth + 1):
        return 0.0
    gap_ms = 1e3 * (now - session.last_launch)
    # The score is proportional to the gap, so the gap at which it reaches sigma is known.
    per_ms = launch_score(
        1.0,
        utilisation=load.percent,
        queued=finished,
        sample_ms=pace.sample_ms,
        train_ms=pace.train_ms,
        config=config,
    )
    missing_ms = pace.sigma / per_ms - gap_ms if per_ms > 0 else math.inf
    return 0.0 if missing_ms <= 0 else min(max(missing_ms / 1e3, 1e-3), config.sleep_s)


def one_at_a_time(session: Session, load: Load, now: float, config: SchedulerConfig) -> float:
    """Baseline: the next DAG starts when the one before has ended."""
    return 0.0 if session.in_flight == 0 else math.inf


def fixed_depth(session: Session, load: Load, now: float, config: SchedulerConfig) -> float:
    """Baseline: a fixed number of batches in flight or finished."""
    return 0.0 if session.in_flight + session.finished < config.prefetch else math.inf


def greedy(session: Session, load: Load, now: float, config: SchedulerConfig) -> float:
    """Baseline: as many DAGs as the caps allow."""
    return 0.0


LAUNCH_RULES: dict[str, LaunchRule] = {
    "two-level": by_score,
    "sequential": one_at_a_time,
    "prefetch": fixed_depth,
    "fifo": greedy,
}
