"""Calls to a daemon with any bytes, and what its process takes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import psutil

import atta
from atta.wire import rpc

SILENT_S = 30


class Caller:
    """A connection of its own to the first daemon of a cluster. It sends what it is given, and checks nothing."""

    def __init__(self, cluster: atta.Cluster, *options: tuple[str, Any]) -> None:
        self.identity = cluster._connections[0].describe().identity
        self.channel = grpc.insecure_channel(cluster.addresses[0], options=[*rpc.client_options(), *options])

    def start(
        self, name: str, sent: bytes | Iterable[bytes] = b"", *, timeout: float | None = SILENT_S, **options: Any
    ) -> Any:
        """Begin a call of a method: an iterator of replies, or a future of one. ``sent``: the request, or its messages."""
        method, channel = rpc.METHODS[name], self.channel
        if isinstance(sent, bytes):
            make = channel.unary_stream if method.streams else channel.unary_unary
        else:
            make, sent = channel.stream_stream if method.streams else channel.stream_unary, iter(sent)
        call = make(method.path)
        metadata = self.identity.header(method.bound)
        begin = call if method.streams else call.future
        return begin(sent, timeout=timeout, metadata=metadata, **options)

    def call(self, name: str, sent: bytes | Iterable[bytes] = b"", **options: Any) -> list[bytes]:
        started = self.start(name, sent, **options)
        return [*started] if rpc.METHODS[name].streams else [started.result()]

    def refusal(self, name: str, sent: bytes | Iterable[bytes] = b"", **options: Any) -> tuple[grpc.StatusCode, str]:
        try:
            replies = self.call(name, sent, **options)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{name} answers with {replies!r:.80}")

    def close(self) -> None:
        self.channel.close()


def memory(cluster: atta.LocalCluster) -> int:
    return int(psutil.Process(cluster.pids[0]).memory_info().rss)
