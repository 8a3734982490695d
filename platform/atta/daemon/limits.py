"""What a daemon bounds as a process: open files, and connections, calls and messages of gRPC. ``docs/reference/limits.md`` lists
all bounds.

Bounds of single requests stand with what checks them: their bytes and fields in ``atta.wire.bulk``, memory of
requests and answers in ``atta.daemon.services.rooms``, sessions in ``atta.daemon.services.opening``, tables in
``atta.kvstore.tables``. Bounds that people set are options of ``DaemonConfig``.
"""

from __future__ import annotations

import os
import resource
from typing import Any

from atta.daemon.config import DaemonConfig
from atta.errors import ConfigError
from atta.wire import rpc
from atta.wire.pieces import MESSAGE_BYTES

MAX_STREAMS = 128
"""At most this many requests of one connection are answered at a time, apart from one per session. Each holds a message
or two in memory; further ones wait. A session's own request may wait long, for its batch or for its consumer, and must
not keep renewals waiting."""
MAX_PENDING = 16_384
"""At most this many calls wait until the event loop looks at them. Beyond 1,000, gRPC's own bound, it would begin to
reset calls of any connection at random. One connection alone cannot have this many."""
_IDENTITY_ONLY = 1
"""A set of compression algorithms, one bit each."""


def grpc_options(config: DaemonConfig, connections: int) -> list[tuple[str, Any]]:
    """Options of the daemon's gRPC side, for at most this many ``connections``."""
    return [
        *rpc.channel_options(MESSAGE_BYTES),
        # Without this option two daemons could share a port, and each would get some of the other's requests.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", MAX_STREAMS + config.max_sessions),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
        # A compressed message may become a thousand times its size. Neither side of Atta compresses any.
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.per_message_decompression", 0),
    ]


PER_SESSION = 2
"""Connections of a session: one of gRPC, and the socket of a consumer on this machine."""
OTHER = 64
"""Number of files that a daemon needs apart from those: for peers, memory files and operators."""


def check_descriptors(limit: int, used: int, max_sessions: int) -> None:
    """Check that ``limit`` open files (-1: any number) are enough for ``max_sessions``, with ``used`` already open.
    Pure.

    Raises:
        ConfigError: they are not; says how to change that.
    """
    wanted = used + OTHER + PER_SESSION * max_sessions
    if 0 <= limit < wanted:
        possible = (limit - used - OTHER) // PER_SESSION
        lower = f"lower --max-sessions from {max_sessions} to {possible}, or " if possible > 0 else ""
        raise ConfigError(
            f"{limit} files may be open, {wanted} are needed for {max_sessions} sessions (--max-sessions): "
            f"{lower}raise the limit (ulimit -Hn)"
        )


def within_descriptors(limit: int, used: int, max_connections: int) -> int:
    """How many of ``max_connections`` fit into ``limit`` open files (-1: any number), with ``used`` already open or
    spoken for. Pure."""
    return max_connections if limit < 0 else max(1, min(max_connections, limit - used - OTHER))


def connections_that_fit(max_connections: int, max_sessions: int) -> int:
    """How many of ``max_connections`` of gRPC this process may have.

    Then it can still open memory files, reach peers, and answer consumers of ``max_sessions`` sessions on this machine.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files() + max_sessions
    return within_descriptors(-1 if limit == resource.RLIM_INFINITY else limit, used, max_connections)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def ensure_descriptors(max_sessions: int) -> None:
    """Raise the limit of this process to the highest allowed; raises ConfigError if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    check_descriptors(-1 if hard == resource.RLIM_INFINITY else hard, _open_files(), max_sessions)
