"""Releases that work together: ranges of protocols."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.client.control import Connection
from atta.daemon.peers.connection import PeerConnection, PeerSettings
from atta.errors import DrainingError, ProtocolError, UnavailableError
from atta.partition.schema import Schema
from atta.protos.v1 import control_pb2
from atta.wire import rpc
from atta.wire.identity import OWN, Identity, Release, check_release, release_of
from tests.unit.platform.answers import described

NUMBERS = st.integers(1, 9)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_two_releases_work_together_if_they_share_a_protocol(a: int, b: int, c: int, d: int) -> None:
    found, own = Release("9.0", a, b), Release("1.0", min(c, d), max(c, d))
    shared = {*range(a, b + 1)} & {*range(own.oldest, own.newest + 1)}
    if shared:
        check_release(found, "x:1", own)
    else:
        with pytest.raises(ProtocolError, match=r"Atta 9\.0.*Atta 1\.0"):
            check_release(found, "x:1", own)


def meet(address: str) -> None:
    async def run() -> None:
        link = PeerConnection((address,), Identity(1, "d"), PeerSettings(20.0, connect_s=5.0))
        try:
            await link.ready()
        finally:
            await link.close()

    asyncio.run(run())


def ask(address: str) -> Release:
    connection = Connection(address, 5.0, part=1)
    try:
        return connection.describe().release
    finally:
        connection.close()


@pytest.mark.parametrize("call", [meet, ask])
def test_clients_and_peers_refuse_what_they_cannot_speak_with(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schema, "from_json", classmethod(lambda cls, document: None))
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"version": "0.0.9", "oldest_protocol": 0, "newest_protocol": 0}, False),
        ({"version": "0.2", "oldest_protocol": 2, "newest_protocol": 3}, True),
        ({"version": "7.0", "oldest_protocol": 8, "newest_protocol": 9}, False),
    ]
    for about, accepted in cases:
        wrong = pytest.raises(ProtocolError, match=r"speaks protocols? .*\(Atta [07]\.0.*\), this process protocol 2")
        with described(schema='{"num_parts": 1}', **about) as address, nullcontext() if accepted else wrong:
            call(address)


def test_a_daemon_tells_what_it_speaks() -> None:
    reply = control_pb2.DescribeReply(version=OWN.version, oldest_protocol=OWN.oldest, newest_protocol=OWN.newest)
    assert release_of(control_pb2.DescribeReply.FromString(reply.SerializeToString())) == OWN


def test_a_daemon_that_stops_is_told_apart_from_one_that_is_away() -> None:
    code, details = rpc.status_of(DrainingError("x:1"))
    assert code is grpc.StatusCode.UNAVAILABLE
    failure = type("Failure", (grpc.RpcError,), {"code": lambda self: code, "details": lambda self: details})()
    found = rpc.error_from("x:1", failure, 2.5)
    assert isinstance(found, DrainingError)
    assert isinstance(found, UnavailableError)
    assert str(found) == "x:1: is stopping and takes no new sessions"
