"""A rolling restart: one daemon after another, each waited for until it serves what it had."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from atta.errors import AttaError, ConfigError
from atta.wire.parts import Addresses, replicas_of


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of a daemon. An empty ``incarnation`` means that nobody answers. ``leaving``: nobody answers,
    but its process is still there, or may be. ``pid``: if it runs on this machine; else 0."""

    part: int
    address: str
    incarnation: str = ""
    draining: bool = False
    leaving: bool = False
    pid: int = 0
    version: str = ""

    @property
    def ready(self) -> bool:
        """Whether it takes sessions."""
        return bool(self.incarnation) and not self.draining


def in_order(addresses: Mapping[int, Addresses]) -> list[tuple[int, str]]:
    """First partition and address of each daemon, in the order in which to restart them. Consumers begin with the
    replica that stands first in the cluster file. It comes last, so that they move once."""
    return [(part, address) for part in sorted(addresses) for address in reversed(replicas_of(addresses[part]))]


def refusal(seen: Sequence[Seen], part: int, address: str) -> str:
    """Why the daemon at ``address`` must not stop now: its part would be without any ready daemon. Empty: it may."""
    if not any(one.ready for one in seen if (one.part, one.address) == (part, address)):
        return ""  # it serves nobody
    others = [one for one in seen if one.part == part and one.address != address]
    if any(one.ready for one in others):
        return ""
    known = f"none of its replicas is ready ({', '.join(one.address for one in others)})" if others else "no replica"
    return f"part {part} would be without a daemon while {address} restarts: {known}"


def not_seen(seen: Sequence[Seen], unreached: Iterable[str]) -> list[str]:
    """The addresses that a daemon does not reach although their part has a ready daemon."""
    ready = {one.part for one in seen if one.ready}
    return sorted({one.address for one in seen if one.part in ready} & set(unreached))


def waiting_first(order: Sequence[tuple[int, str]], seen: Sequence[Seen]) -> list[tuple[int, str]]:
    """The same order, but daemons that are down come before all others: starting them costs nobody anything."""
    down = {one.address for one in seen if not one.incarnation}
    return sorted(order, key=lambda place: place[1] not in down)


def refusals(order: Sequence[tuple[int, str]], seen: Sequence[Seen]) -> list[str]:
    """Why the daemons cannot be restarted in this ``order``, if each is ready again before the next one stops."""
    found, now = [], list(seen)
    for part, address in order:
        found.append(refusal(now, part, address))
        now = [replace(one, incarnation="again", draining=False) if one.address == address else one for one in now]
    return [reason for reason in found if reason]


class Phase(enum.Enum):
    """How far the restart of a daemon is."""

    LEAVING = "stopping"
    STARTING = "starting"
    JOINING = "joining"
    DONE = "done"


class Restart:
    """The restart of one daemon, from the request to stop until its peers see its successor."""

    def __init__(self, before: str) -> None:
        """``before``: the incarnation that is to end; empty: the daemon is down already."""
        self._before = before
        self.phase = Phase.LEAVING if before else Phase.STARTING
        self.after = ""
        """Incarnation of the successor, once it serves."""

    def look(self, seen: Seen) -> None:
        """Take note of what is at the address now."""
        if self.phase is Phase.LEAVING and not seen.incarnation and not seen.leaving:
            self.phase = Phase.STARTING
        if self.phase is Phase.DONE or not seen.ready or seen.incarnation == self._before:
            return
        self.phase, self.after = Phase.JOINING, seen.incarnation  # also if a supervisor was quicker than a look

    def joined(self, missing: Sequence[str]) -> None:
        """``missing``: addresses that daemons still do not reach."""
        if self.phase is Phase.JOINING and not missing:
            self.phase = Phase.DONE


LOOK_S = 0.2
"""How long to wait between two looks at a daemon."""


class Fleet(Protocol):
    """The daemons of a cluster."""

    def look(self) -> list[Seen]:
        """All of them."""

    def stop(self, daemon: Seen) -> None:
        """Ask one to drain and exit. What is needed to start it again is remembered."""

    def start(self, daemon: Seen) -> None:
        """Start it again, unless a supervisor does."""

    def unreached(self) -> list[str]:
        """Addresses that some daemon does not reach."""


@dataclass(frozen=True)
class Rolled:
    """A daemon that has been restarted: its releases, its processes, and how long each phase took, in seconds."""

    part: int
    address: str
    version_before: str
    version: str
    incarnation: str
    stopping_s: float
    starting_s: float
    joining_s: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Roll:
    """One rolling restart. ``run`` it once; ``rolled`` has what is done."""

    def __init__(
        self,
        fleet: Fleet,
        addresses: Mapping[int, Addresses],
        *,
        allow_pause: bool,
        timeout_s: float,
        tell: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """``timeout_s``: how long each phase of a restart may take. ``allow_pause``: restart also the only daemon of a
        part. ``tell`` gets a line about each phase."""
        self._fleet, self._order, self._pauses = fleet, in_order(addresses), allow_pause
        self._timeout_s, self._tell, self._clock, self._sleep = timeout_s, tell, clock, sleep
        self.rolled: list[Rolled] = []

    def run(self, interrupted: Callable[[], bool] = lambda: False) -> list[Rolled]:
        """Restart all daemons.

        ``interrupted`` is asked between two daemons; if it says so, KeyboardInterrupt is raised there, so that no
        daemon stays half restarted. Raises ConfigError: a part would be without any ready daemon. Nothing has been
        stopped, or no further daemon is; AttaError: a daemon did not stop or come back in time; the rest are as they
        were.
        """
        self._order = waiting_first(self._order, self._fleet.look())
        self._refuse(refusals(self._order, self._fleet.look()))
        for part, address in self._order:
            if interrupted():
                raise KeyboardInterrupt
            seen = self._fleet.look()
            self._refuse([refusal(seen, part, address)])
            self.rolled.append(self._restart(_one(seen, address)))
        return self.rolled

    def _refuse(self, reasons: list[str]) -> None:
        told = [reason for reason in reasons if reason]
        if told and not self._pauses:
            raise ConfigError(f"{'; '.join(told)}. --allow-pause restarts it all the same: consumers wait for it")

    def _restart(self, before: Seen) -> Rolled:
        restart, began = Restart(before.incarnation), self._clock()
        spent = dict.fromkeys(Phase, 0.0)
        name = f"part {before.part} at {before.address}"
        if restart.phase is Phase.LEAVING:
            self._tell(f"{name}: stopping")
            self._fleet.stop(before)
        else:
            self._tell(f"{name}: is down, starting it")
            self._fleet.start(before)
        while True:
            phase, seen = restart.phase, self._fleet.look()
            restart.look(_one(seen, before.address))
            if restart.phase is Phase.JOINING:
                restart.joined(not_seen(seen, self._fleet.unreached()))
            now = self._clock()
            if restart.phase is not phase:
                spent[phase], began = now - began, now
                if restart.phase is not Phase.DONE:
                    self._tell(f"{name}: {restart.phase.value} ({phase.value} took {spent[phase]:.1f} s)")
                if restart.phase is Phase.STARTING:
                    self._fleet.start(before)
            if restart.phase is Phase.DONE:
                after = _one(seen, before.address)
                self._tell(f"{name}: serves, Atta {after.version}")
                about = (before.part, before.address, before.version, after.version, restart.after)
                return Rolled(*about, spent[Phase.LEAVING], spent[Phase.STARTING], spent[Phase.JOINING])
            if now - began > self._timeout_s:
                rest = len(self._order) - len(self.rolled) - 1
                others = f"the other {rest} daemons were not touched" if rest else "all others are done"
                late = f"still {restart.phase.value} after {self._timeout_s:g} s (--timeout)"
                raise AttaError(f"{name}: {late}; {others}")
            self._sleep(LOOK_S)


def _one(seen: list[Seen], address: str) -> Seen:
    return next(one for one in seen if one.address == address)
