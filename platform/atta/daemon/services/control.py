"""``ControlService``: what a daemon is, what it does, and the request to stop it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from atta.daemon.engine.engine import Engine
from atta.daemon.services.handling import Context, Handler
from atta.daemon.services.jobs import JobBoard
from atta.errors import ConfigError
from atta.observe.figures import JobFigures, ProcessFigures
from atta.observe.machine.processor import machine_id
from atta.partition.disk.watching import WatchedFiles
from atta.protos.v1 import control_pb2
from atta.wire.contract import Contract
from atta.wire.identity import Identity
from atta.wire.release import OWN

__all__ = ["ControlService"]


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

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``control.proto``."""
        return {
            "Describe": self.describe,
            "Stats": self.stats,
            "Sessions": self.sessions,
            "Report": self.report,
            "Trace": self.trace,
            "Stop": self.stop,
        }

    async def describe(self, request: control_pb2.DescribeRequest, context: Context) -> control_pb2.DescribeReply:
        """``ControlService.Describe``."""
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
        """``ControlService.Stats``."""
        return control_pb2.StatsReply(counters=self._stats())

    async def sessions(self, request: control_pb2.SessionsRequest, context: Context) -> control_pb2.SessionsReply:
        """``ControlService.Sessions``."""
        figures = self._engine.session_figures()
        return control_pb2.SessionsReply(
            uptime_s=self._process.uptime_s,
            sessions=[session.to_message() for session in figures],
            jobs=[job.to_message() for job in self._jobs.figures()],
        )

    async def report(self, request: control_pb2.ReportRequest, context: Context) -> control_pb2.ReportReply:
        """``ControlService.Report``."""
        self._jobs.put([JobFigures.of_message(message) for message in request.rows], request.keep_s)
        return control_pb2.ReportReply()

    async def trace(self, request: control_pb2.TraceRequest, context: Context) -> AsyncIterator[control_pb2.TraceChunk]:
        """``ControlService.Trace``."""
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
