"""Decisions on Ray: which node gets what, when a daemon starts again, and who serves which partition where. Pure.
Nothing is stored: every keeper announces its daemon again and again, so a registry that is lost fills itself."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

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


FIRST_S, MOST_S, WELL_S = 0.5, 30.0, 60.0
"""How long to wait before a daemon starts again: the first of a row of failures, which doubles, and at most. One that has
lived for the last has run well: it begins another row."""


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

    ``failures``: ends in a row of daemons that had not run well.
    """

    part: int
    failures: int = 0
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
        return self._given

    def ended(self, now: float) -> None:
        """The daemon has ended, by itself or because it was stopped."""
        asked = self._stopping
        self.failures = 0 if asked or now - self._since >= WELL_S else self.failures + 1
        self._not_before = now if asked else now + min(MOST_S, FIRST_S * 2.0 ** min(max(0, self.failures - 1), 60))
        self._given, self._stopping = (), False

    def _others(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        return addresses[: self.part] + addresses[self.part + 1 :]


SILENT_S = 5.0
"""A daemon that has not been announced for this long has no address: perhaps its machine is lost."""


class Registry:
    """The actor named as the cluster: it knows who is where. If it is lost, keepers tell it all again."""

    def __init__(self, parts: int, tls: Mapping[str, str]) -> None:
        self._parts, self._tls = parts, dict(tls)
        self._places: dict[int, tuple[str, str, float]] = {}

    def announce(self, part: int, address: str, node: str, now: float | None = None) -> list[str]:
        """Note where a daemon is; a later place replaces an earlier one. Returns ``known``'s addresses. Raises
        ConfigError: there is no such partition, or the address is none."""
        if not 0 <= part < self._parts:
            raise ConfigError(f"partition {part} does not exist: there are {self._parts}")
        check_address(address)
        for other in [p for p, known in self._places.items() if p != part and known[0] == address]:
            del self._places[other]  # it has moved away, and will say where it is now
        self._places[part] = address, node, time.monotonic() if now is None else now
        return list(self.known(now)["addresses"])

    def known(self, now: float | None = None) -> dict[str, Any]:
        """What ``atta.wire.clusterfile.NamedCluster`` has, as plain values; no addresses while one is not known."""
        now = time.monotonic() if now is None else now
        places = [self._places.get(part, ("", "", -math.inf)) for part in range(self._parts)]
        if any(now - heard >= SILENT_S for _, _, heard in places):
            places = []
        return {"addresses": [p[0] for p in places], "nodes": [p[1] for p in places], "tls": self._tls}
