"""A gRPC relay in front of a daemon: it passes every call on, byte for byte, and records the messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from atta.wire.rpc import MAX_MESSAGE_BYTES

_LENGTHS = [("grpc.max_send_message_length", MAX_MESSAGE_BYTES), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]


@dataclass
class Call:
    """One call: the partition of its daemon, its method (``Service.Name``), and the messages of both sides."""

    part: int
    method: str
    requests: list[bytes] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)


class Relay(grpc.GenericRpcHandler):
    """Listens at ``address`` and passes calls on to ``part``'s daemon at ``target``; ``calls``: in order of arrival."""

    def __init__(self, part: int, address: str, target: str, calls: list[Call]) -> None:
        self._part, self._calls = part, calls
        self._channel = grpc.insecure_channel(target, options=_LENGTHS)
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=[self], options=_LENGTHS)
        self._server.add_insecure_port(address)
        self._server.start()

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        """Pass every method on as streams of bytes: the relay need not know the messages."""
        method = details.method

        def passed_on(requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call = Call(self._part, method.rsplit(".", 1)[1].replace("/", "."))
            self._calls.append(call)
            metadata = [(key, value) for key, value in context.invocation_metadata() if key.startswith("atta-")]
            sent = _noted(requests, call.requests)
            limit = context.time_remaining()
            answers = self._channel.stream_stream(method)(sent, metadata=metadata, timeout=limit, wait_for_ready=True)
            try:
                yield from _noted(answers, call.replies)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata() or ())
                context.abort(error.code(), error.details())

        return grpc.stream_stream_rpc_method_handler(passed_on)

    def close(self) -> None:
        """Stop listening, and end the calls that are under way."""
        self._server.stop(grace=None).wait()
        self._channel.close()


def _noted(messages: Iterable[bytes], into: list[bytes]) -> Iterator[bytes]:
    for message in messages:
        into.append(message)
        yield message
