"""What people who run a cluster ask: what a daemon is and does, what training jobs report, and new versions of the
dataset."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from atta.daemon.engine.engine import Engine
from atta.daemon.services.handling import Context
from atta.daemon.versions import LiveVersions
from atta.errors import ConfigError
from atta.observe.figures import DIRECTIONS, MAX_ENTRIES, MAX_REPORT_S, JobFigures, ProcessFigures
from atta.observe.machine.processor import machine_id
from atta.partition.disk.watching import WatchedFiles
from atta.protos.v1 import control_pb2, update_pb2
from atta.wire.identity import OWN, Contract, Identity


class ControlService:
    """``ControlService`` of a daemon.

    ``stats`` returns its counters; ``stop`` makes it drain. ``jobs``: where reports of training jobs are kept.
    ``contract``: how this daemon draws. ``draining``: whether it is stopping. ``unreached``: connects all peers, and
    returns the addresses of those that do not answer. ``tables``: the epoch of the tables that it keeps (0: none), and
    whether it does so together with another daemon. ``files``: those that it serves.
    """

    def __init__(
        self,
        identity: Identity,
        engine: Engine,
        process: ProcessFigures,
        stats: Callable[[], dict[str, float]],
        stop: Callable[[], None],
        *,
        jobs: JobBoard,
        contract: Contract,
        draining: Callable[[], bool],
        unreached: Callable[[], Awaitable[list[str]]],
        tables: Callable[[], tuple[int, bool]],
        files: WatchedFiles,
    ) -> None:
        self._identity, self._jobs, self._contract = identity, jobs, contract
        self._engine, self._process, self._stats, self._stop = engine, process, stats, stop
        self._draining, self._unreached, self._tables, self._files = draining, unreached, tables, files

    async def describe(self, request: control_pb2.DescribeRequest, context: Context) -> control_pb2.DescribeReply:
        dataset = self._engine.dataset
        epoch, together = self._tables()
        parts = dataset.groups[self._engine.shard.part]
        return control_pb2.DescribeReply(
            version=OWN.version,
            dataset_id=self._identity.dataset_id,
            part=parts.start,
            parts=len(parts),
            num_parts=dataset.partitions.num_parts,
            schema=json.dumps(dataset.schema.to_json()),
            host=machine_id(),
            pid=os.getpid(),
            incarnation=self._identity.incarnation,
            contract=self._contract.draws,
            operators=self._contract.operators,
            oldest_protocol=OWN.oldest,
            newest_protocol=OWN.newest,
            draining=self._draining(),
            unreached=await self._unreached() if request.reach else [],
            tables_epoch=epoch,
            tables_replicated=together,
            files=self._files.described,
            broken=self._files.error is not None,
        )

    async def stats(self, request: control_pb2.StatsRequest, context: Context) -> control_pb2.StatsReply:
        return control_pb2.StatsReply(counters=self._stats())

    async def sessions(self, request: control_pb2.SessionsRequest, context: Context) -> control_pb2.SessionsReply:
        figures = self._engine.session_figures()
        return control_pb2.SessionsReply(
            uptime_s=self._process.uptime_s,
            sessions=[session.to_message() for session in figures],
            jobs=[job.to_message() for job in self._jobs.figures()],
        )

    async def report(self, request: control_pb2.ReportRequest, context: Context) -> control_pb2.ReportReply:
        self._jobs.put([JobFigures.of_message(message) for message in request.rows], request.keep_s)
        return control_pb2.ReportReply()

    async def trace(self, request: control_pb2.TraceRequest, context: Context) -> AsyncIterator[control_pb2.TraceChunk]:
        recorder = self._engine.recorder
        if not request.last_s >= 0:
            raise ConfigError(f"the last {request.last_s} seconds: must not be negative")
        header = control_pb2.TraceHeader(
            part=self._identity.part,
            now=recorder.clock(),
            offset_ns=time.time_ns() - time.monotonic_ns(),
            capacity=recorder.capacity,
            full=recorder.full,
        )
        lines = recorder.lines(request.last_s)
        yield control_pb2.TraceChunk(header=header)
        for text in lines:
            yield control_pb2.TraceChunk(entries=text)

    async def stop(self, request: control_pb2.StopRequest, context: Context) -> control_pb2.StopReply:
        """``ControlService.Stop``: the daemon answers, then drains."""
        self._stop()
        return control_pb2.StopReply()


MAX_JOBS = 64
"""At most this many jobs are kept. One more takes the place of the one that has been silent longest."""
MAX_NAME_CHARS = 64


def check_printable(job: str) -> None:
    """Raise ConfigError for a job's name that people could not be shown as it is."""
    if not job.isprintable():
        raise ConfigError(f"job {job[:MAX_NAME_CHARS]!r}: its name must have printable characters alone")


class _Entry(NamedTuple):
    until: float
    figures: tuple[JobFigures, ...]


class JobBoard:
    """The latest report of each job. It does no more than show it.

    A job says how long its report is good for. So a dead job leaves nothing, and a slow one stays visible.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the time in seconds."""
        self._clock = clock
        self._jobs: dict[str, _Entry] = {}

    def put(self, figures: Sequence[JobFigures], keep_s: float) -> None:
        """Keep ``figures`` of one job for ``keep_s`` seconds, in place of its earlier ones; 0 s: forget the job.

        Raises:
            ConfigError: the figures are not those of one job, or a value is out of range.
        """
        if len({one.job for one in figures}) != 1:
            raise ConfigError("a report must be of one job")
        job = figures[0].job
        if not 0 < len(job) <= MAX_NAME_CHARS:
            raise ConfigError(f"a job's name of {len(job)} characters: must have 1 to {MAX_NAME_CHARS}")
        check_printable(job)
        if not 0 <= keep_s <= MAX_REPORT_S:
            raise ConfigError(f"report of job {job}: cannot be kept for {keep_s} s, only for 0 to {MAX_REPORT_S:.0f}")
        keys = {(one.layer, one.direction) for one in figures}
        if len(keys) != len(figures) or not {direction for _, direction in keys} <= set(DIRECTIONS):
            raise ConfigError(f"report of job {job}: each layer must have {', '.join(DIRECTIONS)} at most once")
        if len(figures) > MAX_ENTRIES:
            raise ConfigError(f"report of job {job}: {len(figures)} layers and directions, at most {MAX_ENTRIES}")
        ages = [age for one in figures for age in (one.age_min, one.age_mean, one.age_max)]
        if not all(age is None or 0 <= age < math.inf for age in ages):
            raise ConfigError(f"report of job {job}: an age is no number of epochs")
        errors = [error for one in figures for error in (one.predicted_error, one.stale_error)]
        if not all(error is None or 0 <= error < math.inf for error in errors):
            raise ConfigError(f"report of job {job}: an error of rows is no distance")
        self._jobs.pop(job, None)
        self._expire()
        if keep_s > 0:
            while len(self._jobs) >= MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]  # reports are in the order of their arrival
            self._jobs[job] = _Entry(self._clock() + keep_s, tuple(figures))

    def figures(self) -> list[JobFigures]:
        """Those of all jobs, in the order of their reports."""
        self._expire()
        return [one for entry in self._jobs.values() for one in entry.figures]

    def _expire(self) -> None:
        now = self._clock()
        self._jobs = {job: entry for job, entry in self._jobs.items() if entry.until > now}


MOST_NUMBER = 10**9
"""Numbers of versions are below this: their folders have names of at most nine digits."""


class UpdateService:
    """The versions that one daemon serves."""

    def __init__(self, versions: LiveVersions) -> None:
        self._versions = versions

    async def publish(self, request: update_pb2.PublishRequest, context: Context) -> update_pb2.PublishReply:
        if not 0 < request.number < MOST_NUMBER:
            raise ConfigError(f"version {request.number}: must be 1 to {MOST_NUMBER - 1}")
        match request.phase:
            case update_pb2.PublishRequest.PREPARE:
                await self._versions.prepare(request.number, request.id)
            case update_pb2.PublishRequest.COMMIT:
                await self._versions.commit(request.number)
            case update_pb2.PublishRequest.ABORT:
                self._versions.abort(request.number)
            case _:
                raise ConfigError(f"phase {request.phase}: there is none of this number")
        return update_pb2.PublishReply(newest=self._versions.book.newest, bytes=self._versions.nbytes)

    async def versions(self, request: update_pb2.VersionsRequest, context: Context) -> update_pb2.VersionsReply:
        book = self._versions.book
        return update_pb2.VersionsReply(newest=book.newest, versions=sorted(book.known), in_use=book.in_use())
