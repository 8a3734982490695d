"""Late requests to peers are sent twice, rarely, and the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atta.daemon.peers import watching as hedges
from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.peers import Peer
from atta.daemon.peers.watching import Hedges
from atta.errors import ConfigError
from atta.protos.v1 import kv_pb2
from atta.samplers.batch.items import FeatureItem
from atta.wire import rpc
from atta.wire.bulk import PULL_DATA
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import DATASET, description, serving

ROWS = np.arange(5, dtype=np.int64)


def test_nothing_is_repeated_before_enough_is_known_and_then_only_what_is_late() -> None:
    policy = Hedges()
    for _ in range(hedges.ENOUGH - 1):
        policy.answered("Pull", 0.2)
        assert policy.patience("Pull") is None
    policy.answered("Pull", 0.2)
    assert policy.patience("Pull") == pytest.approx(hedges.FACTOR * 0.2)
    assert policy.patience("Sample") is None


@given(st.lists(st.floats(0, 10), min_size=hedges.ENOUGH, max_size=200))
def test_patience_is_a_multiple_of_what_most_of_the_latest_answers_took(times: list[float]) -> None:
    policy = Hedges()
    for seconds in times:
        policy.answered("Pull", seconds)
    latest = np.array(times[-hedges.WINDOW :])
    usual = np.quantile(latest, hedges.QUANTILE, method="lower")
    assert policy.patience("Pull") == pytest.approx(max(hedges.LEAST_S, hedges.FACTOR * usual))


@given(st.lists(st.booleans(), max_size=600))
def test_second_requests_are_few_whatever_happens(events: list[bool]) -> None:
    """True: a request asks for a second one; False: an answer has come."""
    policy, answers = Hedges(), 0
    for wants in events:
        if wants:
            policy.take()
        else:
            answers += 1
            policy.answered("Pull", 0.0)
    assert policy.sent <= 1 + hedges.SHARE * answers + 1e-9
    if policy._allowed < 1:
        assert policy.patience("Pull") is None


class Owner:
    """A daemon that answers pulls by ``plan``, a function of the request's number."""

    def __init__(self, plan: Callable[[int], str]) -> None:
        self.plan, self.connections, self.cancelled = plan, [], 0
        self.asked_twice = asyncio.Event()

    async def pull(self, request: Any, context: Any) -> Any:
        number = len(self.connections)
        self.connections.append(context.peer())
        if number:
            self.asked_twice.set()
        match self.plan(number):
            case "answers late":
                await self.asked_twice.wait()
                await asyncio.sleep(0.05)
            case "hangs":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled += 1
            case "fails":
                await context.abort(*rpc.status_of(ConfigError("no such table")))
        return Bulk(kv_pb2.PullReply(), {PULL_DATA: ROWS.tobytes()})


async def talk(owner: Owner, requests: int, warm: int = hedges.ENOUGH) -> tuple[Peer, list[bytes]]:
    async def describe(_request: Any, _context: Any) -> Any:
        return description()

    async with serving({"ControlService": {"Describe": describe}, "KvService": {"Pull": owner.pull}}) as address:
        peer = Peer(1, address, DATASET, PeerSettings(20.0))
        for _ in range(warm):
            peer.hedges.answered("KvService.Pull", 0.001)
        item = FeatureItem("node", ("x",), ROWS, np.arange(len(ROWS)))
        try:
            return peer, [bytes(await peer.pull(item)) for _ in range(requests)]
        finally:
            await peer.connection.close()


def test_a_request_that_hangs_is_answered_over_another_connection_and_given_up() -> None:
    owner = Owner(lambda number: "hangs" if number == 2 else "answers")
    peer, got = asyncio.run(talk(owner, 4))
    assert got == [ROWS.tobytes()] * 4
    assert len(owner.connections) == 5
    assert owner.connections[3] != owner.connections[2], "the same connection would hold up both"
    assert owner.connections[4] == owner.connections[0]
    assert owner.cancelled == 1
    assert (peer.hedges.sent, peer.hedges.won) == (1, 1)


@pytest.mark.parametrize("second", ["hangs", "fails"])
def test_the_first_request_may_still_be_answered(second: str) -> None:
    owner = Owner(lambda number: second if number else "answers late")
    peer, got = asyncio.run(talk(owner, 1))
    assert got == [ROWS.tobytes()]
    assert len(owner.connections) == 2
    assert owner.cancelled == (second == "hangs")
    assert (peer.hedges.sent, peer.hedges.won) == (1, 0)


def test_a_refusal_is_no_reason_to_ask_again() -> None:
    owner = Owner(lambda _: "fails")
    with pytest.raises(ConfigError, match="no such table"):
        asyncio.run(talk(owner, 1))
    assert len(owner.connections) == 1
