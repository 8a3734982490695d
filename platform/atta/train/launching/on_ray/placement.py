"""Decisions on Ray: which node gets what, when a daemon starts again, and who serves which partition where. Pure.

Nothing is stored: every keeper announces its daemon again and again, so a table that is lost fills itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from atta.errors import ConfigError
from atta.partition.graph.needs import Needs
from atta.samplers.seed_plan import home_of
from atta.train.launching.nodes import Rank
from atta.wire.clusterfile import check_address

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_name(name: str) -> str:
    """``name`` if a cluster may have it, otherwise ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r}: takes letters, digits, '_', '.' and '-', at most 100, and begins with neither"
        )
    return name


def bundles(needs: Sequence[Needs], threads: int, cache: int, buffer: int) -> list[dict[str, float]]:
    """What Ray reserves for the daemon of each partition: cores and bytes of memory."""
    if threads < 1:
        raise ConfigError(f"threads is {threads}: must be at least 1")
    return [{"CPU": float(threads), "memory": float(need.memory(cache, buffer))} for need in needs]


def home_nodes(trainers: int, nodes: Sequence[str]) -> list[str]:
    """The node of each trainer's home daemon. ``nodes``: of the daemons, by partition."""
    return [nodes[home_of(rank, trainers, len(nodes))] for rank in range(trainers)]


def ranks_on(nodes: Sequence[str]) -> list[Rank]:
    """Number the trainers of each node. ``nodes``: where each rank runs."""
    counts, seen, found = Counter(nodes), Counter[str](), []
    for rank, node in enumerate(nodes):
        found.append(Rank(rank, len(nodes), seen[node], counts[node]))
        seen[node] += 1
    return found


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


SILENT_S = 5.0
"""A daemon that has not been announced for this long has no address: perhaps its machine is lost."""


@dataclass(frozen=True)
class DaemonPlace:
    """Where a daemon is.

    Attributes:
        address: ``host:port`` of the daemon.
        node: Ray's id of the machine.
    """

    address: str
    node: str


@dataclass
class AddressTable:
    """The places of the daemons of ``parts`` partitions, as far as they have been announced lately.

    Times are in seconds, of any clock.
    """

    parts: int
    _places: dict[int, DaemonPlace] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)

    def announce(self, part: int, place: DaemonPlace, now: float) -> None:
        """Note where the daemon of ``part`` is; a later place replaces an earlier one.

        Raises:
            ConfigError: there is no such partition, or the address is none.
        """
        if not 0 <= part < self.parts:
            raise ConfigError(f"partition {part} does not exist: there are {self.parts}")
        check_address(place.address)
        for other in [p for p, known in self._places.items() if p != part and known.address == place.address]:
            del self._places[other], self._heard[other]  # it has moved away, and will say where it is now
        self._places[part], self._heard[part] = place, now
        self.validate()

    def places(self, now: float) -> list[DaemonPlace]:
        """The places of all daemons, by partition; none while one of them is not known."""
        known = [self._places[p] for p in range(self.parts) if now - self._heard.get(p, -math.inf) < SILENT_S]
        return known if len(known) == self.parts else []

    def validate(self) -> None:
        """Raise AssertionError if two daemons have one address, or a partition is none of the dataset."""
        addresses = [place.address for place in self._places.values()]
        assert len({*addresses}) == len(addresses), addresses
        assert self._places.keys() == self._heard.keys() <= {*range(self.parts)}, self._places
