"""Who is admitted: all combinations of method, role and credential, by real calls over TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from atta.cli.cert import make_certificate
from atta.daemon.admission import EVERY_S, Admitted, AuditLines, CallGuard, Refusal, Refused, end_of
from atta.daemon.security import ServedCertificate, WatchedTokens
from atta.daemon.services.handling import Handling, add_health_and_reflection
from atta.daemon.services.rooms import FREE_S, NOT_ADMITTED_S, Debts, RequestRoom
from atta.wire import rpc
from atta.wire.credentials import Credentials, TlsFiles
from atta.wire.identity import HEADER, Bound, Identity
from atta.wire.tokens import METRICS, ROLES, Role
from tests.unit.platform.answers import started
from tests.unit.security.authority import Authority, anonymous

UNDECODABLE = b"\xff" * 5
NAMES = [*(role.value for role in Role), "all"]
PARSED: list[str] = []
"""Connections whose request has been read."""


class Read(RequestRoom):
    async def read(self, context: Any, check_size: Callable[[int], None]) -> Any:
        PARSED.append(context.peer())
        return await super().read(context, check_size)


class Anything:
    def __init__(self, service: str) -> None:
        self._methods = {re.sub(r"(?<!^)(?=[A-Z])", "_", n.partition(".")[2]).lower(): m
                         for n, m in rpc.METHODS.items() if n.startswith(f"{service}.")}  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        method = self._methods[name]

        async def one(request: Any, context: Any) -> Any:
            return method.reply()

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            yield method.reply()

        return stream if method.streams else one


@contextlib.asynccontextmanager
async def daemon(authority: Authority, callers: str) -> AsyncIterator[str]:
    """An address at which every method of a daemon is guarded as ``--tls-callers`` says."""
    own = authority.certificate("daemon", "peer", hosts=("127.0.0.1",))
    certificate = ServedCertificate(TlsFiles(own.ca, own.cert, own.key), ask=callers == "certificate")
    guard = CallGuard(WatchedTokens(str(authority.token_file)).now)
    server, here = grpc.aio.server(), Identity(1, "d", "i")
    handling = Handling(here, "here:1", Read(1 << 30), admit=guard.admit)
    services = {name.partition(".")[0] for name in rpc.METHODS}
    server.add_generic_rpc_handlers([handling.service(service, Anything(service)) for service in services])
    add_health_and_reflection(server, [f"atta.v1.{service}" for service in services], guard.admit)
    async with started(server, server.add_secure_port("127.0.0.1:0", certificate.for_grpc())) as address:
        yield address


@contextlib.asynccontextmanager
async def calling(authority: Authority, callers: str, own: Credentials | None = None) -> AsyncIterator[Any]:
    shown = anonymous(authority) if own is None else own.for_channel()
    async with daemon(authority, callers) as address, grpc.aio.secure_channel(address, shown) as channel:
        yield channel


async def status(channel: Any, method: str, header: tuple[tuple[str, str], ...], raw: bytes = UNDECODABLE) -> Any:
    """How a call ends, and what is said of it.

    A stream of one message is sent as a single request is: of a refusal that overtakes it, gRPC's client then says
    what was refused. While it writes a stream it says ``Internal error``.
    """
    path, header = f"/{method}", ((HEADER, Identity(1, "d", "i").header(Bound.PROCESS)[0][1]), *header)
    streams = method.startswith("grpc.reflection") or method.endswith("/Watch")
    try:
        if streams or any(m.path == path and m.streams for m in rpc.METHODS.values()):
            call = channel.unary_stream(path)(raw, metadata=header, timeout=20)
        else:
            await channel.unary_unary(path)(raw, metadata=header, timeout=20)
            return "OK", ""
        async for _ in call:
            break
        return "OK", ""
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def needed(method: str) -> set[str]:
    """The roles that may call a method, said once more and in another way than the table."""
    service, _, name = method.partition("/")
    kind = service.rpartition(".")[2]
    if kind in {"GraphService", "KvService", "LinkService"} or name in {"Follow", "Append", "Piece", "Vote"}:
        return {"peer"}
    if kind in {"SessionService", "QueryService"} or name == "Report":
        return {"reader"}
    if name in {"Stop", "Trace", "Save", "Load", "Promote", "Publish", "ServerReflectionInfo"}:
        return {"operator"}
    if (kind, name) == ("TableService", "Delete"):
        return {"writer", "operator"}
    if kind == "Health" or (kind, name) == ("ControlService", "Describe"):
        return {"reader", "writer", "peer", "operator"}
    if name in {"Stats", "Sessions", "List", "Describe", "Snapshots", "Versions"}:
        return {"reader", "writer", "operator"}
    both = kind == "IdService" or name in {"Pull", "Locate", "Changes", "EdgesFrom"}
    return {"reader", "writer"} if both else {"writer"}


METHODS = [method for method in ROLES if method not in (METRICS, "grpc.health.v1.Health/List")]  # gRPC has none


def wanted(method: str, name: str) -> set[str]:
    """The statuses with which undecodable bytes of a caller with the role ``name`` may end."""
    if name != "all" and name not in needed(method):
        return {"PERMISSION_DENIED"}
    if method.startswith("grpc.reflection"):
        return {"INTERNAL", "UNKNOWN", "INVALID_ARGUMENT"}  # gRPC's own answer to a broken stream
    return {"INVALID_ARGUMENT"}


async def test_all_methods_and_roles_by_token(
    authority: Authority, stranger: Authority, tokens: dict[str, str]
) -> None:
    expired = authority.tokens(valid=timedelta(seconds=-1))
    forged = tokens["all"][:-4] + ("0000" if not tokens["all"].endswith("0000") else "1111")
    bad = {
        "missing": ((), "neither a certificate nor a token"),
        "expired": (bearer(expired["all"]), "has expired"),
        "forged": (bearer(forged), "is unknown"),
        "foreign": (bearer(stranger.tokens()["all"]), "is unknown"),
        "malformed": (bearer("atta"), "is malformed"),
        "of another scheme": ((("authorization", f"Basic {tokens['all']}"),), "not one `Bearer TOKEN`"),
        "two": (bearer(tokens["all"]) * 2, "not one `Bearer TOKEN`"),
    }
    async with calling(authority, "token") as channel:
        for method in METHODS:
            PARSED.clear()
            for what, (header, words) in bad.items():
                code, details = await status(channel, method, header)
                assert (code, words in details) == ("UNAUTHENTICATED", True), (method, what, details)
                assert details.startswith(rpc.ACCESS)
            assert PARSED == [], method
            for name in NAMES:
                code, details = await status(channel, method, bearer(tokens[name]))
                assert code in wanted(method, name), (method, name, details)
                assert tokens[name] not in details
        assert await status(channel, "atta.v1.KvService/Absent", bearer(tokens["all"])) == (
            "UNIMPLEMENTED", "Method not found!",
        )  # fmt: skip


async def test_all_methods_and_roles_by_certificate(authority: Authority, tokens: dict[str, str]) -> None:
    shown = {name: authority.certificate(f"has-{name}", name) for name in NAMES[:-1]}
    shown["all"] = authority.certificate("has-all", *NAMES[:-1])
    async with daemon(authority, "certificate") as address:
        for name, credentials in shown.items():
            async with grpc.aio.secure_channel(address, credentials.for_channel()) as channel:
                for method in METHODS:
                    code, details = await status(channel, method, ())
                    assert code in wanted(method, name), (method, name, details)
                    code, details = await status(channel, method, bearer("atta"))
                    assert (code, "malformed" in details) == ("UNAUTHENTICATED", True), (method, details)


async def test_a_certificate_that_ends_ends_the_calls_of_its_connection(
    authority: Authority, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS has looked at its dates when the connection began, and does not do so again. A good token does not help."""
    now = datetime.now(UTC)
    monkeypatch.setattr("atta.daemon.admission.datetime", SimpleNamespace(now=lambda _: now))
    credentials, method = authority.certificate("has-peer", "peer"), "atta.v1.KvService/Pull"
    end = end_of(Path(credentials.cert).read_bytes())
    async with calling(authority, "certificate", credentials) as channel:
        assert (await status(channel, method, ()))[0] == "INVALID_ARGUMENT"
        now = end
        assert (await status(channel, method, ()))[0] == "INVALID_ARGUMENT"
        now = end + timedelta(seconds=1)
        for header in ((), bearer(tokens["peer"])):
            ended = await status(channel, method, header)
            assert ended == ("UNAUTHENTICATED", f"{rpc.ACCESS}the certificate has-peer has expired")


@pytest.mark.parametrize("days", [2, 12_000])
def test_the_end_of_a_certificate_is_what_openssl_reads(authority: Authority, days: int) -> None:
    """From 2050 on, years are written in another way."""
    make_certificate(authority.folder, f"days-{days}", roles=("peer",), hosts=("a.example",), days=days)
    path = authority.folder / f"days-{days}.pem"
    told = subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", path], text=True)
    seconds = ssl.cert_time_to_seconds(told.strip().removeprefix("notAfter="))
    assert end_of(path.read_bytes()) == datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize("fault", ["expired", "not valid yet", "forged", "altered"])
async def test_no_connection_with_a_bad_one(
    authority: Authority, tokens: dict[str, str], tmp_path: Path, fault: str
) -> None:
    """A good token does not help. *Forged*: signed by an authority that only has the name of ours."""
    shown = {name: bad_certificate(authority, tmp_path, fault, *roles) for name, *roles in [*ROLE_SETS]}
    async with daemon(authority, "certificate") as address:
        good = authority.certificate("has-all", *NAMES[:-1])
        async with grpc.aio.secure_channel(address, good.for_channel()) as channel:
            assert (await status(channel, METHODS[0], bearer(tokens["all"])))[0] == "INVALID_ARGUMENT"
        PARSED.clear()
        for name, files in shown.items():
            credentials = grpc.ssl_channel_credentials(files.ca, files.key, files.cert)
            async with grpc.aio.secure_channel(address, credentials) as channel:
                for method in (METHODS[0], METHODS[-1]):
                    code, _ = await status(channel, method, bearer(tokens["all"]))
                    assert code == "UNAVAILABLE", (name, method)
    assert PARSED == []


ROLE_SETS = [(name, *([name] if name != "all" else NAMES[:-1])) for name in NAMES]


def bad_certificate(authority: Authority, folder: Path, fault: str, *roles: str) -> Any:
    """The files of a caller with these roles, with something wrong."""
    name, by = f"bad-{len(roles)}-{roles[0]}", authority.folder
    if fault == "forged":
        forger = folder / "forger"
        by = forger if forger.exists() else Authority.in_folder(forger).folder
    place = folder / name
    place.mkdir()
    for file in ("ca.pem", "ca.key"):
        shutil.copy(by / file, place)
    begins = {"expired": datetime(2024, 1, 1, tzinfo=UTC), "not valid yet": datetime(2099, 1, 1, tzinfo=UTC)}.get(fault)
    make_certificate(place, name, roles=roles, hosts=(), days=1, begins=begins)
    certificate = place / f"{name}.pem"
    if fault == "altered":
        lines = certificate.read_text().splitlines()
        der = bytearray(base64.b64decode("".join(lines[1:-1])))
        der[-1] ^= 1  # within the signature
        text = base64.encodebytes(bytes(der)).decode()
        certificate.write_text(f"{lines[0]}\n{text}{lines[-1]}\n")
    return SimpleNamespace(
        ca=(authority.folder / "ca.pem").read_bytes(),
        cert=certificate.read_bytes(),
        key=(place / f"{name}.key").read_bytes(),
    )


async def test_refused_calls_and_those_of_operators_leave_a_line(authority: Authority, tokens: dict[str, str]) -> None:
    own, pull = authority.certificate("has-operator", "operator"), "atta.v1.KvService/Pull"
    stop, stats = "atta.v1.ControlService/Stop", "atta.v1.ControlService/Stats"
    with capture_logs() as lines:
        async with calling(authority, "certificate", own) as channel:
            await status(channel, stats, (), b"")
            await status(channel, stop, (), b"")
            await status(channel, stats, bearer(tokens["all"][:-1]), b"")
            await status(channel, pull, bearer(tokens["writer"]), b"")
    events = [(line["event"], line["method"]) for line in lines]
    assert events == [("operator's call", stop), ("call refused", stats), ("call refused", pull)]
    name, (_, malformed, lacking) = "certificate has-operator", lines
    assert [line["caller"] for line in lines[:2]] == [name, name]
    assert malformed["reason"] == "the token is malformed"
    assert re.fullmatch(f"{name} and token .* of writer", lacking["caller"])
    assert re.search("needs the role peer.*has operator, writer", lacking["reason"])
    assert all(line["address"].startswith("ipv4:127.0.0.1:") for line in lines)
    assert [line["log_level"] for line in lines] == ["info", "warning", "warning"]
    assert all(token.rpartition("-")[2] not in str(lines) for token in tokens.values())


def test_refusals_of_one_caller_and_method_share_a_line_a_second() -> None:
    now = 100.0
    lines = AuditLines(lambda: now)
    stop, stats = "atta.v1.ControlService/Stop", "atta.v1.ControlService/Stats"

    def refused(address: str, *, method: str = stop, caller: str = "unknown", cause: str = "still") -> None:
        lines.write(method, address, Refused(caller, Refusal.UNKNOWN, cause))

    with capture_logs() as told:

        def said(*keys: str) -> list[tuple[object, ...]]:
            found = [tuple(line.get(key) for key in ("address", *keys)) for line in told]
            told.clear()
            return found

        for number in range(1000):
            refused(f"a:{number}", cause=f"cause {number}")
        refused("b:1", method=stats)
        refused("c:1", caller="token t")
        assert said("times") == [("a:0", None), ("b:1", None), ("c:1", None)]
        now += EVERY_S
        lines.write(stats, "d:1", Admitted("token t", frozenset()))  # anybody's call
        assert said("reason", "times") == [("a:999", "cause 999", 999)]
        refused("a:1000")
        now += EVERY_S
        refused("a:1001")
        now += EVERY_S
        refused("a:1002")
        assert said("times") == [("a:1000", 1), ("a:1001", 1)]
        now += 2 * EVERY_S
        lines.write(stats, "d:1", Admitted("token t", frozenset()))
        now += EVERY_S
        refused("a:1003", cause="after a pause")
        assert said("times") == [("a:1002", 1), ("a:1003", None)]


async def test_a_connection_waits_for_its_refusals_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context(SimpleNamespace):
        auth_context, invocation_metadata = staticmethod(dict), staticmethod(tuple)

        async def abort(self, code: grpc.StatusCode, _: str) -> None:
            raise PermissionError(code.name)

    paused, nap = list[float](), asyncio.sleep
    guard = CallGuard(lambda: None, debts=Debts(), most_waiting=7)

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        await nap(0)

    async def refused(connection: str) -> None:
        with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
            await guard.admit("atta.v1.ControlService/Stop", Context(peer=lambda: connection))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with capture_logs():
        for _ in range(int(FREE_S / NOT_ADMITTED_S) - 1):
            await refused("a")
        assert paused == []
        await asyncio.gather(*(refused("a") for _ in range(30)), *(refused("b") for _ in range(9)))
        assert len(paused) == 7  # of "a"; the others do not wait, as too many do
        assert 0 < paused[0] < paused[-1]
        await refused("a")
        assert paused[-2] < paused[-1] <= 30 * NOT_ADMITTED_S
