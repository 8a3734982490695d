"""Where a consumer is in its stream of batches, and when it asks for a lost session again. Pure. The client owns its
cursor, not the daemon. A batch is a function of (seed, epoch, batch id), so a cursor and the request that it belongs to
are all that any daemon of the partition needs to go on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError
from atta.protos.v1 import session_pb2

_VERSION = 1
_KEYS = ("version", "request", "rank", "world", "epoch", "batch")
_TABLES = "tables_version"
_NOT_OF_BATCHES = ("epoch", "start_batch", "session", "version", "shared_memory", "wide_ids", "job", "share")
"""Fields of a request that do not change what is in the batches of an epoch, or that the cursor holds itself."""
_MOST = (1 << 64) - 1


def request_digest(request: session_pb2.OpenRequest) -> str:
    """SHA-256 (hex) of what decides the batches: dataset, DAG, seeds, sizes, order, rank, codec."""
    named = session_pb2.OpenRequest()
    named.CopyFrom(request)
    for name in _NOT_OF_BATCHES:
        named.ClearField(name)
    return hashlib.sha256(named.SerializeToString(deterministic=True)).hexdigest()


@dataclass(slots=True)
class StreamPlace:
    """The place of a running iterator: the epoch, the number of this rank's batches that it has delivered, and the
    version of the tables that the epoch has (None: it has not begun)."""

    epoch: int
    batch: int = 0
    version: int | None = None


@dataclass(frozen=True)
class Cursor:
    """The next batch of a loader, by the trainer, and ``batch``: its position among this rank's batches of the epoch.
    ``request``: see ``request_digest``. ``tables_version``: of the batches before it; None: the epoch may have the newest.
    """

    request: str
    rank: int
    world: int
    epoch: int
    batch: int
    tables_version: int | None = None

    def to_state(self) -> dict[str, Any]:
        """The cursor as plain values that ``torch.save`` and JSON can store."""
        state: dict[str, Any] = {"version": _VERSION, **{name: getattr(self, name) for name in _KEYS[1:]}}
        return state if self.tables_version is None else {**state, _TABLES: self.tables_version}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Cursor:
        """The cursor that ``to_state`` has stored; raises ConfigError if it is something else."""
        if not isinstance(state, Mapping) or set(state) - {_TABLES} != set(_KEYS):
            raise ConfigError(f"state of a loader: must have exactly the keys {', '.join(_KEYS)}")
        if state["version"] != _VERSION:
            raise ConfigError(f"state of a loader: unknown version {state['version']!r}, this release has {_VERSION}")
        request, numbers = state["request"], {name: state[name] for name in _KEYS[2:]}
        if not isinstance(request, str):
            raise ConfigError(f"state of a loader: request is {request!r}, must be a text")
        tables = state.get(_TABLES)
        for name, value in [*numbers.items(), (_TABLES, 0 if tables is None else tables)]:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
                raise ConfigError(f"state of a loader: {name} is {value!r}, must be a whole number from 0")
        return cls(request, **numbers, tables_version=tables)


FIRST_WAIT_S = 0.05
"""Mean wait before the second attempt of an outage, doubled for each further one. The first comes at once."""
LONGEST_WAIT_S = 1.0
OUTAGES = 10
"""Most outages that the budget holds. It is full at first."""
PER_OUTAGE = 10
"""Number of batches that earn one outage."""


class Reattachment:
    """Decides whether and when a lost session is opened again. Pure: times are seconds of any monotonic clock, passed in.

    An *outage* begins when a session is lost, and ends when a batch arrives. Within one, attempts come with growing,
    jittered waits until ``limit_s`` have passed. Outages have a budget: each costs one, and ten batches earn one back. So a
    daemon that dies again and again is not asked for ever, even if a few batches come in between.
    """

    def __init__(self, limit_s: float, batch: int = 0) -> None:
        """``limit_s``: longest outage that is waited for; 0: none. ``batch``: the first batch that is wanted."""
        self._limit_s, self._batch = limit_s, batch
        self._budget = OUTAGES * PER_OUTAGE  # in batches
        self._since: float | None = None
        self._attempts = 0
        self._over = False

    def wait_s(self, now: float, batch: int, jitter: float) -> float | None:
        """The session was lost, or an attempt failed: seconds until the next attempt, or None to give up. ``batch``:
        the next one that is wanted; if it has grown, batches came in between. ``jitter``: a random number in [0, 1)."""
        if batch > self._batch:
            self._budget = min(OUTAGES * PER_OUTAGE, self._budget + batch - self._batch)
            self._batch, self._since = batch, None
        if self._since is None:
            self._over = self._over or self._budget < PER_OUTAGE or self._limit_s == 0
            self._budget -= 0 if self._over else PER_OUTAGE
            self._since, self._attempts = now, 0
        if self._over or now - self._since >= self._limit_s:
            self._over = True
            return None
        wait_s = 0.0
        if self._attempts:
            mean = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._attempts - 1, 30))
            wait_s = min(mean * (0.5 + jitter), self._limit_s - (now - self._since))
        self._attempts += 1
        return wait_s

    def left_s(self, now: float) -> float:
        """How long the present outage may still last; ``limit_s`` if there is none."""
        lasted_s = 0.0 if self._since is None else now - self._since
        return max(0.0, self._limit_s - lasted_s)

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert 0 <= self._budget <= OUTAGES * PER_OUTAGE, f"a budget of {self._budget} batches"
        assert self._attempts >= 0, f"{self._attempts} attempts"
        assert self._since is not None or not self._over, "given up without an outage"
