"""Where requests to a daemon come in: who may come, room for what they bring, the threads that answer peers, gRPC, and the
files and connections that the process may have. ``docs/reference/limits.md`` lists all bounds."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2

from atta.daemon.config import DaemonConfig
from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.security import DaemonSecurity
from atta.daemon.services.data import TurnPool
from atta.daemon.services.handling import Handling, Wrap, add_health_and_reflection, everybody
from atta.daemon.services.rooms import AnswerRoom, Debts, RequestRoom
from atta.errors import ConfigError
from atta.observe.answering import App
from atta.observe.metrics import DaemonCollector, DaemonFigures, serve_metrics
from atta.observe.packages import __version__
from atta.wire import rpc
from atta.wire.identity import Identity
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
    Pure. Raises ConfigError: they are not; says how to change that."""
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
    """How many of ``max_connections`` of gRPC this process may have. Then it can still open memory files, reach peers,
    and answer consumers of ``max_sessions`` sessions on this machine."""
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


def is_free(address: str) -> bool:
    """Whether nobody listens there; gRPC would write a line of its own beside the error."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


log = structlog.get_logger("atta.daemon")


class DaemonFront:
    """``bind``, ``start``, ``refuse`` new work, ``stop``, ``close``. Without ``security`` callers are not asked who they are. The
    port of ``address`` is known after ``bind``."""

    server: grpc.aio.Server

    def __init__(self, config: DaemonConfig) -> None:
        """Raises DataError or ConfigError: see ``DaemonSecurity``."""
        self._config, self.address, self.debts = config, config.listen, Debts()
        self.security = DaemonSecurity.of(config, self.debts)
        self.outgoing = None if self.security is None else self.security.outgoing
        self.answers = AnswerRoom(config.answer_bytes, 3 * CHUNK_BYTES, self.debts)
        self.pool = TurnPool(config.threads, "atta-serve")
        self._requests = RequestRoom(config.request_bytes, self.debts)
        self._handling: Handling | None = None

    def serve_metrics(
        self, identity: Identity, read: Callable[[], DaemonFigures], beside: Mapping[str, tuple[str, App]] | None = None
    ) -> None:
        """Serve Prometheus' metrics, if they are wanted, and what is ``beside`` them: by path the method that
        a caller must be allowed, and what answers. Raises ConfigError where the port is in use."""
        if (address := self._config.metrics_address) is None:
            return
        (host, port), about = address, {"dataset": identity.dataset_id, "version": __version__}
        collector = DaemonCollector(self._config.parts.start, about, read)
        if self.security is not None:
            self.security.serve_metrics(host, port, collector, beside)
        else:
            serve_metrics(port, collector, host=host, beside={path: app for path, (_, app) in (beside or {}).items()})
        log.info("metrics", address=f"{host}:{port}")

    def bind(
        self,
        identity: Identity,
        services: Mapping[str, object],
        wraps: Mapping[str, Wrap],
        check_files: Callable[[], None],
    ) -> None:
        """Take the address for ``services``, whose methods are named as in the .proto files. ``wraps``: what is put around
        the handlers of a service. ``check_files``: as for ``Handling``. Raises ConfigError: the address cannot be had."""
        config, security = self._config, self.security
        admit = everybody if security is None else security.guard.admit
        self._handling = handling = Handling(identity, config.listen, self._requests, check_files, admit)
        self.server = grpc.aio.server(
            options=grpc_options(config, connections_that_fit(config.max_connections, config.max_sessions)),
            maximum_concurrent_rpcs=config.max_calls,
        )
        self.server.add_generic_rpc_handlers(
            [handling.service(name, service, wraps.get(name)) for name, service in services.items()]
        )
        self._names = ["", *(f"atta.v1.{name}" for name in services)]
        self._health = add_health_and_reflection(self.server, self._names[1:], admit)
        if not is_free(config.listen):
            raise ConfigError(f"cannot listen on {config.listen}: the address is in use")
        try:
            if security is not None:
                port = security.listen(self.server, config.listen)
            else:
                port = self.server.add_insecure_port(config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {config.listen}: it is in use, not of this machine, or no host has this name"
            ) from error
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        await self.server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {} if self.security is None else {"watch_certificate": self.security.watch_certificate()}

    def stats(self) -> dict[str, float]:
        return {
            "request_bytes": float(self._requests.used_bytes),
            "answer_bytes": float(self.answers.used_bytes),
            **({} if self._handling is None else self._handling.stats()),
            **({} if self.security is None else self.security.stats()),
        }

    async def refuse(self) -> None:
        """Say that the daemon is not serving any more."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float | None) -> None:
        """Answer no more requests. Those under way have ``grace`` seconds."""
        await self.server.stop(grace=grace)

    def close(self) -> None:
        self.pool.shutdown()
