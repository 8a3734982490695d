"""When a daemon starts, and when it starts again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from atta.errors import ConfigError


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a process starts again, in seconds.

    Attributes:
        first: after a process that had run well.
        most: at most; each failure in a row doubles the wait.
        well: a process that has lived for this long has run well.
    """

    first: float = 0.5
    most: float = 30.0
    well: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.most or self.well <= 0:
            raise ConfigError(f"{self}: waits must be positive, and the first at most the last")

    def wait(self, failures: int) -> float:
        """The wait after so many ``failures`` in a row, from 1."""
        return min(self.most, self.first * 2.0 ** min(failures - 1, 60))


class NextStep(Enum):
    """What the keeper of a daemon does next."""

    WAIT = "wait"
    START = "start"
    STOP = "stop"
    """It knows peers that have moved since: it starts again with the new addresses."""


@dataclass
class Care:
    """What the keeper of one daemon knows. Times are in seconds, of any clock.

    A daemon starts when the addresses of all are known. It starts again without limit, later and later as long as it
    ends soon after its start. When a peer has moved, it is stopped and starts with the new addresses.
    """

    part: int
    backoff: Backoff = field(default_factory=Backoff)
    failures: int = 0
    """Ends in a row of daemons that had not run well."""
    starts: int = 0
    _known: tuple[str, ...] = ()
    _given: tuple[str, ...] = ()
    """The addresses that the running daemon was started with; empty: none runs."""
    _since: float = 0.0
    _not_before: float = 0.0
    _stopping: bool = False

    def told(self, addresses: Sequence[str]) -> None:
        """Addresses of all daemons by partition; none while they are not all known."""
        self._known = tuple(addresses) or self._known

    def decide(self, now: float) -> NextStep:
        """The next step. Whoever calls it does the step, and says so by ``started`` or ``ended``."""
        self.validate()
        if not self._given:
            return NextStep.START if self._known and now >= self._not_before else NextStep.WAIT
        if not self._stopping and self._others(self._given) != self._others(self._known):
            self._stopping = True
            return NextStep.STOP
        return NextStep.WAIT

    def started(self, now: float) -> tuple[str, ...]:
        """A daemon starts; returns the addresses to give it."""
        self._given, self._since, self._stopping = self._known, now, False
        self.starts += 1
        self.validate()
        return self._given

    def ended(self, now: float) -> None:
        """The daemon has ended, by itself or because it was stopped."""
        asked = self._stopping
        self.failures = 0 if asked or now - self._since >= self.backoff.well else self.failures + 1
        self._not_before = now if asked else now + self.backoff.wait(max(1, self.failures))
        self._given, self._stopping = (), False
        self.validate()

    def _others(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        return addresses[: self.part] + addresses[self.part + 1 :]

    def validate(self) -> None:
        """Raise AssertionError if nobody could be in this state."""
        assert self.failures >= 0
        assert not self._stopping or self._given, "only a running daemon is stopped"
        assert not self._given or (self._known and self.starts > 0), "a daemon starts when all addresses are known"
