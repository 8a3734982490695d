"""Which faults come when: a function of a seed. Pure."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atta.errors import ConfigError, UnknownNameError

__all__ = ["Fault", "FaultKind", "kinds_of", "plan_faults"]


class FaultKind(enum.Enum):
    """What is done to a process."""

    KILL = "kill"
    """SIGKILL. A supervisor starts it again."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT later."""
    CUT = "cut"
    """Its network interface goes down, and up again later."""
    DISK = "disk"
    """The disk of its checkpoints is full for a while."""
    MEMORY = "memory"
    """It may take next to no further memory for a while."""


_TARGETS = {
    FaultKind.KILL: ("daemon", "consumer", "trainer"),
    FaultKind.STOP: ("daemon", "consumer", "trainer"),
    FaultKind.CUT: ("daemon",),
    FaultKind.DISK: ("trainer",),
    FaultKind.MEMORY: ("daemon",),
}
_LASTS_S = {
    FaultKind.KILL: (0.0, 0.0),
    FaultKind.STOP: (0.5, 6.0),
    FaultKind.CUT: (0.5, 6.0),
    FaultKind.DISK: (2.0, 6.0),
    FaultKind.MEMORY: (1.0, 4.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: when it begins, what it is, the name of the process that it hits, and how long it lasts (0: at once)."""

    at_s: float
    kind: FaultKind
    target: str
    lasts_s: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "kind": self.kind.value}


def kinds_of(names: Sequence[str]) -> list[FaultKind]:
    """The kinds with these names, each once; raises UnknownNameError or ConfigError."""
    known = {kind.value: kind for kind in FaultKind}
    for name in names:
        if name not in known:
            raise UnknownNameError.of("fault", name, known)
    if not names:
        raise ConfigError("--faults names none")
    return [known[name] for name in dict.fromkeys(names)]


def plan_faults(
    seed: int,
    seconds: float,
    kinds: Sequence[FaultKind],
    processes: Sequence[str],
    every_s: float,
    *,
    spared: Sequence[str] = (),
) -> list[Fault]:
    """Faults for ``seconds``, one after another, so that a replica is left while one daemon is away.

    Args:
        seed: the same one gives the same faults.
        seconds: how long they go on.
        kinds: which kinds there are.
        processes: names that begin with ``daemon``, ``consumer`` or ``trainer``. Half of the faults hit daemons.
        every_s: mean time from the end of a fault to the begin of the next one; half to one and a half times as long.
        spared: processes that are not killed. Other faults hit them too.

    Raises:
        ConfigError: a kind has nothing that it could hit.
    """
    draw = random.Random(seed)
    victims = {kind: [p for p in processes if p.startswith(_TARGETS[kind])] for kind in kinds}
    if FaultKind.KILL in victims:
        victims[FaultKind.KILL] = [p for p in victims[FaultKind.KILL] if p not in spared]
    if empty := [kind.value for kind, found in victims.items() if not found]:
        raise ConfigError(f"--faults {','.join(empty)}: there is no process that it hits")
    faults, now = list[Fault](), every_s
    while (begins := round(now, 3)) < seconds:
        kind = draw.choice(list(kinds))
        daemons = [name for name in victims[kind] if name.startswith("daemon")]
        others = [name for name in victims[kind] if not name.startswith("daemon")]
        target = draw.choice(daemons if daemons and (not others or draw.random() < 0.5) else others)
        fault = Fault(begins, kind, target, round(draw.uniform(*_LASTS_S[kind]), 3))
        faults.append(fault)
        now += fault.lasts_s + every_s * draw.uniform(0.5, 1.5)
    return faults
