"""The coarse level (ByteGNN §4.2): what it knows of a session when it decides whether to launch the next DAG.

``policies`` decides with it, ``score`` has the formulas. Beyond them stand caps on batches and bytes
(``ScheduledSession.within_caps``) and a limit on how fast the number of batches at once may rise
(``ScheduledSession.may_widen``). Times are milliseconds here, seconds outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from atta.samplers.dag.spec import Plan
from atta.scheduler.config import SchedulerConfig
from atta.scheduler.pace import Pace

__all__ = ["Load", "ScheduledSession"]

_ALWAYS = 4
"""Number of batches that a session may hold in any case from the start."""


class Load:
    """How busy the machine is. The CPU utilisation is a running mean over a short window; unknown counts as idle.

    ``saturated``: the scheduler's own tasks already keep the workers or the links busy for some time. ``idle``: a
    worker has nothing to do. ``shared``: there are sessions of several loaders.
    """

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
    """The coarse level's state of one session. ``validate`` checks the invariants that the comments name."""

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
    def line(self) -> tuple[int, int]:
        """Batches (finished, held) that the consumer has before it, with those of the loader's session before.

        Held batches are in flight or finished.
        """
        finished, held = self.finished, self.in_flight + self.finished
        if self.before is None or self.before.closed:
            return finished, held
        return finished + self.before.finished, held + self.before.in_flight + self.before.finished

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
        With several loaders, their turns decide.
        """
        pace, (finished, held) = self.pace, self.line
        always = _ALWAYS + (pace.finished // config.widening_batches).bit_length()
        if load.shared:
            return True
        if held >= pace.most and self.finished and finished >= config.target_queue:
            return False
        if self.in_flight == 0 or held < always:
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
        """Move the session's turn forward by one batch. Returns where that batch begins.

        Start-time fair queueing (Goyal, Vin and Cheng 1996): a batch moves its session's turn by its work at home over
        the session's share. The session with the earliest turn launches next. A session that paused gains no credit.
        """
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
        bounds.
        """
        held = self.in_flight + self.finished
        if held == 0:
            return free_bytes >= min(self.pace.batch_bytes or 0.0, config.buffer_bytes or math.inf)
        if held >= config.dag_cap:
            return False
        if self.pace.batch_bytes is None:  # sizes unknown: measure one batch first
            return False
        return self.held_bytes + self.pace.batch_bytes <= min(config.queue_bytes, free_bytes)

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        name = f"session {self.name!r}"
        assert 0 <= self.announced <= self.launched <= len(self.batches), (
            f"{name}: announced {self.announced}, launched {self.launched} of {len(self.batches)}"
        )
        assert self.in_flight >= 0, f"{name}: {self.in_flight} batches are in flight"
        assert self.in_flight + len(self.waiting) == self.launched - self.announced, (
            f"{name}: {self.in_flight} in flight and {len(self.waiting)} waiting are not launched - announced"
        )
        assert len(self.dags) == self.launched - self.announced, f"{name}: {len(self.dags)} DAGs are not announced"
        numbers = [*self.dags]
        assert numbers == sorted(numbers), f"{name}: DAGs out of launch order"
        unannounced = {self.batches[at] for at in range(self.announced, self.launched)}
        assert self.waiting.keys() <= unannounced, f"{name}: waiting batches were not launched, or were announced"
        assert not self.queue.keys() & unannounced, f"{name}: queued batches were not announced"
        assert len(self.queue) <= self.announced, f"{name}: more batches in the queue than announced"
        held = sum(nbytes for _, nbytes in self.waiting.values()) + sum(self.queue.values())
        assert self.finished_bytes == held, f"{name}: finished_bytes is {self.finished_bytes}, not {held}"
        assert 0 <= self.widening <= self.in_flight, f"{name}: {self.widening} of {self.in_flight} widen"
        assert self.pace.most >= self.in_flight or not self.in_flight, f"{name}: more in flight than pace.most"
