"""A simulated network that carries the calls of gRPC between simulated processes, and loses some.

Calls arrive as bytes at the handlers that a daemon has registered, as gRPC would call them. What can go wrong is what
can go wrong with TCP and HTTP/2. A connection breaks before the request, within the handler's work, or before the
answer. A link is silent for a while: both sides wait for their deadlines. A caller gives a request up that still lies
in a buffer, and its daemon answers it much later. Two calls overtake one another. Within one call messages stay in
order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from tests.sim.loop import Node, VirtualLoop

BROKEN = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
REFUSED = (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: Connection refused")
LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
KEEPALIVE_S = 30.0
"""After how long a caller notices that a silent connection is dead."""


@dataclass
class Weather:
    """How likely it is that something happens to a call; and the longest delay of a message, in seconds."""

    delay_s: float = 0.01
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    """The caller is told that the connection broke, and the request arrives seconds later."""
    silent: float = 0.0
    """Nothing comes back until the caller's deadline."""


class Network:
    """All daemons by address, and the state of the links to them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop, self.rng = loop, loop.rng
        self.weather = Weather()
        self.servers: dict[str, SimServer] = {}
        self.cuts: dict[tuple[str, str], str] = {}
        """Links that do not work, as (caller's node, address): ``refuse`` or ``silent``."""
        self.under_way: set[Exchange] = set()
        self.context = Node("network").context()
        self.count = 0

    def delay(self) -> float:
        return self.weather.delay_s * (0.1 + 0.9 * self.rng.random())

    def later(self, delay: float, function: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(delay, function, *args, context=self.context)

    def listening(self, address: str) -> SimServer | None:
        server = self.servers.get(address)
        return server if server is not None and server.node.alive and server.started else None

    def cut(self, caller: Node | None, address: str) -> str:
        return self.cuts.get((caller.name if caller is not None else "", address), "")

    def break_all(self, node: Node) -> None:
        """The process has ended, so the system closes its connections."""
        for exchange in sorted(self.under_way, key=lambda one: one.number):
            exchange.broken(node)


class SimServer:
    def __init__(self, network: Network, node: Node) -> None:
        self._network, self.node = network, node
        self._handlers: list[Any] = []
        self._address = ""
        self.started = False

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_insecure_port(self, address: str) -> int:
        if self._network.listening(address) is not None:
            raise RuntimeError(f"{address} is in use")
        self._address = address
        self._network.servers[address] = self
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self.started = True

    async def stop(self, grace: float | None) -> None:
        self.started = False
        if grace:
            await asyncio.sleep(grace)
        self._network.break_all(self.node)

    def handler(self, path: str, metadata: Any) -> Any:
        details = _Details(path, metadata)
        found = [made for generic in self._handlers if (made := generic.service(details)) is not None]
        return found[0] if found else None


@dataclass
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Any


class _AbortError(grpc.aio.AbortError):
    pass


class ServerContext:
    def __init__(self, exchange: Exchange, sent: Sequence[bytes]) -> None:
        self._exchange, self._left = exchange, deque(sent)
        self.status: tuple[grpc.StatusCode, str] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._over = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def done(self) -> bool:
        return self._over

    def end(self, *, answered: bool) -> None:
        self._over = answered
        for callback in self._callbacks:
            callback(self)

    async def read(self) -> Any:
        await asyncio.sleep(0)
        return self._left.popleft() if self._left else grpc.aio.EOF

    def invocation_metadata(self) -> Any:
        return self._exchange.metadata

    def time_remaining(self) -> float | None:
        until = self._exchange.until
        return None if until is None else max(0.0, until - self._exchange.network.loop.now)

    def peer(self) -> str:
        return f"ipv4:{self._exchange.caller.name if self._exchange.caller else ''}"

    async def abort(self, code: grpc.StatusCode, details: str = "", _: Any = ()) -> Any:
        self.status = code, details
        raise _AbortError


class Exchange:
    """One attempt of one call, on both sides."""

    def __init__(self, network: Network, call: Any) -> None:
        self.network, self._call, self.caller, self.address = network, call, call.node, call.address
        self.path, self.sent, self.until, self.metadata = call.path, call.sent, call.until, call.metadata
        self.over = False
        """Whether the caller has its answer."""
        self._node: Node | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer_lost = self._mute = False
        self._deadline: asyncio.TimerHandle | None = None
        self._next = 0.0
        network.count += 1
        self.number = network.count
        network.under_way.add(self)
        self._send()

    def _note(self, text: str) -> None:
        name = self.caller.name if self.caller is not None else "?"
        self.network.loop.event(f"{name} -> {self.address} {self.path.rpartition('.')[2]} #{self.number}: {text}")

    def _send(self) -> None:
        network, weather, rng = self.network, self.network.weather, self.network.rng
        draws = [rng.random() for _ in range(4)]
        self._note(f"sent {sum(map(len, self.sent))} bytes")
        if self.until is not None:
            self._deadline = network.later(max(0.0, self.until - network.loop.now), self.finish, *LATE)
        cut, delay = network.cut(self.caller, self.address), network.delay()
        if cut == "silent" or draws[0] < weather.silent:
            self._mute = True
            network.later(KEEPALIVE_S, self.finish, *BROKEN)
            if cut or draws[1] < 0.5:
                return
        elif cut or network.listening(self.address) is None:
            network.later(delay, self.finish, *REFUSED)
            return
        if draws[1] < weather.request_lost and not self._mute:
            network.later(delay, self.finish, *BROKEN)
            return
        if draws[2] < weather.late and not self._mute:
            network.later(delay, self.finish, *BROKEN)
            network.later(delay + 5 * rng.random(), self._deliver)
            return
        self._answer_lost = draws[3] < weather.answer_lost
        network.later(delay, self._deliver)

    def _deliver(self) -> None:
        server = self.network.listening(self.address)
        if server is None:
            self.finish(*REFUSED)
            return
        self._node = server.node
        # As gRPC's own thread hands it to the event loop of the process.
        self.network.loop.call_soon(self._begin, server, context=server.node.context())

    def _begin(self, server: SimServer) -> None:
        self._note("arrived")
        handler = server.handler(self.path, self.metadata)
        context = ServerContext(self, self.sent)
        self._task = self.network.loop.create_task(self._run(handler, context))

    async def _run(self, handler: Any, context: ServerContext) -> None:
        try:
            if handler is None:
                status = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            elif handler.response_streaming:
                async for reply in handler.stream_stream(None, context):
                    self._reply(handler.response_serializer(reply))
                    await asyncio.sleep(0)
                status = grpc.StatusCode.OK, ""
            else:
                self._reply(handler.response_serializer(await handler.stream_unary(None, context)))
                status = grpc.StatusCode.OK, ""
        except asyncio.CancelledError:
            status = grpc.StatusCode.CANCELLED, "CANCELLED"
        except _AbortError:
            status = context.status
        except Exception as error:
            status = grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"
        context.end(answered=status[0] is not grpc.StatusCode.CANCELLED)
        self._note(f"answered {status[0].name}")
        self._to_caller(self._answered, *status)

    def _to_caller(self, function: Callable[..., None], *args: Any) -> None:
        if self._mute or self.network.cut(self.caller, self.address):
            return
        at = max(self._next, self.network.loop.now + self.network.delay())
        self._next = at + 1e-9
        self.network.later(at - self.network.loop.now, function, *args)

    def _reply(self, raw: bytes) -> None:
        if not self._answer_lost:
            self._to_caller(self._message, raw)

    def _message(self, raw: bytes) -> None:
        if not self.over:
            self._call.arrived(raw)

    def _answered(self, code: grpc.StatusCode, details: str) -> None:
        self.finish(*(BROKEN if self._answer_lost else (code, details)), reached=True)

    def finish(self, code: grpc.StatusCode, details: str, *, reached: bool = False) -> None:
        """The caller learns how the call ends. Its daemon is told to give it up, unless it has answered."""
        if self.over:
            return
        self.over = True
        self.network.under_way.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        self._note(f"ends {code.name}")
        if not reached and not self._mute:
            self.network.later(self.network.delay(), self._give_up)
        self._call.attempted(code, details)

    def _give_up(self) -> None:
        if self._task is not None and self._node is not None:
            self.network.loop.call_soon(self._task.cancel, context=self._node.context())

    def broken(self, node: Node) -> None:
        """A process has ended: if it is one of the two, the other one notices."""
        if node is self._node and not self._mute:
            self.network.later(self.network.delay(), self.finish, *BROKEN)
        elif node is self.caller:
            self.over = True
            self.network.under_way.discard(self)
            self.network.later(self.network.delay(), self._give_up)
