"""Samples all daemons of a cluster at once, including those that do not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from atta.client.cluster import credentials_for, resolve_target
from atta.client.control import Connection
from atta.client.rates import DaemonRates, Sample, rates
from atta.observe.figures import JobFigures, SessionFigures
from atta.protos.v1 import control_pb2
from atta.wire import rpc

__all__ = ["Watch"]


class Watch:
    """Samples the daemons of a cluster. A context manager.

    ``target``: as for ``atta.connect``. ``deadline_s``: how long a daemon may take before it counts as silent.
    """

    def __init__(self, target: str | Path | Sequence[str], *, deadline_s: float = 2.0) -> None:
        credentials = credentials_for(target)
        self._connections = {
            part: Connection(address, deadline_s, part=part, credentials=credentials)
            for part, address in sorted(resolve_target(target).items())
        }
        self._latest: dict[int, Sample] = {}

    def look(self) -> list[DaemonRates]:
        """Every daemon now, with its rates since the last call."""
        asked = [(part, *self._ask(connection)) for part, connection in self._connections.items()]
        seen = []
        for part, counters, sessions in asked:
            sample = self._sample(part, counters, sessions)
            seen.append(rates(self._latest.get(part), sample))
            self._latest[part] = sample
        return seen

    def _ask(self, connection: Connection) -> tuple[Any, Any]:
        return (
            connection.begin("ControlService.Stats", control_pb2.StatsRequest()),
            connection.begin("ControlService.Sessions", control_pb2.SessionsRequest()),
        )

    def _sample(self, part: int, counters: Any, sessions: Any) -> Sample:
        address = self._connections[part].address
        try:
            stats, reply = counters.result(), sessions.result()
        except grpc.RpcError as error:
            cause = rpc.error_from(address, error)
            return Sample(part, address, error=str(cause).removeprefix(f"{address}: "))
        found = tuple(SessionFigures.of_message(session) for session in reply.sessions)
        jobs = tuple(JobFigures.of_message(job) for job in reply.jobs)
        return Sample(part, address, dict(stats.counters), found, reply.uptime_s, jobs=jobs)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
