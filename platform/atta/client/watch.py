"""Samples all daemons of a cluster at once, including those that do not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from atta.client.control import Connection
from atta.client.every import each_daemon
from atta.client.rates import DaemonRates, Sample, rates
from atta.observe.figures import JobFigures, SessionFigures
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.named import credentials_for, resolve_target


class Watch:
    """Samples the daemons of a cluster. A context manager.

    ``target``: as for ``atta.connect``. ``deadline_s``: how long a daemon may take before it counts as silent.
    """

    def __init__(self, target: str | Path | Sequence[str], *, deadline_s: float = 2.0) -> None:
        credentials = credentials_for(target)
        self._connections = {
            (part, address): Connection(address, deadline_s, part=part, credentials=credentials)
            for part, address in each_daemon(resolve_target(target))
        }
        self._latest: dict[tuple[int, str], Sample] = {}

    def look(self) -> list[DaemonRates]:
        """Every daemon now, with its rates since the last call."""
        asked = [(place, *self._ask(connection)) for place, connection in self._connections.items()]
        seen = []
        for place, counters, sessions in asked:
            sample = self._sample(place, counters, sessions)
            seen.append(rates(self._latest.get(place), sample))
            self._latest[place] = sample
        return seen

    def _ask(self, connection: Connection) -> tuple[Any, Any]:
        return (
            connection.begin("ControlService.Stats", control_pb2.StatsRequest()),
            connection.begin("ControlService.Sessions", control_pb2.SessionsRequest()),
        )

    def _sample(self, place: tuple[int, str], counters: Any, sessions: Any) -> Sample:
        part, address = place
        try:
            stats, reply = counters.result(), sessions.result()
        except grpc.RpcError as error:
            cause = rpc.error_from(address, error, self._connections[place].deadline_s)
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
