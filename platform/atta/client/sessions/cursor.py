"""Where a consumer is in its stream of batches. Pure.

The client owns its cursor, not the daemon. A batch is a function of (seed, epoch, batch id), so a cursor and the
request that it belongs to are all that any daemon of the partition needs to go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError
from atta.protos.v1 import session_pb2

__all__ = ["Cursor", "StreamPlace", "request_digest"]

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
    """The next batch of a loader.

    Attributes:
        request: ``request_digest`` of the loader's request.
        rank, world: number of the trainer, and of all.
        epoch: number of the epoch, from 0.
        batch: position of the next batch among this rank's batches of the epoch, from 0.
        tables_version: of the tables that the batches before it had; None: the epoch may have the newest.
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
            raise ConfigError(
                f"state of a loader: version {state['version']!r} is unknown, this release has {_VERSION}"
            )
        request, numbers = state["request"], {name: state[name] for name in _KEYS[2:]}
        if not isinstance(request, str):
            raise ConfigError(f"state of a loader: request is {request!r}, must be a text")
        tables = state.get(_TABLES)
        for name, value in [*numbers.items(), (_TABLES, 0 if tables is None else tables)]:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
                raise ConfigError(f"state of a loader: {name} is {value!r}, must be a whole number from 0")
        return cls(request, **numbers, tables_version=tables)
