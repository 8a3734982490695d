"""What gRPC itself bounds for a daemon: connections, calls, messages. ``docs/daemon.md`` lists all bounds.

Bounds of single requests stand with what checks them: their bytes and fields in ``atta.wire.messages.fields``, memory of
requests and answers in ``atta.daemon.services.rooms``, sessions in ``atta.daemon.services.opening``, tables in
``atta.kvstore.tables``. Bounds that people set are options of ``DaemonConfig``.
"""

from __future__ import annotations

from typing import Any

from atta.daemon.config import DaemonConfig
from atta.wire import rpc
from atta.wire.messages.pieces import MESSAGE_BYTES

__all__ = ["grpc_options"]

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
