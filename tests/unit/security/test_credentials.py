"""The files of callers and daemons, and what they bring to each other: what is wrong is named, what changes is seen."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from atta.cli.cert import cert, make_authority, make_certificate
from atta.client.control import Connection
from atta.daemon import security as renewal
from atta.daemon.admission import CallGuard
from atta.daemon.config import DaemonConfig
from atta.daemon.durable.shipping import Shipping
from atta.daemon.peers.connection import PeerConnection, PeerSettings
from atta.daemon.peers.peers import Peer
from atta.daemon.security import DaemonSecurity, ServedCertificate, WatchedTokens, check_exposure, is_loopback
from atta.daemon.services.handling import Handling
from atta.daemon.services.rooms import RequestRoom
from atta.errors import (
    ConfigError,
    DataError,
    NotAllowedError,
    NotAuthenticatedError,
    UnavailableError,
    UnknownNameError,
)
from atta.protos.v1 import backup_pb2, control_pb2, graph_pb2
from atta.wire import credentials as channels
from atta.wire import credentials as credentials_module
from atta.wire import rpc
from atta.wire.clusterfile import credentials_for, read_cluster, read_credentials, write_cluster
from atta.wire.credentials import VARIABLES, Credentials, TlsFiles
from atta.wire.identity import Identity
from atta.wire.tokens import TokenFile, read_tokens
from tests.unit.platform.answers import DATASET, description, started
from tests.unit.security.authority import Authority


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_cluster_file_says_what_to_bring(tmp_path: Path, clean: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.toml"
    write_cluster(path, ["a:1"])
    assert credentials_for(path) is None
    path.write_text(path.read_text() + '\n[tls]\nca = "ca.pem"\ncert = "/etc/me.pem"\nkey = "/etc/me.key"\n')
    assert read_cluster(path) == {0: "a:1"}
    found = read_credentials(path)
    assert found == Credentials(str(tmp_path / "ca.pem"), "/etc/me.pem", "/etc/me.key")
    write_cluster(path, ["a:1"], found)
    assert credentials_for(str(path)) == found
    clean.setenv("ATTA_TOKEN_FILE", "mine")
    clean.setenv("ATTA_TLS_CA", "other.pem")
    assert credentials_for(path) == Credentials("other.pem", "/etc/me.pem", "/etc/me.key", "mine")
    assert credentials_for("a:1,b:2") == credentials_for(["a:1"]) == Credentials("other.pem", token="mine")
    clean.delenv("ATTA_TLS_CA")
    with pytest.raises(ConfigError, match="only over TLS"):
        credentials_for("a:1,b:2")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('[tls]\nca = "a"\ncart = "b"', UnknownNameError, "did you mean 'cert'"),
        ("[tls]\nca = 3", ConfigError, "ca is not the name of a file"),
        ('[tls]\ncert = "b"\nkey = "c"', ConfigError, "the authority's certificate"),
        ('[tls]\nca = "a"\nkey = "c"', ConfigError, "given together"),
        ("tls = 3", ConfigError, "names files"),
        ("[lts]", UnknownNameError, "did you mean 'tls'"),
    ],
)
def test_mistakes_in_a_cluster_file_are_named(
    tmp_path: Path, clean: pytest.MonkeyPatch, text: str, error: type[Exception], words: str
) -> None:
    (tmp_path / "c.toml").write_text(f'{text}\n[[daemon]]\npart = 0\naddress = "a:1"\n')
    with pytest.raises(error, match=words):
        (read_cluster(tmp_path / "c.toml"), read_credentials(tmp_path / "c.toml"))


def test_files_that_do_not_fit_together_are_named(authority: Authority, tmp_path: Path) -> None:
    one, other = authority.certificate("one"), authority.certificate("other")
    (tmp_path / "no.pem").write_text("nothing")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", one.key, "-out", str(locked), "-aes128", "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    for files, words in [
        (TlsFiles(one.ca, one.cert, other.key), "not the private key of"),
        (TlsFiles(str(tmp_path / "no.pem"), one.cert, one.key), "not the certificate of an authority"),
        (TlsFiles(one.ca, str(tmp_path / "no.pem"), one.key), "not in PEM form"),
        (TlsFiles(one.ca, one.cert, str(locked)), "is encrypted"),
        (TlsFiles(one.ca, one.cert, str(tmp_path / "absent")), "absent: cannot be read: No such file"),
    ]:
        with pytest.raises(DataError, match=words):
            files.read()
    assert Credentials(**json.loads(json.dumps(one.to_dict()))) == one
    assert one.headers() == ()
    found, _ = TlsFiles(one.ca, one.cert, one.key).read()
    assert found.key == Path(one.key).read_bytes()
    assert "PRIVATE" not in repr(found)


def test_a_renewed_certificate_is_seen(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = authority.certificate("one"), authority.certificate("other")
    files = TlsFiles(first.ca, str(tmp_path / "c.pem"), str(tmp_path / "c.key"))
    shutil.copy(first.cert, files.cert)
    shutil.copy(first.key, files.key)
    served = ServedCertificate(files, ask=True)
    shown = served.context()
    assert served._renewed() is None

    def keeps_what_was_shown() -> str:
        """What is said, once, of what is wrong."""
        with capture_logs() as lines:
            for _ in range(3):
                assert served._renewed() is None
                assert served.context() is shown
        (line,) = lines
        assert line["log_level"] == "error"
        return str(line["error"])

    def give(source: str, to: str) -> None:
        shutil.copy(source, tmp_path / "new")
        (tmp_path / "new").rename(to)

    give(second.cert, files.cert)  # its key comes later
    keeps_what_was_shown()
    give(second.key, files.key)
    with monkeypatch.context() as within:
        within.setattr(Path, "read_bytes", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        assert keeps_what_was_shown() == f"{files.ca}: cannot be read: Permission denied"
    assert served._renewed() is not None  # what was in the way has ended without a change of the files
    shown = served.context()
    assert served._shown.cert == Path(second.cert).read_bytes()
    assert served._renewed() is None
    Path(files.key).unlink()
    keeps_what_was_shown()
    give(second.key, files.key)
    assert served._renewed() is not None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("[::1]", True), ("0.0.0.0", False),
        ("[::]", False), ("10.0.0.1", False), ("machine", False), ("[fe80::1%eth0]", False), ("localhost.evil.org", False),
    ],
)  # fmt: skip
def test_listening_beyond_loopback_needs_tls_or_a_word(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
    for settings in ({"listen": f"{host}:1"}, {"metrics": f"{host}:1"}):
        config = DaemonConfig("d", range(1), **settings)
        if loopback:
            check_exposure(config)
        else:
            with pytest.raises(ConfigError, match=f"--{next(iter(settings))}: .* reached from other machines"):
                check_exposure(config)
        check_exposure(DaemonConfig("d", range(1), insecure=True, **settings))
        check_exposure(DaemonConfig("d", range(1), tls_cert="x", **settings))
    with pytest.raises(ConfigError, match=r"--metrics-port: 0\.0\.0\.0"):
        check_exposure(DaemonConfig("d", range(1), metrics_port=9090))


def test_an_option_that_lacks_another_is_refused(authority: Authority) -> None:
    assert DaemonSecurity.of(DaemonConfig("d", range(1))) is None
    own = authority.certificate("one", "peer")
    tls = {"tls_ca": own.ca, "tls_cert": own.cert, "tls_key": own.key}
    assert DaemonSecurity.of(DaemonConfig("d", range(1), **tls)) is not None
    for settings, words in [
        ({"tls_cert": own.cert}, "--tls-key is missing"),
        ({"tokens": "t"}, "--tls-cert is missing"),
        ({**tls, "tls_ca": ""}, "--tls-ca is missing"),
        ({**tls, "tls_callers": "token"}, "needs --tokens"),
        ({**tls, "metrics": "127.0.0.1:9"}, "metrics with TLS need --tokens"),
        ({**tls, "tls_callers": "token", "tokens": "t", "peers": {0: "a:1", 1: "b:1"}}, "needs --peer-token"),
    ]:
        with pytest.raises(ConfigError, match=words):
            DaemonSecurity.of(DaemonConfig("d", range(1), **settings))
    with pytest.raises(DataError, match="absent: cannot be read"):
        DaemonSecurity.of(DaemonConfig("d", range(1), **tls, peer_token="absent"))


def run(*words: str) -> str:
    result = CliRunner().invoke(cert, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("listen", "peers", "hosts", "fits"),
    [
        ("10.0.0.1:70", {}, ("10.0.0.1",), True),
        ("10.0.0.2:70", {}, ("10.0.0.1", "node1"), False),
        ("[fd09:0::1]:70", {}, ("fd09::1",), True),
        ("Node1.example:70", {}, ("*.example",), True),
        ("a.node1.example:70", {}, ("*.example",), False),
        ("0.0.0.0:70", {}, ("10.0.0.1",), True),
        ("0.0.0.0:70", {0: ("node1:70", "node2:70"), 1: "node3:70"}, ("node2",), True),
        ("[::]:70", {0: "node1:70", 1: "node3:70"}, ("node3",), False),
        ("10.0.0.2:70", {}, (), False),
    ],
)
def test_a_certificate_for_another_host_is_told_with_both(
    listen: str, peers: Any, hosts: tuple[str, ...], fits: bool, authority: Authority
) -> None:
    own = authority.certificate("-".join(re.sub(r"[*:]", "x", host) for host in ("of", *hosts)), "peer", hosts=hosts)
    config = DaemonConfig("d", range(1), listen, peers, tls_ca=own.ca, tls_cert=own.cert, tls_key=own.key)
    security = DaemonSecurity(config)
    with capture_logs() as lines, contextlib.suppress(TimeoutError):
        asyncio.run(asyncio.wait_for(security.watch_certificate(), 0.2))
    told = [(line["holds"], line["served_at"]) for line in lines if "another host" in line["event"]]
    places = "node1" if peers else listen.rpartition(":")[0].lower()
    assert told == ([] if fits else [(", ".join(hosts) or "no host", places)])


def test_certificates_are_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "certs")
    with pytest.raises(ConfigError, match="atta cert authority"):
        run("new", folder, "a")
    assert "good for 7 days" in run("authority", folder, "--days", "7")
    words = ("--role", "peer", "--role", "reader", "--host", "::1", "--host", "h.example")
    assert "peer, reader, ::1, h.example" in run("new", folder, "daemon-0", *words)
    names = [Path(folder, name) for name in ("ca.pem", "ca.key", "daemon-0.pem", "daemon-0.key")]
    assert sorted(Path(folder).iterdir()) == sorted(names)
    assert [file.stat().st_mode & 0o77 for file in names[1::2]] == [0, 0]
    command = [
        "openssl",
        "verify",
        "-CAfile",
        str(names[0]),
        "-purpose",
        "sslserver",
        "-verify_ip",
        "::1",
        str(names[2]),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    command = ["openssl", "x509", "-in", str(names[2]), "-noout", "-ext", "subjectAltName"]
    assert "URI:atta:role/peer, URI:atta:role/reader" in subprocess.check_output(command, text=True)
    for mistake, error in [
        (("authority", folder), "exists already"),
        (("new", folder, "daemon-0"), "exists already"),
        (("new", folder, "x/CN=y"), "cannot name a certificate"),
        (("new", folder, "ca"), "has no authority"),
        (("new", folder, "b", "--host", "h,URI:atta:role/operator"), "neither an IP address"),
    ]:
        with pytest.raises(ConfigError, match=error):
            run(*mistake)
    assert sorted(Path(folder).iterdir()) == sorted(names)


def test_an_authority_that_cannot_sign_is_named(tmp_path: Path) -> None:
    make_authority(tmp_path / "other", "b", 1)
    make_authority(tmp_path, "a", 1)
    for key, error in [((tmp_path / "other" / "ca.key").read_text(), "is not the key of"), ("?", "cannot be read")]:
        (tmp_path / "ca.key").write_text(key)
        with pytest.raises(DataError, match=error):
            make_certificate(tmp_path, "d", roles=(), hosts=(), days=1)


class Says:
    def __init__(self, reply: Any) -> None:
        self._method = AsyncMock(return_value=reply)

    def __getattr__(self, name: str) -> Any:
        return self._method


def give(source: Credentials, own: Credentials) -> None:
    shutil.copy(source.cert, own.cert)
    shutil.copy(source.key, own.key)


@contextlib.asynccontextmanager
async def owner(authority: Authority, callers: str) -> AsyncIterator[str]:
    """The address of the daemon of partition 1 of dataset "d"."""

    services = {
        "ControlService": description(),
        "GraphService": graph_pb2.ProbeReply(values=bytes(8)),
        "BackupService": backup_pb2.PieceReply(),
    }
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    tokens = WatchedTokens(str(authority.token_file)).now if callers == "token" else lambda: None
    server = grpc.aio.server()
    handling = Handling(Identity(1, "d", "i"), "here:1", RequestRoom(1 << 30), admit=CallGuard(tokens).admit)
    for service, reply in services.items():
        server.add_generic_rpc_handlers((handling.service(service, Says(reply)),))
    certificate = ServedCertificate(TlsFiles(own.ca, own.cert, own.key), ask=callers == "certificate")
    async with started(server, server.add_secure_port("127.0.0.1:0", certificate.for_grpc())) as address:
        yield address


async def ask(link: PeerConnection) -> bytes:
    await link.ready()
    try:
        return bytes((await link.usual.ask("GraphService.Probe", graph_pb2.ProbeRequest(), 10)).values)
    except grpc.aio.AioRpcError as error:
        raise rpc.error_from(link.address, error, 5.0) from error


async def test_a_renewed_certificate_is_taken(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    good, bad = authority.certificate("has-peer", "peer"), stranger.certificate("has-peer", "peer")
    own = Credentials(good.ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key"))
    give(bad, own)
    async with owner(authority, "certificate") as address:
        link = PeerConnection(address, Identity(1, "d"), PeerSettings(20.0, connect_s=0.5, credentials=own))
        shipping = Shipping(None, address, Identity(1, "d"), own)
        try:
            with pytest.raises(UnavailableError):
                await shipping._ask("Piece", backup_pb2.PieceRequest())
            with pytest.raises(UnavailableError, match="no daemon answers"):
                await ask(link)
            Path(own.key).write_text("half of a key")
            with pytest.raises(UnavailableError, match="no daemon answers"):
                await ask(link)
            assert link.spare is link.usual
            give(good, own)
            await shipping._ask("Piece", backup_pb2.PieceRequest())
            assert await ask(link) == bytes(8)
            assert link.spare is not link.usual
        finally:
            await link.close()
            await shipping.close()


async def test_a_certificate_is_renewed(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers and backups refuse calls of the connection that the old one has begun. Requests go over another one."""
    now = datetime.now(UTC)
    monkeypatch.setattr("atta.daemon.admission.datetime", SimpleNamespace(now=lambda _: now))
    own = Credentials(authority.certificate("p").ca, str(tmp_path / "own.pem"), str(tmp_path / "own.key"))

    def renew(name: str, days: int) -> None:
        make_certificate(authority.folder, name, roles=("peer",), hosts=(), days=days)
        give(authority.certificate(name), own)

    async with owner(authority, "certificate") as address:
        renew("short", 1)
        peer = Peer(1, address, DATASET, PeerSettings(20.0, connect_s=5.0, credentials=own))
        shipping = Shipping(None, address, Identity(1, "d"), own)
        asking = (lambda: peer.probe("e", 0, np.arange(1)), lambda: shipping._ask("Piece", backup_pb2.PieceRequest()))
        try:
            await asyncio.gather(*(ask() for ask in asking))
            now += timedelta(days=1.5)
            for ask in asking:
                with pytest.raises(NotAuthenticatedError, match="the certificate short has expired"):
                    await ask()
            renew("long", 3)
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
        give(bad, own)
        client = Connection(address, 20.0, credentials=own)
        describe = "ControlService.Describe", control_pb2.DescribeRequest()
        probe = partial(asyncio.to_thread, client.pinned().call, *describe)
        try:
            shutil.copy(good.cert, own.cert)  # its key comes later
            with pytest.raises(UnavailableError, match="may have expired"):
                await probe()
            shutil.copy(good.key, own.key)
            assert (await probe()).dataset_id == "d"
        finally:
            client.close()


def test_channels_of_before_are_kept(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [(Mock(), Mock()) for _ in range(4)]
    opened = Mock(side_effect=made)
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
    assert opened.call_count == 2
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


async def test_a_new_token_is_brought_over_the_connections_that_exist(
    authority: Authority, tokens: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers and clients look at the file once a second: here at each call."""
    for module in (credentials_module, renewal):
        monkeypatch.setattr(module, "LOOK_S", 0.0)
    first, second = tokens, authority.tokens()
    ca = authority.certificate("daemon", "peer", hosts=("127.0.0.1",)).ca
    own = {name: Credentials(ca, token=str(tmp_path / name)) for name in ("peer", "all")}

    def bring(tokens: Mapping[str, str]) -> None:
        for name, files in own.items():
            (tmp_path / "new").write_text(tokens[name])
            (tmp_path / "new").replace(files.token)

    bring(first)
    async with owner(authority, "token") as address:
        link = PeerConnection(address, Identity(1, "d"), PeerSettings(20.0, connect_s=5, credentials=own["peer"]))
        client = Connection(address, 20.0, credentials=own["all"])
        probe = partial(asyncio.to_thread, client.call, "ControlService.Describe", control_pb2.DescribeRequest())
        try:
            usual = link.usual
            assert (await ask(link), (await probe()).dataset_id) == (bytes(8), "d")
            bring(second)
            known = [*read_tokens(authority.token_file).entries.values()]
            authority.token_file.write_text(TokenFile.of(known[len(first) :]).text())
            assert (await ask(link), (await probe()).dataset_id) == (bytes(8), "d")
            Path(own["all"].token).unlink()
            assert (await probe()).dataset_id == "d"
            bring({"peer": second["reader"], "all": second["all"]})
            with pytest.raises(NotAllowedError, match="this needs the role peer"):
                await ask(link)
            assert link.usual is usual
            authority.token_file.write_text(TokenFile.of(known[: len(first)]).text())
            with pytest.raises(NotAuthenticatedError, match="the token is unknown"):
                await probe()
        finally:
            client.close()
            await link.close()
