"""Samples all daemons of a cluster at once, including those that do not answer, and says what each does per second:
differences of its counters between two samples, by the daemon's own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc

from atta.client.control import Connection
from atta.client.every import each_daemon
from atta.observe.figures import JobFigures, SessionFigures
from atta.protos.v1 import control_pb2
from atta.wire.clusterfile import credentials_for, resolve_target
from atta.wire.parts import parts_text

PEER_SERVICES = ("GraphService", "KvService")
"""Services that daemons call on each other."""
RECEIVED = "peer_received_bytes_"
"""Counters of links begin with this; the peer's partition follows."""


@dataclass(frozen=True)
class Sample:
    """What one daemon reported at one moment, or why it did not answer (``error``)."""

    part: int
    address: str
    counters: Mapping[str, float] = field(default_factory=dict)
    sessions: tuple[SessionFigures, ...] = ()
    at: float = 0.0
    """Uptime of the daemon in seconds when ``sessions`` was read. ``counters`` contains its own."""
    error: str = ""
    jobs: tuple[JobFigures, ...] = ()
    """What training jobs have told this daemon of their latest epoch."""

    @property
    def parts(self) -> str:
        """The partitions that the daemon serves, as ``0`` or ``0-2``; of a silent one the first."""
        return parts_text(range(self.part, self.part + int(self.counters.get("parts", 1))))


@dataclass(frozen=True)
class SessionRates:
    """A session and its rates; None where there is only one sample."""

    figures: SessionFigures
    batches_per_s: float | None = None
    seeds_per_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self.figures), "batches_per_s": self.batches_per_s, "seeds_per_s": self.seeds_per_s}


@dataclass(frozen=True)
class DaemonRates:
    """A daemon between two samples. Rates are None if the earlier sample is missing or from before a restart."""

    sample: Sample
    sessions: tuple[SessionRates, ...] = ()
    machine_cpu_percent: float | None = None
    """Percent of all cores."""
    daemon_cpu_percent: float | None = None
    """Percent of one core: 250 means two and a half cores."""
    batches_per_s: float | None = None
    remote_bytes_per_s: float | None = None
    """Received from other daemons."""
    cache_hit_rate: float | None = None
    """0 to 1; None also if no row of another partition was looked up."""
    served_requests_per_s: float | None = None
    """Requests from other daemons."""
    served_bytes_per_s: float | None = None
    received_per_s: Mapping[int, float] = field(default_factory=dict)
    """Bytes that came over links, by the first partition of the daemon that sent them; empty without an earlier sample."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        shown = asdict(self)
        shown.pop("sample")
        return {
            "part": self.sample.part,
            "address": self.sample.address,
            "error": self.sample.error or None,
            **shown,
            "counters": dict(sorted(self.sample.counters.items())),
            "sessions": [session.to_dict() for session in self.sessions],
            "jobs": [asdict(job) for job in self.sample.jobs],
        }


def rates(before: Sample | None, after: Sample) -> DaemonRates:
    """What a daemon has done between two samples of it."""
    if after.error:
        return DaemonRates(after)
    known = {s.session: s for s in before.sessions} if before is not None else {}
    elapsed = _elapsed(before.at if before is not None and not before.error else None, after.at)
    sessions = tuple(_session_rates(known.get(session.session), session, elapsed) for session in after.sessions)
    step = _Step.of(before, after)
    if step is None:
        return DaemonRates(after, sessions)
    asked = step.grown("cache_rows_asked")
    busy_per_s = step.per_s("machine_busy_seconds") / max(after.counters.get("machine_cores", 1.0), 1.0)
    return DaemonRates(
        after,
        sessions,
        machine_cpu_percent=min(100.0 * busy_per_s, 100.0),
        daemon_cpu_percent=100.0 * step.per_s("cpu_s"),
        batches_per_s=step.per_s("batches"),
        remote_bytes_per_s=step.per_s("remote_bytes"),
        cache_hit_rate=step.grown("cache_rows_hit") / asked if asked else None,
        served_requests_per_s=step.per_s(*step.named("requests")),
        served_bytes_per_s=step.per_s(*step.named("sent_bytes")),
        received_per_s={peer: step.per_s(name) for peer, name in received_from(after).items()},
    )


def received_from(sample: Sample) -> dict[int, str]:
    """The counters of bytes that came over links, by the first partition of the daemon that sent them."""
    start = len(RECEIVED)
    return {int(name[start:]): name for name in sample.counters if name.startswith(RECEIVED)}


@dataclass(frozen=True)
class _Step:
    """The counters of a daemon that was not restarted between two samples."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    seconds: float

    @classmethod
    def of(cls, before: Sample | None, after: Sample) -> _Step | None:
        if before is None or before.error:
            return None
        seconds = _elapsed(before.counters.get("uptime_seconds"), after.counters.get("uptime_seconds", 0.0))
        return None if seconds is None else cls(before.counters, after.counters, seconds)

    def grown(self, *names: str) -> float:
        return sum(max(self.after.get(name, 0.0) - self.before.get(name, 0.0), 0.0) for name in names)

    def per_s(self, *names: str) -> float:
        return self.grown(*names) / self.seconds

    def named(self, kind: str) -> list[str]:
        """The counters of ``kind`` that count what other daemons asked for."""
        prefixes = tuple(f"{kind}_{service}." for service in PEER_SERVICES)
        return [name for name in self.after if name.startswith(prefixes)]


def _elapsed(before: float | None, after: float) -> float | None:
    """Seconds of uptime between two samples; None if the daemon was restarted."""
    return after - before if before is not None and after > before else None


def _session_rates(before: SessionFigures | None, after: SessionFigures, elapsed: float | None) -> SessionRates:
    if elapsed is None:
        return SessionRates(after)
    taken, seeds = (before.taken, before.seeds) if before is not None else (0, 0)
    return SessionRates(after, (after.taken - taken) / elapsed, (after.seeds - seeds) / elapsed)


class Watch(AbstractContextManager["Watch"]):
    """Samples the daemons of a cluster, a target of ``atta.connect``. ``deadline_s``: how long a daemon may take before
    it counts as silent."""

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
            cause = self._connections[place].error_from(error)
            return Sample(part, address, error=str(cause).removeprefix(f"{address}: "))
        found = tuple(SessionFigures.of_message(session) for session in reply.sessions)
        jobs = tuple(JobFigures.of_message(job) for job in reply.jobs)
        return Sample(part, address, dict(stats.counters), found, reply.uptime_s, jobs=jobs)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()
