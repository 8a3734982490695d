"""Samples all daemons of a cluster at once, including those that do not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from atta.client.cluster import credentials_for, resolve_target
from atta.client.control import Connection
from atta.client.every import each_daemon
from atta.client.rates import DaemonRates, Sample, rates
from atta.errors import AttaError
from atta.observe.figures import JobFigures, SessionFigures
from atta.protos.v1 import control_pb2
from atta.wire import rpc

__all__ = ["Watch"]


class Watch:
    """Samples the daemons of a cluster. A context manager. It may last for weeks, so it connects anew when the files of its
    credentials have changed.

    ``target``: as for ``atta.connect``. ``deadline_s``: how long a daemon may take before it counts as silent.
    """

    def __init__(self, target: str | Path | Sequence[str], *, deadline_s: float = 2.0) -> None:
        self._places, self._deadline_s = each_daemon(resolve_target(target)), deadline_s
        self._credentials = credentials_for(target)
        self._stamp = self._credentials.stamp() if self._credentials is not None else ()
        self._connections = self._connected()
        self._latest: dict[tuple[int, str], Sample] = {}

    def _connected(self) -> dict[tuple[int, str], Connection]:
        return {
            (part, address): Connection(address, self._deadline_s, part=part, credentials=self._credentials)
            for part, address in self._places
        }

    def _renew(self) -> None:
        if self._credentials is None:
            return
        try:
            stamp = self._credentials.stamp()
            if stamp == self._stamp:
                return
            fresh = self._connected()
        except AttaError:  # being replaced, or wrong: those of before may still do
            return
        self.close()
        self._connections, self._stamp = fresh, stamp

    def look(self) -> list[DaemonRates]:
        """Every daemon now, with its rates since the last call."""
        self._renew()
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
