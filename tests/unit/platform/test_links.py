"""The handshake of links: who brings a good token is served, everybody else is closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from atta import _native
from atta.cli.cert import make_authority
from atta.daemon.peers import sockets as listening
from atta.daemon.peers.links import DaemonLinks
from atta.daemon.peers.sockets import (
    ACCEPTED,
    MOST_TOKENS,
    SECRET_BYTES,
    TOKEN_BYTES,
    TOKEN_S,
    Attaching,
    Grant,
    LinkNotSecure,
    LinkService,
    Tokens,
    _connected,
    congestion_control,
    secured,
)
from atta.errors import ConfigError
from atta.protos.v1 import link_pb2
from atta.samplers.kernels import as_bytes
from tests.unit.invariants import validate
from tests.unit.native.links.ends import Owner, ask, done, encrypted, pairs, pull

ACTIONS = st.one_of(
    st.tuples(st.just("give"), st.sampled_from([1, 2, MOST_TOKENS - 1, MOST_TOKENS])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, TOKEN_S / 2, TOKEN_S])),
    st.tuples(st.sampled_from(["take", "again"]), st.integers(0, 2 * MOST_TOKENS)),
    st.tuples(st.just("guess"), st.binary(max_size=2 * TOKEN_BYTES)),
)


@given(st.lists(ACTIONS, max_size=25))
def test_tokens_against_a_list_of_what_was_given(actions: list[tuple[str, Any]]) -> None:
    tokens, now, given_out, used = Tokens(), 0.0, list[Any](), list[bytes]()
    for what, value in actions:
        if what == "give":
            for peer in range(value):
                grant = Grant(peer, bytes([peer % 256]) * SECRET_BYTES)
                given_out.append((tokens.new(now, grant), now + TOKEN_S, grant))
            given_out = [one for one in given_out if one[1] > now][-MOST_TOKENS:]
        elif what == "wait":
            now += value
        elif what == "take" and given_out:
            token, end, grant = given_out.pop(value % len(given_out))
            assert tokens.take(token, now) == (grant if end > now else None)
            used.append(token)
        elif what == "again" and used:
            assert tokens.take(used[value % len(used)], now) is None
        elif what == "guess":
            assert tokens.take(value, now) is None
        validate(tokens)


def test_the_oldest_of_as_many_tokens_as_there_may_be_is_good() -> None:
    tokens = Tokens()
    grant = Grant(3)
    given = [tokens.new(0.0, grant) for _ in range(MOST_TOKENS)]
    assert tokens.take(given[0], 1.0) == grant
    more = [tokens.new(1.0, grant), tokens.new(1.0, grant)]
    assert tokens.take(given[1], 1.0) is None  # the oldest made room
    assert "77" not in repr(Grant(3, b"7" * SECRET_BYTES)), "a secret is not printed"
    assert all(tokens.take(token, 1.0) == grant for token in (*more, *given[2:]))


class Links:
    def __init__(self) -> None:
        self.served, self.peers, self.encrypted = list[int](), list[int](), list[bool]()

    def serve(self, fd: int, peer: int, tls: _native.LinkTls | None) -> None:
        self.served.append(fd)
        self.peers.append(peer)
        self.encrypted.append(tls is not None)


@contextlib.asynccontextmanager
async def serving(*, encrypted: bool = False) -> AsyncIterator[tuple[LinkService, Links]]:
    links = Links()
    service = LinkService(links, "127.0.0.1:0", 0, encrypted=encrypted)
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
    return await service.attach(link_pb2.AttachRequest(version=1, part=7), None)


async def greeted(reply: link_pb2.AttachReply, token: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", reply.port)
    writer.write(token)
    async with asyncio.timeout(30):
        heard = b""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heard = await reader.readexactly(len(ACCEPTED))
    writer.close()
    return heard


WITH_TLS = pytest.mark.skipif(not _native.link_tls, reason="built without OpenSSL")


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=WITH_TLS)])
async def test_a_token_opens_one_link_and_those_to_other_machines_are_encrypted(local: bool, encrypted: bool) -> None:
    async with serving(encrypted=encrypted) as (service, links):
        reply, other = await reply_of(service), await reply_of(service)
        assert (len(reply.secret), reply.secret == other.secret) == ((32, False) if encrypted else (0, True))
        if not local:
            reply.local = "nobody"
        sock, tls = await _connected(f"127.0.0.1:{reply.port}", reply)
        with sock:
            assert sock.family == (socket.AF_UNIX if local else socket.AF_INET)
            while not links.served:
                await asyncio.sleep(0.001)
            with pytest.raises(OSError, match="refused the token"):  # it is used
                await _connected(f"127.0.0.1:{reply.port}", reply)
        secured = encrypted and not local
        assert (links.peers, links.encrypted, tls is not None) == ([7], [secured], secured)


@pytest.mark.parametrize("kind", ["wrong", "late", "half"])
async def test_other_tokens_open_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(listening, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(listening, "GREETING_S", 0.2)
    async with serving() as (service, links):
        reply = await reply_of(service)
        token = {"wrong": b"x" * 16, "late": reply.token, "half": reply.token[:7]}[kind]
        if kind == "late":
            now += 10.0
        assert await greeted(reply, token) == b""
        assert links.served == []
        if kind != "late":  # the right one is good still
            assert await greeted(reply, reply.token) == ACCEPTED


async def test_silent_connections_leave_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "GREETING_S", 0.2)
    monkeypatch.setattr(listening, "MOST_GREETINGS", 3)
    async with serving() as (service, links):
        reply = await reply_of(service)
        silent = [await asyncio.open_connection("127.0.0.1", reply.port) for _ in range(10)]
        assert await greeted(reply, reply.token) == ACCEPTED
        for reader, writer in silent:
            assert await reader.read(1) == b""
            writer.close()
        assert links.peers == [7]


async def test_another_service_at_the_port_is_no_link() -> None:
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


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = LinkService(Links(), "127.0.0.1:0", port)
        with pytest.raises(ConfigError, match=f"port {port}"):
            service.listen()
        service.close()


@pytest.mark.parametrize(("control", "said"), [("bbr", True), ("cubic", False)])
def test_a_congestion_control_that_is_dear_is_said(control: str, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # every process may have it
        assert congestion_control(sock) == "reno"
    monkeypatch.setattr(listening, "congestion_control", lambda _: control)
    service = LinkService(Links(), "127.0.0.1:0", 0)
    with capture_logs() as lines:
        service.listen()
    service.close()
    assert [line.get("set") for line in lines] == ["net.ipv4.tcp_congestion_control"] * said


@WITH_TLS
@pytest.mark.parametrize("kind", ["another", "none", "certificate"])
async def test_who_does_not_know_the_secret_gets_no_link(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "GREETING_S", 0.3)
    async with serving(encrypted=True) as (service, links):
        reply = await reply_of(service)
        reply.local = "nobody"
        if kind == "another":
            reply.secret = bytes(32)
            with pytest.raises(LinkNotSecure, match="does not know the secret"):
                await _connected(f"127.0.0.1:{reply.port}", reply)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", reply.port)
            writer.write(reply.token)
            assert await reader.readexactly(len(ACCEPTED)) == ACCEPTED
            if kind == "certificate":  # TLS without the secret
                plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
                with pytest.raises((ssl.SSLError, OSError)):
                    await writer.start_tls(plain)
            else:  # it waits for frames
                assert await reader.read() == b""
            writer.close()
        assert links.served == []
        good = await reply_of(service)  # others are not in its way
        good.local = "nobody"
        sock, _ = await _connected(f"127.0.0.1:{good.port}", good)
        sock.close()


@WITH_TLS
async def test_a_handshake_that_is_given_up_has_ended() -> None:
    """Else its thread would go on with the number of the socket, and take bytes from the next one that has it."""
    near, far = pairs("tcp")
    with ThreadPoolExecutor(1) as threads, near, far:
        asyncio.get_running_loop().set_default_executor(threads)
        shaking = asyncio.create_task(secured(near, bytes(SECRET_BYTES), 60.0, serves=True))
        await asyncio.sleep(0.05)  # the other end says nothing
        shaking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shaking
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10) == "free"


@WITH_TLS
def test_a_server_with_a_certificate_instead_of_the_secret_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path, "anybody", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "ca.key")
    near, far = pairs("tcp")
    asks = _native.LinkTls(near.fileno(), bytes(32), False)
    far.setblocking(True)

    def other_server() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(far, server_side=True)

    thread = threading.Thread(target=other_server)
    thread.start()
    assert asks.shake_hands(20_000) == "the other end does not know the secret"
    near.close()
    thread.join()
    far.close()


@contextlib.contextmanager
def relayed(back: Callable[[bytes, Callable[[bytes], None]], None]) -> Iterator[tuple[Owner, _native.Links]]:
    """An owner, and links encrypted to it through a relay; ``back(data, send)`` passes on what the owner sends."""
    owner, me = Owner(), _native.Links(1)
    (near, one), (other, far) = pairs("tcp"), pairs("tcp")

    def relay(
        source: socket.socket, to: socket.socket, pass_on: Callable[[bytes, Callable[[bytes], None]], None]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                pass_on(data, to.sendall)
        for sock in (source, to):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    ways = (one, other, lambda data, send: send(data)), (other, one, back)
    threads = [threading.Thread(target=relay, args=way) for way in ways]
    for sock in (one, other):
        sock.setblocking(True)
    for thread in threads:
        thread.start()
    asks, serves = encrypted(near, far)
    owner.links.serve(far.detach(), -1, serves)
    me.attach(1, near.detach(), asks)
    try:
        yield owner, me
    finally:
        for links in (me, owner.links):
            links.close()
        for thread in threads:
            thread.join(60)
        for sock in (one, other):
            sock.close()


@WITH_TLS
def test_frames_are_neither_readable_nor_changeable_on_their_way() -> None:
    change, seen = threading.Event(), bytearray()

    def back(data: bytes, send: Callable[[bytes], None]) -> None:
        seen.extend(data)
        changed = bytearray(data)
        changed[len(data) // 2] ^= change.is_set()
        send(bytes(changed))

    with relayed(back) as (owner, me):
        rows, table = np.arange(1000), as_bytes(owner.tables[0][0])
        out = np.zeros((1000, 100), np.uint8)
        step = me.step()
        pull(step, rows, [out])
        assert done(me, ask(me, step)).left() == []
        assert np.array_equal(out, table[rows])
        assert len(seen) > out.nbytes
        assert not any(bytes(table[row]) in bytes(seen) for row in range(0, 1000, 50))
        change.set()
        step = me.step()
        pull(step, rows, [np.zeros_like(out)])
        done(me, ask(me, step))
        assert step.left()
        assert me.stats()["links_malformed"] == 0  # encryption has found it, not the frames' check


@WITH_TLS
def test_a_record_that_has_come_in_part_keeps_nobody_busy() -> None:
    stop, answered = threading.Event(), 0

    def back(data: bytes, send: Callable[[bytes], None]) -> None:
        """Holds back the last byte of the first answer until it is told."""
        nonlocal answered
        answered += len(data)
        if answered > 100_000 and not stop.is_set():
            send(data[:-1])
            stop.wait(60)
            data = data[-1:]
        send(data)

    with relayed(back) as (owner, me):
        rows, step = np.arange(1000).repeat(4), me.step()
        out = np.zeros((len(rows), 25), np.float32)
        pull(step, rows, [out])
        ask(me, step)
        time.sleep(0.2)  # what has come is taken in
        before = time.process_time()
        time.sleep(0.6)
        assert time.process_time() - before < 0.3  # an end that asks again and again takes all of it
        assert not step.done, step.left()
        stop.set()
        assert done(me, step).left() == []
        assert np.array_equal(out, owner.tables[0][0][rows])


@pytest.mark.parametrize(
    ("now", "answers", "ends"), [("first", True, False), ("first", False, True), ("second", True, True)]
)
def test_a_silent_link_ends_though_a_replica_answers(now: str, answers: bool, ends: bool) -> None:
    """Messages go to the replica already. That it answers says nothing about the daemon at the other end of the link."""
    detached: list[int] = []

    async def answer() -> bool:
        return answers

    peer = SimpleNamespace(address="first", connection=SimpleNamespace(watch=SimpleNamespace(answers=answer)))
    native = SimpleNamespace(detach=detached.append, attached=lambda _: 0)
    attaching = Attaching(native, 0, lambda _: peer, [1], width=1)
    attaching._addresses[1], attaching.missing = "first", set()
    peer.address = now
    links = SimpleNamespace(_peers={1: peer}, _attaching=attaching, _native=native)
    asyncio.run(DaemonLinks._end_silent(links, [1]))
    assert (detached, attaching.missing) == (([1], {1}) if ends else ([], set()))


def test_a_connection_ends_soon_after_the_other_machine_fell_silent() -> None:
    with socket.socket() as sock:
        listening.tuned(sock)
        names = ("KEEPIDLE", "KEEPINTVL", "KEEPCNT", "USER_TIMEOUT")
        idle, every, count, timeout = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) for name in names
        )
        assert idle + every * count == timeout / 1e3 == 11
