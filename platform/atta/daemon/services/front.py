"""Where requests to a daemon come in: who may come, room for what they bring, the threads that answer peers, gRPC."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2

from atta.daemon.config import DaemonConfig
from atta.daemon.limits import connections_that_fit, grpc_options
from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.security.security import DaemonSecurity
from atta.daemon.services.data import TurnPool
from atta.daemon.services.handling import Handling, Wrap, add_health_and_reflection
from atta.daemon.services.rooms import AnswerRoom, Debts, RequestRoom
from atta.errors import ConfigError
from atta.observe.metrics import DaemonCollector, DaemonFigures, serve_metrics
from atta.observe.versions import __version__
from atta.wire.identity import Identity

log = structlog.get_logger("atta.daemon")


class DaemonFront:
    """``bind``, ``start``, ``refuse`` new work, ``stop``, ``close``.

    Attributes:
        address: where the daemon listens; its port is known after ``bind``.
        security: None: callers are not asked who they are.
        debts: of connections.
        answers: room for large answers.
        pool: makes answers to peers.
        server: of gRPC, after ``bind``.
    """

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

    def serve_metrics(self, identity: Identity, read: Callable[[], DaemonFigures]) -> None:
        """Serve Prometheus' metrics, if they are wanted. Raises ConfigError where the port is in use."""
        if (address := self._config.metrics_address) is None:
            return
        (host, port), about = address, {"dataset": identity.dataset_id, "version": __version__}
        collector = DaemonCollector(self._config.parts.start, about, read)
        if self.security is not None:
            self.security.serve_metrics(host, port, collector)
        else:
            serve_metrics(port, collector, host=host)
        log.info("metrics", address=f"{host}:{port}")

    def bind(
        self,
        identity: Identity,
        services: Mapping[str, object],
        wraps: Mapping[str, Wrap],
        check_files: Callable[[], None],
    ) -> None:
        """Take the address for ``services``, by their names.

        Args:
            identity: of the daemon.
            services: their methods are named as in the .proto files.
            wraps: what is put around the handlers of a service.
            check_files: raises DataError if a file has changed from which answers are read.

        Raises:
            ConfigError: the address cannot be had.
        """
        config, security = self._config, self.security
        self._handling = handling = Handling(identity, config.listen, self._requests, check_files)
        self.server = grpc.aio.server(
            options=grpc_options(config, connections_that_fit(config.max_connections, config.max_sessions)),
            maximum_concurrent_rpcs=config.max_calls,
            interceptors=() if security is None else (security.guard,),
        )
        self.server.add_generic_rpc_handlers(
            [handling.service(name, service, wraps.get(name)) for name, service in services.items()]
        )
        self._names = ["", *(f"atta.v1.{name}" for name in services)]
        self._health = add_health_and_reflection(self.server, self._names[1:])
        try:
            if security is not None:
                port = security.listen(self.server, config.listen)
            else:
                port = self.server.add_insecure_port(config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {config.listen}: the address is in use or not of this machine"
            ) from error
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Answer requests."""
        await self.server.start()
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Its background tasks."""
        return {} if self.security is None else {"watch_certificate": self.security.watch_certificate()}

    def stats(self) -> dict[str, float]:
        """Counters and gauges."""
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
        """End the threads."""
        self.pool.shutdown()
