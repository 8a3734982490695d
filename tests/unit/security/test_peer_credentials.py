"""What daemons bring to their peers and clients to daemons: a certificate or a token, and new ones when the files have
changed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from atta.cli.cert import make_certificate
from atta.client.control import Connection
from atta.daemon import security as renewal
from atta.daemon.admission import CallGuard
from atta.daemon.durable.shipping import Shipping
from atta.daemon.peers.connection import PeerConnection, PeerSettings
from atta.daemon.peers.peers import Peer
from atta.daemon.security import ServedCertificate, WatchedTokens
from atta.daemon.services.handling import Handling
from atta.daemon.services.rooms import RequestRoom
from atta.errors import NotAllowedError, NotAuthenticatedError, UnavailableError
from atta.protos.v1 import backup_pb2, control_pb2, graph_pb2
from atta.wire import credentials as channels
from atta.wire import credentials as credentials_module
from atta.wire import rpc
from atta.wire.credentials import Credentials, TlsFiles
from atta.wire.identity import OWN, Identity
from atta.wire.tokens import TokenFile, read_tokens
from tests.unit.security.authority import Authority


class _Says:
    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def __getattr__(self, name: str) -> Any:
        async def method(request: Any, context: Any) -> Any:
            return self._reply

        return method


@contextlib.asynccontextmanager
async def owner(authority: Authority, callers: str) -> AsyncIterator[str]:
    """The address of the daemon of partition 1 of dataset "d"."""

    described = control_pb2.DescribeReply(
        dataset_id="d", part=1, parts=1, incarnation="i", oldest_protocol=OWN.oldest, newest_protocol=OWN.newest
    )
    services = {
        "ControlService": described,
        "GraphService": graph_pb2.ProbeReply(values=bytes(8)),
        "BackupService": backup_pb2.PieceReply(),
    }
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    tokens = WatchedTokens(str(authority.token_file)).now if callers == "token" else lambda: None
    server = grpc.aio.server()
    handling = Handling(Identity(1, "d", "i"), "here:1", RequestRoom(1 << 30), admit=CallGuard(tokens).admit)
    for service, reply in services.items():
        server.add_generic_rpc_handlers((handling.service(service, _Says(reply)),))
    certificate = ServedCertificate(TlsFiles(own.ca, own.cert, own.key), ask=callers == "certificate")
    port = server.add_secure_port("127.0.0.1:0", certificate.for_grpc())
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


async def ask(link: PeerConnection) -> bytes:
    await link.ready()
    try:
        return bytes((await link.usual.ask("GraphService.Probe", graph_pb2.ProbeRequest(), 10)).values)
    except grpc.aio.AioRpcError as error:
        raise rpc.error_from(link.address, error, 5.0) from error


def test_a_renewed_certificate_is_taken_once_the_peer_is_asked_anew(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    good, bad = authority.certificate("has-peer", "peer"), stranger.certificate("has-peer", "peer")
    own = Credentials(good.ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key"))

    def give(files: Credentials) -> None:
        shutil.copy(files.cert, own.cert)
        shutil.copy(files.key, own.key)

    async def run() -> bytes:
        async with owner(authority, "certificate") as address:
            give(bad)
            link = PeerConnection(address, Identity(1, "d"), PeerSettings(20.0, connect_s=0.5, credentials=own))
            shipping = Shipping(None, address, Identity(1, "d"), own)  # type: ignore[arg-type]
            try:
                with pytest.raises(UnavailableError):
                    await shipping._ask("Piece", backup_pb2.PieceRequest())
                with pytest.raises(UnavailableError, match="no daemon answers"):
                    await ask(link)
                Path(own.key).write_text("half of a key")
                with pytest.raises(UnavailableError, match="no daemon answers"):
                    await ask(link)
                assert link.spare is link.usual
                give(good)
                await shipping._ask("Piece", backup_pb2.PieceRequest())
                answer = await ask(link)
                assert link.spare is not link.usual
                return answer
            finally:
                await link.close()
                await shipping.close()

    assert asyncio.run(run()) == bytes(8)


async def test_a_certificate_is_renewed_before_its_end_while_the_connection_lasts(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers and backups refuse calls of the connection that the old one has begun. Requests go over another one."""
    now = datetime.now(UTC)
    monkeypatch.setattr("atta.daemon.admission.datetime", SimpleNamespace(now=lambda _: now))
    schema = SimpleNamespace(edge_tables={})
    dataset: Any = SimpleNamespace(schema=schema, dataset_id="d", groups={1: range(1, 2)})
    own = Credentials(authority.certificate("p").ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key"))

    def give(name: str, days: int) -> None:
        make_certificate(authority.folder, name, roles=("peer",), hosts=(), days=days)
        for end in ("pem", "key"):
            shutil.copy(authority.folder / f"{name}.{end}", tmp_path / f"own.{end}")

    async with owner(authority, "certificate") as address:
        give("short", 1)
        peer = Peer(1, address, dataset, PeerSettings(20.0, connect_s=5.0, credentials=own))
        shipping = Shipping(None, address, Identity(1, "d"), own)  # type: ignore[arg-type]
        asking = (
            lambda: peer.probe("e", 0, np.arange(1)),
            lambda: shipping._ask("Piece", backup_pb2.PieceRequest()),
        )
        try:
            await asyncio.gather(*(ask() for ask in asking))
            now += timedelta(days=1.5)
            for ask in asking:
                with pytest.raises(NotAuthenticatedError, match="the certificate short has expired"):
                    await ask()
            give("long", 3)
            await asyncio.gather(*(ask() for ask in asking for _ in range(3)))
        finally:
            await peer.connection.close()
            await shipping.close()


async def test_a_client_brings_a_renewed_certificate(
    authority: Authority, stranger: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of a stranger stands for one that has expired: the daemon refuses both without a word."""
    monkeypatch.setattr(channels, "LOOK_S", 0.0)
    good, bad = authority.certificate("has-peer", "peer"), stranger.certificate("has-peer", "peer")
    own = Credentials(good.ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key"))
    async with owner(authority, "certificate") as address:
        shutil.copy(bad.cert, own.cert)
        shutil.copy(bad.key, own.key)
        client = Connection(address, 20.0, credentials=own)
        probe = partial(
            asyncio.to_thread, client.pinned().call, "ControlService.Describe", control_pb2.DescribeRequest()
        )
        try:
            shutil.copy(good.cert, own.cert)  # its key comes later
            with pytest.raises(UnavailableError, match="a certificate, or has yours expired"):
                await probe()
            shutil.copy(good.key, own.key)
            assert (await probe()).dataset_id == "d"
        finally:
            client.close()


def test_channels_of_before_are_kept_for_calls_that_are_under_way(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Mock, Mock]] = []

    def opened(*_: Any) -> tuple[Mock, Mock]:
        made.append((Mock(), Mock()))
        return made[-1]

    monkeypatch.setattr(channels, "open_channels", opened)
    now, good, ca = 0.0, authority.certificate("has-peer", "peer"), tmp_path / "ca.pem"
    shutil.copy(good.ca, ca)
    client = channels.ClientChannels("a:1", replace(good, ca=str(ca)), clock=lambda: now)
    first = client.stub("ControlService.Describe")
    ca.unlink()
    shutil.copy(good.ca, ca)
    assert client.stub("ControlService.Describe") is first  # not looked at again yet
    now = channels.LOOK_S
    second = client.stub("ControlService.Describe")
    now += channels.LOOK_S
    assert first is not second is client.stub("ControlService.Describe")
    assert len(made) == 2
    for _ in range(2):
        ca.touch()
        now += channels.LONGEST_CALL_S
        client.stub("ControlService.Describe")
    assert [one.close.call_count for pair in made for one in pair] == [1, 1, 1, 1, 0, 0, 0, 0]
    client.close()
    ca.touch()
    now += channels.LOOK_S
    client.stub("ControlService.Describe")
    assert [one.close.call_count for pair in made for one in pair] == [1] * 8


def test_a_token_is_brought_to_peers(authority: Authority, tmp_path: Path) -> None:
    tokens = authority.tokens()
    plain = Credentials(authority.certificate("daemon", "peer", hosts=("127.0.0.1",)).ca)

    async def run(token: str) -> bytes:
        (tmp_path / "token").write_text(f"{token}\n")
        credentials = replace(plain, token=str(tmp_path / "token")) if token else plain
        async with owner(authority, "token") as address:
            link = PeerConnection(address, Identity(1, "d"), PeerSettings(20.0, connect_s=5, credentials=credentials))
            try:
                return await ask(link)
            finally:
                await link.close()

    try:
        assert asyncio.run(run(tokens["peer"])) == bytes(8)
        with pytest.raises(NotAllowedError, match="GraphService/Probe needs the role peer"):
            asyncio.run(run(tokens["reader"]))
        with pytest.raises(NotAuthenticatedError, match="neither a certificate nor a token"):
            asyncio.run(run(""))
    finally:
        authority.token_file.unlink()


def test_a_new_token_is_brought_over_the_connections_that_exist(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers and clients look at the file once a second: here at each call."""
    for module in (credentials_module, renewal):
        monkeypatch.setattr(module, "LOOK_S", 0.0)
    first, second = authority.tokens(), authority.tokens()
    ca = authority.certificate("daemon", "peer", hosts=("127.0.0.1",)).ca
    own = {name: Credentials(ca, token=str(tmp_path / name)) for name in ("peer", "all")}

    def give(tokens: Mapping[str, str]) -> None:
        for name, files in own.items():
            (tmp_path / "new").write_text(tokens[name])
            (tmp_path / "new").replace(files.token)

    async def run() -> None:
        give(first)
        async with owner(authority, "token") as address:
            link = PeerConnection(address, Identity(1, "d"), PeerSettings(20.0, connect_s=5, credentials=own["peer"]))
            client = Connection(address, 20.0, credentials=own["all"])
            probe = partial(asyncio.to_thread, client.call, "ControlService.Describe", control_pb2.DescribeRequest())
            try:
                usual = link.usual
                assert (await ask(link), (await probe()).dataset_id) == (bytes(8), "d")
                give(second)
                known = [*read_tokens(authority.token_file).entries.values()]
                authority.token_file.write_text(TokenFile.of(known[len(first) :]).text())
                assert (await ask(link), (await probe()).dataset_id) == (bytes(8), "d")
                Path(own["all"].token).unlink()
                assert (await probe()).dataset_id == "d"
                assert link.usual is usual
                authority.token_file.write_text(TokenFile.of(known[: len(first)]).text())
                with pytest.raises(NotAuthenticatedError, match="the token is unknown"):
                    await probe()
            finally:
                client.close()
                await link.close()

    try:
        asyncio.run(run())
    finally:
        authority.token_file.unlink()
