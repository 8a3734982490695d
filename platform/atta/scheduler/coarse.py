"""The coarse level (ByteGNN §4.2): what it knows of a session when it decides whether to launch the next DAG, what it
shows of it, and when it looks again.

``policies`` decides with the launch score of Algorithm 1, which follows from what has been measured about the batches of
the session, or of the one before it of the same loader. docs/internals/scheduler.md explains the terms.

::

    balance = T_sample / (T_train * max(Q, Q0))        Q: finished batches not yet taken
    f(C)    = max(floor, 101 - exp(C / c)),  c = 100 / ln 101
    score   = T_gap * f(C) * balance                   T_gap: milliseconds since the session's last launch
    launch if score >= sigma

Beyond it stand caps on batches and bytes (``ScheduledSession.within_caps``) and a limit on how fast the number of batches
at once may rise (``ScheduledSession.may_widen``). Times are milliseconds here, seconds outside; utilisations are percent
of the whole machine."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from atta.samplers.dag.spec import Plan
from atta.scheduler.config import SchedulerConfig

_C = 100.0 / math.log(101.0)


def headroom(utilisation: float) -> float:
    """f(C) before its floor: 100 on an idle machine, 0 on a fully used one; ``utilisation`` in percent."""
    return 101.0 - math.exp(min(max(utilisation, 0.0), 100.0) / _C)


def balance(sample_ms: float | None, train_ms: float | None, queued: float, empty_queue: float) -> float:
    """How far sampling lags behind training. While a time is unknown, both count as equal."""
    ratio = sample_ms / train_ms if sample_ms is not None and train_ms is not None else 1.0
    return ratio / max(queued, empty_queue)


def launch_score(gap_ms: float, pace: Pace, config: SchedulerConfig, *, utilisation: float, queued: float) -> float:
    """The launch score, with Q0 and the floor of f."""
    room = max(headroom(utilisation), config.least_headroom)
    return gap_ms * room * balance(pace.sample_ms, pace.train_ms, queued, config.empty_queue)


def threshold(sample_ms: float, config: SchedulerConfig) -> float:
    """sigma, from the operating point (C*, Q*) at which the machine should settle. There T_gap equals T_train, so the
    score equals T_sample * f(C*) / Q*."""
    return sample_ms * headroom(config.target_utilisation) / config.target_queue


SIZE_MARGIN = 1.125
"""How much larger than the largest batch so far the next ones may be. Sizes within a session differ by a few
percent."""
KEPT_PACES = 64
"""Number of loaders whose measurements outlive their sessions. Those used last are kept."""


@dataclass
class Pace:
    """What has been measured about the batches of a session. Means are running means."""

    sample_ms: float | None = None  # launch to end of a DAG
    train_ms: float | None = None  # the consumer's time per batch
    sigma: float | None = None  # threshold of the launch score; None until the first batch is finished
    batch_bytes: float | None = None  # estimated size of a batch
    work_ms: float | None = None  # CPU time of a DAG's tasks at home, added up
    finished: int = 0
    largest: int = 0  # bytes
    most: int = 0  # largest number of batches that were in flight or finished at once
    total_ms: float = 0.0  # of the batches that calibrate sigma

    @property
    def depth(self) -> float:
        """Batches that training takes while one is being sampled; 0 while a time is unknown."""
        return self.sample_ms / self.train_ms if self.sample_ms is not None and self.train_ms is not None else 0.0

    def inherited(self, config: SchedulerConfig) -> Pace:
        """What the loader's next session starts from: the latest means, and sigma frozen at their value."""
        if self.sample_ms is None:
            return dataclasses.replace(self)
        sigma = threshold(self.sample_ms, config)
        return dataclasses.replace(self, sigma=sigma, finished=max(self.finished, config.calibration_batches))

    def sampled(self, ms: float, nbytes: int, config: SchedulerConfig, work_ms: float = 0.0) -> None:
        """A batch is finished, ``ms`` after its launch. Its tasks kept workers busy for ``work_ms``. sigma is frozen
        after the first batches. From then on slower sampling raises the score above it."""
        self.finished += 1
        self.largest = max(self.largest, nbytes)
        self.batch_bytes = SIZE_MARGIN * self.largest
        self.sample_ms = _mean(self.sample_ms, ms, config.averaging)
        if work_ms > 0:
            self.work_ms = _mean(self.work_ms, work_ms, config.averaging)
        if self.finished <= config.calibration_batches:
            self.total_ms += ms
            self.sigma = threshold(self.total_ms / self.finished, config)

    def trained(self, ms: float, trainers: int, config: SchedulerConfig) -> None:
        """The consumers report their time per batch. Together, ``trainers`` of them drain the queue faster."""
        self.train_ms = _mean(self.train_ms, ms / trainers, config.averaging)


class PaceMemory:
    """The measurements of loaders whose sessions are closed."""

    # Invariant: at most KEPT_PACES entries, each with at least one finished batch.

    def __init__(self) -> None:
        self._paces: OrderedDict[str, Pace] = OrderedDict()  # by loader, the latest used last

    def __len__(self) -> int:
        return len(self._paces)

    def get(self, loader: str) -> Pace | None:
        """What the loader's latest closed session measured."""
        return self._paces.get(loader)

    def keep(self, loader: str, pace: Pace) -> None:
        """Remember ``pace`` unless it is empty, and forget the loader that was not used for the longest time."""
        if not loader or not pace.finished:
            return
        self._paces[loader] = pace
        self._paces.move_to_end(loader)
        if len(self._paces) > KEPT_PACES:
            self._paces.popitem(last=False)


def _mean(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


_ALWAYS = 4
"""Number of batches that a session may hold in any case from the start."""


class Load:
    """How busy the machine is. The CPU utilisation is a running mean over a short window; unknown counts as idle.
    ``saturated``: the scheduler's own tasks already keep the workers or the links busy for some time. ``idle``: a
    worker has nothing to do. ``shared``: there are sessions of several loaders."""

    def __init__(self, window_s: float) -> None:
        self.percent = 0.0  # invariant: in [0, 100]
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


@dataclass(eq=False)
class ScheduledSession:
    """The coarse level's state of one session. Comments name its invariants."""

    name: str
    plan: Plan = field(repr=False)
    batches: Sequence[int] = field(repr=False)
    trainers: int
    loader: str
    pace: Pace
    share: float = 1.0
    launched: int = 0  # position of the next batch to launch; at most len(batches)
    announced: int = 0  # position of the next batch to announce; at most ``launched``
    in_flight: int = 0  # launched, not finished: in_flight + len(waiting) == launched - announced
    parked: int = 0  # of these, sampled ahead of those whose rows are fetched
    last_launch: float = -math.inf  # seconds
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Finished, but an earlier batch is not: batch -> (dag, bytes). All lie in batches[announced:launched]."""
    queue: dict[int, int] = field(default_factory=dict)
    """Announced and not taken: batch -> bytes. At most ``announced`` of them."""
    finished_bytes: int = 0  # the sum over ``waiting`` and ``queue``
    dags: dict[int, None] = field(default_factory=dict)
    """Launched and not announced, in launch order: ascending, launched - announced of them."""
    widening: int = 0  # number of those in flight that were launched beyond ``pace.most``; at most ``in_flight``
    check_at: float = math.inf  # when to consider the next launch; inf: when an event gives reason to
    turn: float = 0.0  # milliseconds of work per share, see ``charge``
    before: ScheduledSession | None = None  # the loader's session that was open already: its batches are taken first
    closed: bool = False

    @property
    def finished(self) -> int:
        """Q: finished batches that have not been taken."""
        return len(self.waiting) + len(self.queue)

    @property
    def at_work(self) -> int:
        """Batches in flight that do not wait for later ones to be sampled."""
        return self.in_flight - self.parked

    @property
    def line(self) -> tuple[int, int]:
        """Batches (finished, held) that the consumer has before it, with those of the loader's session before. Held
        batches are in flight or finished."""
        finished, held = self.finished, self.at_work + self.finished
        if self.before is None or self.before.closed:
            return finished, held
        return finished + self.before.finished, held + self.before.at_work + self.before.finished

    def widened(self) -> bool:
        """Note a launch. Returns whether the loader now has more batches at once than ever before."""
        held = self.line[1]
        if held <= self.pace.most:
            return False
        self.pace.most = held
        self.widening += 1
        return True

    def may_widen(self, load: Load, config: SchedulerConfig) -> bool:
        """Whether the loader may have one more batch at once.

        On a busy machine more batches at once all take longer, and none is made sooner. So there may be four; one more
        after ``widening_batches`` batches, and one whenever twice as many are finished: who else keeps the machine busy
        is not known. There may be more only while a worker and the machine are idle. Buffers are used again, and
        touching a new one can take longer than making a batch. So the number rises by steps beyond what the loader has
        ever had: in the beginning it may double with what has been finished, as in TCP's slow start; later it may rise
        by a quarter at a time. While none is in flight, the score alone decides how many finished ones wait; but nobody
        waits for a batch before which as many are finished as at the score's operating point, so it gets no new buffer.
        With several loaders, their turns decide."""
        pace, (finished, held) = self.pace, self.line
        always = _ALWAYS + (pace.finished // config.widening_batches).bit_length()
        if load.shared:
            return True
        if held >= pace.most and self.finished and finished >= config.target_queue:
            return False
        if self.at_work == 0 or held < always:
            return True
        if not load.idle or load.percent >= config.target_utilisation:
            return False
        beginning = pace.finished < config.widening_batches
        return held < pace.most or self.widening < (pace.most if beginning else max(1, pace.most // 4))

    @property
    def hungry(self) -> bool:
        """Whether there are batches left to launch."""
        return self.launched < len(self.batches)

    def charge(self, turn: float) -> float:
        """Move the session's turn forward by one batch. Returns where that batch begins. Start-time fair queueing
        (Goyal, Vin and Cheng 1996): a batch moves its session's turn by its work at home over the session's share. The
        session with the earliest turn launches next. A session that paused gains no credit."""
        start = max(turn, self.turn)
        self.turn = start + (self.pace.work_ms or 0.0) / self.share
        return start

    @property
    def held_bytes(self) -> float:
        """Bytes of finished batches, and the estimate of those in flight."""
        return self.finished_bytes + self.in_flight * (self.pace.batch_bytes or 0.0)

    def within_caps(self, config: SchedulerConfig, free_bytes: float = math.inf) -> bool:
        """Whether one more DAG keeps the bounds on batches and bytes.

        ``free_bytes``: what all sessions together leave of the buffers. A session that holds something must leave as
        much as it will hold then (the dynamic threshold of shared-memory switches, Choudhury and Hahne 1998), so
        stalled sessions never use up everything. A session that holds nothing may take what is free, beyond its own
        bounds."""
        held = self.in_flight + self.finished
        if held == 0:
            return free_bytes >= min(self.pace.batch_bytes or 0.0, config.buffer_bytes or math.inf)
        if held >= config.dag_cap:
            return False
        if self.pace.batch_bytes is None:  # sizes unknown: measure one batch first
            return False
        return self.held_bytes + self.pace.batch_bytes <= min(config.queue_bytes, free_bytes)


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session as the coarse level sees it."""

    name: str
    batches: int  # of the session in all
    launched: int  # of these so far
    in_flight: int  # launched and not finished
    finished: int  # Q: finished and not taken
    finished_bytes: int  # of these
    score: float  # launch score; 0 before the first launch
    sigma: float | None  # what the score has to reach; None until the first batch is finished
    sample_ms: float | None  # running mean: launch to end of a DAG; None until known
    train_ms: float | None  # running mean: consumers' time per batch; None until known


def view(session: ScheduledSession, load: Load, now: float, config: SchedulerConfig) -> SessionView:
    """``session`` at time ``now`` (seconds of the scheduler's clock)."""
    pace, score = session.pace, 0.0
    if session.last_launch > -math.inf:
        gap_ms = 1e3 * max(now - session.last_launch, 0.0)
        score = launch_score(gap_ms, pace, config, utilisation=load.percent, queued=session.line[0])
    return SessionView(
        session.name,
        len(session.batches),
        session.launched,
        session.in_flight,
        session.finished,
        session.finished_bytes,
        score,
        pace.sigma,
        pace.sample_ms,
        pace.train_ms,
    )


EARLY_S = 1e-4
"""How much too early a check may happen. Timers and clocks round differently, and asking for another tick would
spin."""


class WakeUps:
    """Checks of sessions in order of time; at most one wake-up is asked for, that of the earliest check."""

    def __init__(self) -> None:
        self._checks: list[tuple[float, int, ScheduledSession]] = []
        """A heap. An entry counts if it is its session's ``check_at`` and the session is open; others are old."""
        self._sequence = count()
        self._asked: float | None = None
        """The wake-up that the shell holds. After ``next`` it is no later than the earliest check that counts."""

    def plan(self, session: ScheduledSession, when: float) -> None:
        """Look at ``session`` again at ``when``; replaces its check before."""
        session.check_at = when
        heapq.heappush(self._checks, (when, next(self._sequence), session))

    def due(self, now: float) -> ScheduledSession | None:
        """A session whose check is due, once; None: there is none."""
        checks = self._checks
        while checks and checks[0][0] <= now + EARLY_S:
            when, _, session = heapq.heappop(checks)
            if when == session.check_at and not session.closed:
                return session
        return None

    def arrived(self) -> None:
        """The shell's wake-up has come."""
        self._asked = None

    def next(self, now: float) -> float | None:
        """When to be woken; None: the shell holds that wake-up, or an earlier one, or none is needed."""
        checks = self._checks
        while checks and (checks[0][0] != checks[0][2].check_at or checks[0][2].closed):
            heapq.heappop(checks)
        if self._asked is not None and self._asked <= now:
            self._asked = None
        if checks and (self._asked is None or checks[0][0] < self._asked):
            self._asked = checks[0][0]
            return self._asked
        return None
