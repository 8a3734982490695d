"""The handshake of links: who brings a good token is served, everybody else is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from atta.daemon.links import listening
from atta.daemon.links.attaching import _connected
from atta.daemon.links.listening import ACCEPTED, LinkService
from atta.errors import ConfigError
from atta.protos.v1 import link_pb2


class Links:
    """The native links: notes the sockets that it gets."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.peers: list[int] = []

    def serve(self, fd: int, peer: int) -> None:
        self.served.append(fd)
        self.peers.append(peer)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[LinkService, Links]]:
    links = Links()
    service = LinkService(cast(Any, links), "127.0.0.1:0", 0)
    service.listen()
    accepting = asyncio.create_task(service.accept())
    try:
        yield service, links
    finally:
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        service.close()
        for fd in links.served:
            os.close(fd)


async def reply_of(service: LinkService) -> link_pb2.AttachReply:
    return await service.attach(link_pb2.AttachRequest(version=1, part=7), cast(Any, None))


async def greeted(reply: link_pb2.AttachReply, token: bytes) -> bytes:
    """What a connection hears that brings ``token``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", reply.port)
    writer.write(token)
    async with asyncio.timeout(30):
        heard = b""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heard = await reader.readexactly(len(ACCEPTED))
    writer.close()
    return heard


@pytest.mark.parametrize("local", [True, False])
def test_a_token_opens_one_link(local: bool) -> None:
    async def main() -> None:
        async with serving() as (service, links):
            reply = await reply_of(service)
            if not local:
                reply.local = "nobody"
            sock = await _connected(f"127.0.0.1:{reply.port}", reply)
            with sock:
                assert sock.family == (socket.AF_UNIX if local else socket.AF_INET)
                while not links.served:
                    await asyncio.sleep(0.001)
                with pytest.raises(OSError, match="refused the token"):  # it is used
                    await _connected(f"127.0.0.1:{reply.port}", reply)
            assert links.peers == [7]

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["wrong", "late", "half"])
def test_other_tokens_open_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(listening, "time", clock)
    monkeypatch.setattr(listening, "GREETING_S", 0.2)

    async def main() -> None:
        async with serving() as (service, links):
            reply = await reply_of(service)
            token = {"wrong": b"x" * 16, "late": reply.token, "half": reply.token[:7]}[kind]
            if kind == "late":
                clock.now += 10.0
            assert await greeted(reply, token) == b""
            assert links.served == []
            if kind != "late":  # the right one is good still
                assert await greeted(reply, reply.token) == ACCEPTED

    asyncio.run(main())


def test_silent_connections_leave_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "GREETING_S", 0.2)
    monkeypatch.setattr(listening, "MOST_GREETINGS", 3)

    async def main() -> None:
        async with serving() as (service, links):
            reply = await reply_of(service)
            silent = [await asyncio.open_connection("127.0.0.1", reply.port) for _ in range(10)]
            assert await greeted(reply, reply.token) == ACCEPTED
            for reader, writer in silent:
                assert await reader.read(1) == b""
                writer.close()
            assert links.peers == [7]

    asyncio.run(main())


def test_another_service_at_the_port_is_no_link() -> None:
    async def main() -> None:
        async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(16)
            writer.write(b"HTTP/1.1")
            writer.close()

        server = await asyncio.start_server(other, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reply = link_pb2.AttachReply(version=1, port=port, local="nobody", token=b"x" * 16)
            with pytest.raises(OSError, match="something else"):
                await _connected(f"127.0.0.1:{port}", reply)

    asyncio.run(main())


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = LinkService(cast(Any, Links()), "127.0.0.1:0", port)
        with pytest.raises(ConfigError, match=f"port {port}"):
            service.listen()
        service.close()
