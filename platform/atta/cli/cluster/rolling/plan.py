"""Decides how a cluster is restarted daemon by daemon: in which order, whether at all, and how far a restart is. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from atta.wire.parts import Addresses, replicas_of


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of a daemon.

    Attributes:
        part, address: its first partition, and where it listens.
        incarnation: of its process; empty: nobody answers.
        draining: it is stopping.
        leaving: nobody answers, but its process is still there, or may be.
        pid: of the process, if that runs on this machine; else 0.
        version: its release.
    """

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
    """First partition and address of each daemon, in the order in which to restart them.

    Consumers begin with the replica that stands first in the cluster file. It comes last, so that they move once.
    """
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
    expected = {one.address for one in seen if one.part in ready}
    return sorted(expected & set(unreached))


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

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert (self.phase in {Phase.JOINING, Phase.DONE}) == bool(self.after), f"{self.phase} with {self.after!r}"
        assert not self.after or self.after != self._before, "the process of before counts as its successor"
        assert self._before or self.phase is not Phase.LEAVING, "a daemon that was down leaves"
