"""Restarts a cluster daemon by daemon. What there is to see and to do comes from a ``Fleet``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from atta.cli.cluster.rolling.plan import (
    Phase,
    Restart,
    Seen,
    in_order,
    not_seen,
    refusal,
    refusals,
    waiting_first,
)
from atta.errors import AttaError, ConfigError
from atta.wire.parts import Addresses

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
        part. ``tell`` gets a line about each phase.
        """
        self._fleet, self._order, self._pauses = fleet, in_order(addresses), allow_pause
        self._timeout_s, self._tell, self._clock, self._sleep = timeout_s, tell, clock, sleep
        self.rolled: list[Rolled] = []

    def run(self, interrupted: Callable[[], bool] = lambda: False) -> list[Rolled]:
        """Restart all daemons.

        ``interrupted`` is asked between two daemons; if it says so, KeyboardInterrupt is raised there, so that no
        daemon stays half restarted.

        Raises:
            ConfigError: a part would be without any ready daemon. Nothing has been stopped, or no further daemon is.
            AttaError: a daemon did not stop or come back in time; the rest are as they were.
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
                raise AttaError(self._late(name, restart.phase))
            self._sleep(LOOK_S)

    def _late(self, name: str, phase: Phase) -> str:
        rest = len(self._order) - len(self.rolled) - 1
        others = f"the other {rest} daemons were not touched" if rest else "all others are done"
        return f"{name}: still {phase.value} after {self._timeout_s:g} s (--timeout); {others}"


def _one(seen: list[Seen], address: str) -> Seen:
    return next(one for one in seen if one.address == address)
