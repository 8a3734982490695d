"""Talking to one daemon: a channel with deadlines, typed errors and the daemon's description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import grpc

from atta import rpc
from atta.errors import RemoteError
from atta.observe.figures import SessionFigures
from atta.observe.recording import Entry, Recording, from_lines
from atta.partition.schema import Schema
from atta.protos.v1 import control_pb2

__all__ = ["Connection", "Description"]


@dataclass(frozen=True)
class Description:
    """What a daemon says of itself."""

    version: str
    dataset_id: str
    part: int
    num_parts: int
    schema: Schema
    machine: str
    pid: int


class Connection:
    """A connection to one daemon. Reconnects by itself; every call has a deadline and raises Atta's typed errors."""

    def __init__(self, address: str, deadline_s: float) -> None:
        self.address, self.deadline_s = address, deadline_s
        self._channel = grpc.insecure_channel(address, options=rpc.channel_options())
        self._stubs: dict[str, Any] = {}

    def start(self, name: str, request: Any, *, timeout: float | None = None) -> Any:
        """Begin a streaming call; iterate it with errors translated by ``translate``."""
        return self._stub(name)(request, timeout=timeout or self.deadline_s)

    def begin(self, name: str, request: Any, *, timeout: float | None = None) -> Any:
        """Begin a unary call; its ``result()`` raises ``grpc.RpcError``."""
        return self._stub(name).future(request, timeout=timeout or self.deadline_s)

    def call(self, name: str, request: Any, *, wait: bool = False, timeout: float | None = None) -> Any:
        """One unary call, e.g. ``call("ControlService.Describe", ...)``; ``wait`` waits for a daemon that is starting."""
        try:
            return self._stub(name)(request, timeout=timeout or self.deadline_s, wait_for_ready=wait)
        except grpc.RpcError as error:
            raise rpc.error_from(self.address, error) from error

    def _stub(self, name: str) -> Any:
        if name not in self._stubs:
            self._stubs[name] = rpc.stub(self._channel, name)
        return self._stubs[name]

    def describe(self, *, wait: bool = False, timeout: float | None = None) -> Description:
        """Ask the daemon who it is."""
        reply = self.call("ControlService.Describe", control_pb2.DescribeRequest(), wait=wait, timeout=timeout)
        schema = Schema.from_json(json.loads(reply.schema))
        return Description(reply.version, reply.dataset_id, reply.part, reply.num_parts, schema, reply.host, reply.pid)

    def stats(self) -> dict[str, float]:
        """The daemon's counters and gauges."""
        return dict(self.call("ControlService.Stats", control_pb2.StatsRequest()).counters)

    def sessions(self) -> list[SessionFigures]:
        """The daemon's open sessions, in the order of opening."""
        reply = self.call("ControlService.Sessions", control_pb2.SessionsRequest())
        return [SessionFigures.of_message(session) for session in reply.sessions]

    def trace(self, last_s: float = 0.0) -> Recording:
        """What the daemon has recorded in the last ``last_s`` seconds; 0: all that it still has.

        Raises:
            RemoteError: the daemon sends what is no recording.
        """
        header = control_pb2.TraceHeader()
        entries: list[Entry] = []
        try:
            for chunk in self.start("ControlService.Trace", control_pb2.TraceRequest(last_s=last_s)):
                if chunk.HasField("header"):
                    header = chunk.header
                entries += from_lines(chunk.entries)
        except grpc.RpcError as error:
            raise rpc.error_from(self.address, error) from error
        except ValueError as error:
            raise RemoteError(self.address, f"sends what is no recording: {error}") from error
        about = (header.now, header.offset_ns, header.capacity, header.full)
        return Recording(header.part, self.address, *about, entries=tuple(entries))

    def stop(self) -> None:
        """Ask the daemon to drain and exit."""
        self.call("ControlService.Stop", control_pb2.StopRequest())

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
