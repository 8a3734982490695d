"""What people who run a cluster ask: what a daemon is and does, and what training jobs report."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from atta.daemon.durable.tables import DaemonTables
from atta.daemon.engine.engine import Engine
from atta.daemon.graph import DaemonGraph
from atta.daemon.services.handling import MAX_NAME_CHARS, Context, check_printable
from atta.errors import ConfigError
from atta.observe.figures import DIRECTIONS, MAX_ENTRIES, MAX_REPORT_S, JobFigures, ProcessFigures
from atta.observe.machine.processor import machine_id
from atta.protos.v1 import control_pb2
from atta.wire.identity import OWN, Identity


class ControlService:
    """``ControlService`` of a daemon.

    Attributes:
        jobs: where reports of training jobs are kept.
        process: figures of this process.
    """

    def __init__(
        self,
        identity: Identity,
        contract: Mapping[str, str],
        parts: tuple[DaemonGraph, Engine, DaemonTables],
        stats: Callable[[], dict[str, float]],
        stopping: asyncio.Event,
        *,
        answers: bool,
    ) -> None:
        """``contract``: how this daemon draws. ``stats`` returns its counters. ``stopping``: set to make it drain.
        ``answers``: whether it has a model to ask."""
        self._answers = answers
        self._identity, self._contract, self._stats, self._stopping = identity, contract, stats, stopping
        self._graph, self._engine, self._tables = parts
        self.jobs, self.process = JobBoard(time.monotonic), ProcessFigures()

    async def describe(self, request: control_pb2.DescribeRequest, context: Context) -> control_pb2.DescribeReply:
        dataset, files = self._graph.dataset, self._graph.files
        epoch, together = self._tables.about()
        parts = dataset.groups[self._graph.owner]
        schema = replace(dataset.schema, room=self._graph.versions.now.schema.room)
        return control_pb2.DescribeReply(
            version=OWN.version, dataset_id=self._identity.dataset_id, part=parts.start, parts=len(parts),
            num_parts=dataset.partitions.num_parts, schema=json.dumps(schema.to_json()), host=machine_id(),
            pid=os.getpid(), incarnation=self._identity.incarnation, contract=self._contract,
            oldest_protocol=OWN.oldest, newest_protocol=OWN.newest, draining=self._stopping.is_set(),
            unreached=[peer.address for peer in await self._graph.peers.unreached()] if request.reach else [],
            tables_epoch=epoch,
            tables_replicated=together, files=files.described, broken=files.error is not None, answers=self._answers,
        )  # fmt: skip

    async def stats(self, request: control_pb2.StatsRequest, context: Context) -> control_pb2.StatsReply:
        return control_pb2.StatsReply(counters=self._stats())

    async def sessions(self, request: control_pb2.SessionsRequest, context: Context) -> control_pb2.SessionsReply:
        return control_pb2.SessionsReply(
            uptime_s=self.process.uptime_s,
            sessions=[session.to_message() for session in self._engine.session_figures()],
            jobs=[job.to_message() for job in self.jobs.figures()],
        )

    async def report(self, request: control_pb2.ReportRequest, context: Context) -> control_pb2.ReportReply:
        self.jobs.put([JobFigures.of_message(message) for message in request.rows], request.keep_s)
        return control_pb2.ReportReply()

    async def trace(self, request: control_pb2.TraceRequest, context: Context) -> AsyncIterator[control_pb2.TraceChunk]:
        recorder = self._engine.recorder
        if not request.last_s >= 0:
            raise ConfigError(f"the last {request.last_s} seconds: must not be negative")
        header = control_pb2.TraceHeader(
            part=self._identity.part, now=recorder.clock(), offset_ns=time.time_ns() - time.monotonic_ns(),
            capacity=recorder.capacity, full=recorder.full,
        )  # fmt: skip
        lines = recorder.lines(request.last_s)
        yield control_pb2.TraceChunk(header=header)
        for text in lines:
            yield control_pb2.TraceChunk(entries=text)

    async def stop(self, request: control_pb2.StopRequest, context: Context) -> control_pb2.StopReply:
        """``ControlService.Stop``: the daemon answers, then drains."""
        self._stopping.set()
        return control_pb2.StopReply()


MAX_JOBS = 64
"""At most this many jobs are kept. One more takes the place of the one that has been silent longest."""


class _Entry(NamedTuple):
    until: float
    figures: tuple[JobFigures, ...]


class JobBoard:
    """The latest report of each job. It does no more than show it. A job says how long its report is good for. So a
    dead job leaves nothing, and a slow one stays visible."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the time in seconds."""
        self._clock = clock
        self._jobs: dict[str, _Entry] = {}

    def put(self, figures: Sequence[JobFigures], keep_s: float) -> None:
        """Keep ``figures`` of one job for ``keep_s`` seconds, in place of its earlier ones; 0 s: forget the job. Raises
        ConfigError: the figures are not those of one job, or a value is out of range."""
        if len({one.job for one in figures}) != 1:
            raise ConfigError("a report must be of one job")
        job = figures[0].job
        if not 0 < len(job) <= MAX_NAME_CHARS:
            raise ConfigError(f"a job's name of {len(job)} characters: must have 1 to {MAX_NAME_CHARS}")
        check_printable(job)
        keys = {(one.layer, one.direction) for one in figures}
        ages = [age for one in figures for age in (one.age_min, one.age_mean, one.age_max)]
        errors = [error for one in figures for error in (one.predicted_error, one.stale_error)]
        for right, wrong in (
            (0 <= keep_s <= MAX_REPORT_S, f"cannot be kept for {keep_s} s, only for 0 to {MAX_REPORT_S:.0f}"),
            (
                len(keys) == len(figures) and {direction for _, direction in keys} <= set(DIRECTIONS),
                f"each layer must have {', '.join(DIRECTIONS)} at most once",
            ),
            (len(figures) <= MAX_ENTRIES, f"{len(figures)} layers and directions, at most {MAX_ENTRIES}"),
            (all(age is None or 0 <= age < math.inf for age in ages), "ages must be at least 0 epochs, not infinite"),
            (all(e is None or 0 <= e < math.inf for e in errors), "errors of rows must be at least 0, not infinite"),
        ):
            if not right:
                raise ConfigError(f"report of job {job}: {wrong}")
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
