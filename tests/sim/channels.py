"""Channels of the simulated network, with the surface of gRPC's: one for threads and one for the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from tests.sim.loop import NODE
from tests.sim.network import Exchange, Network
from tests.sim.threads import current

ATTEMPTS, FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 4, 0.1, 2.0
"""As the service configuration of ``atta.wire.rpc`` says; only calls that do not stream are sent again."""
READY_S = 0.2
"""How often a channel that waits for a daemon tries to connect."""
CANCELLED = (grpc.StatusCode.CANCELLED, "Locally cancelled by application!")


class CallError(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[misc]
    __abstractmethods__ = frozenset()

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Call:
    """What is known of a call on its caller's side; sends it again where gRPC would."""

    def __init__(self, network: Network, address: str, path: str, sent: Sequence[bytes], **settings: Any) -> None:
        self._network, self.node, timeout = network, NODE.get(), settings["timeout"]
        self.address, self.path, self.sent, self.metadata = address, path, sent, tuple(settings["metadata"] or ())
        self.until = None if timeout is None else network.loop.now + timeout
        self._left, self._backoff = ATTEMPTS if settings["again"] else 1, FIRST_BACKOFF_S
        self._wait = bool(settings["wait_for_ready"])
        self.messages: deque[bytes] = deque()
        self.status: tuple[grpc.StatusCode, str] | None = None
        self._changed: list[Callable[[], None]] = []
        self._done: list[Callable[[], None]] = []
        self._exchange: Exchange | None = None
        network.loop.call_soon(self._begin, context=network.context)

    def _begin(self) -> None:
        if self.status is not None:
            return
        now = self._network.loop.now
        if self.until is not None and now >= self.until:
            self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            return
        if self._wait and self._network.listening(self.address) is None:
            self._network.later(READY_S, self._begin)
            return
        self._exchange = Exchange(self._network, self)

    def arrived(self, raw: bytes) -> None:
        self.messages.append(raw)
        self._tell()

    def attempted(self, code: grpc.StatusCode, details: str) -> None:
        self._left -= 1
        if code is grpc.StatusCode.UNAVAILABLE and self._left > 0:
            self.messages.clear()
            self._network.later(self._backoff * self._network.rng.random(), self._begin)
            self._backoff = min(LONGEST_BACKOFF_S, 2 * self._backoff)
            return
        self._end(code, details)

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        if self.status is None:
            self.status = code, details
            self._tell()
            done, self._done = self._done, []
            for function in done:
                self._network.loop.call_soon(function, context=self._context())

    def _context(self) -> Any:
        return self.node.context() if self.node is not None else self._network.context

    def _tell(self) -> None:
        changed, self._changed = self._changed, []
        for function in changed:
            function()

    def on_change(self, function: Callable[[], None]) -> None:
        self._changed.append(function)

    def add_done_callback(self, function: Callable[[Any], None]) -> None:
        if self.status is None:
            self._done.append(lambda: function(self))
        else:
            self._network.loop.call_soon(function, self, context=self._context())

    def done(self) -> bool:
        return self.status is not None

    def cancel(self) -> bool:
        if self.status is not None:
            return False
        if self._exchange is not None:
            self._exchange.finish(*CANCELLED)
        self._left = 0
        self._end(*CANCELLED)
        return True


class SyncCall(Call):
    """A call of a thread: a future, or an iterator of messages."""

    decode: Callable[[bytes], Any]

    def _wait_for(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        thread = current()
        until = None if timeout is None else self._network.loop.now + timeout
        while not ready():
            self.on_change(thread.waker())
            left = None if until is None else until - self._network.loop.now
            if not thread.park(left):
                raise grpc.FutureTimeoutError

    def code(self) -> grpc.StatusCode | None:
        self._wait_for(self.done)
        return self.status[0] if self.status is not None else None

    def details(self) -> str:
        self._wait_for(self.done)
        return self.status[1] if self.status is not None else ""

    def result(self, timeout: float | None = None) -> Any:
        self._wait_for(self.done, timeout)
        if self.status[0] is grpc.StatusCode.OK:
            return self.decode(self.messages[0])
        if self.status[0] is grpc.StatusCode.CANCELLED and self.status[1] == CANCELLED[1]:
            raise grpc.FutureCancelledError
        raise CallError(*self.status)

    def exception(self, timeout: float | None = None) -> Any:
        self._wait_for(self.done, timeout)
        return None if self.status[0] is grpc.StatusCode.OK else CallError(*self.status)

    def __iter__(self) -> SyncCall:
        return self

    def __next__(self) -> Any:
        self._wait_for(lambda: bool(self.messages) or self.status is not None)
        if self.messages:
            return self.decode(self.messages.popleft())
        if self.status[0] is grpc.StatusCode.OK:
            raise StopIteration
        raise CallError(*self.status)


class AioCall(Call):
    """A call of the event loop: awaitable, or an asynchronous iterator of messages."""

    decode: Callable[[bytes], Any]

    async def _wait_for(self, ready: Callable[[], bool]) -> None:
        while not ready():
            come = asyncio.get_running_loop().create_future()
            self.on_change(lambda come=come: come.done() or come.set_result(None))  # type: ignore[misc]
            await come

    def _raise(self) -> None:
        if self.status == CANCELLED:
            raise asyncio.CancelledError
        if self.status[0] is not grpc.StatusCode.OK:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.status[0], nothing, nothing, details=self.status[1])

    def __await__(self) -> Any:
        return self._reply().__await__()

    async def _reply(self) -> Any:
        try:
            await self._wait_for(self.done)
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise()
        return self.decode(self.messages[0])

    async def read(self) -> Any:
        try:
            await self._wait_for(lambda: bool(self.messages) or self.status is not None)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.messages:
            return self.decode(self.messages.popleft())
        self._raise()
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode | None:
        await self._wait_for(self.done)
        return self.status[0] if self.status is not None else None

    def __aiter__(self) -> AioCall:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message


class _Channel:
    make: type[SyncCall] | type[AioCall]

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address, self._closed = network, address, False
        self._node = NODE.get()
        self._calls: dict[Any, None] = {}

    def _stub(self, path: str, encode: Any, decode: Any, *, again: bool, many: bool = False) -> Any:
        def begin(request: Any, timeout: float | None = None, metadata: Any = None, wait_for_ready: Any = None) -> Any:
            if self._closed:
                raise ValueError("Cannot invoke RPC on closed channel!")
            settings = {"timeout": timeout, "metadata": metadata, "wait_for_ready": wait_for_ready, "again": again}
            sent = [encode(message) for message in (request if many else [request])]
            call = self.make(self._network, self._address, path, sent, **settings)
            call.decode = decode
            self._calls[call] = None
            call.add_done_callback(lambda ended: self._calls.pop(ended, None))
            return call

        return begin

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return self._stub(path, request_serializer, response_deserializer, again=True)

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return self._stub(path, request_serializer, response_deserializer, again=False)

    def stream_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return self._stub(path, request_serializer, response_deserializer, again=True, many=True)

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return self._stub(path, request_serializer, response_deserializer, again=False, many=True)

    def _cancel_all(self) -> None:
        self._closed = True
        for call in list(self._calls):
            call.cancel()


class SyncChannel(_Channel):
    make = SyncCall

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return _Unary(super().unary_unary(path, request_serializer, response_deserializer))

    def stream_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        return _Unary(super().stream_unary(path, request_serializer, response_deserializer))

    def close(self) -> None:
        self._cancel_all()


class _Unary:
    def __init__(self, begin: Callable[..., SyncCall]) -> None:
        self.future = begin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.future(*args, **kwargs).result()


class AioChannel(_Channel):
    make = AioCall

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether the daemon can be reached, as far as TCP would tell."""
        reachable = self._network.listening(self._address) and not self._network.cut(self._node, self._address)
        return grpc.ChannelConnectivity.READY if reachable else grpc.ChannelConnectivity.TRANSIENT_FAILURE

    async def channel_ready(self) -> None:
        while self.get_state() is not grpc.ChannelConnectivity.READY:
            await asyncio.sleep(READY_S)

    async def close(self, grace: float | None = None) -> None:
        if grace and self._calls:
            await asyncio.wait([asyncio.ensure_future(call.code()) for call in self._calls], timeout=grace)
        self._cancel_all()
