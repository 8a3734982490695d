"""A peer must say who it is before any other request."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from atta.daemon.peers.connection import PeerSettings
from atta.daemon.peers.peers import Peer
from atta.errors import RemoteError, WrongDatasetError
from atta.protos.v1 import graph_pb2, kv_pb2
from atta.samplers.batch.items import FeatureItem
from atta.wire.bulk import PULL_DATA
from atta.wire.identity import HEADER
from atta.wire.rpc import Bulk
from tests.unit.platform.answers import DATASET, description, serving

ITEM = FeatureItem("node", ("x",), np.arange(5), np.arange(5))


class Owner:
    """A daemon that answers every request. Records each request and the daemon that it was meant for."""

    def __init__(self, part: int, dataset_id: str, parts: int = 1) -> None:
        self.part, self.dataset_id, self.parts, self.asked = part, dataset_id, parts, []

    def _note(self, name: str, context: Any) -> None:
        self.asked.append((name, dict(context.invocation_metadata()).get(HEADER)))

    async def describe(self, _request: Any, context: Any) -> Any:
        self._note("Describe", context)
        await asyncio.sleep(0.01)
        return description(dataset_id=self.dataset_id, part=self.part, parts=self.parts)

    async def pull(self, _request: Any, context: Any) -> Any:
        self._note("Pull", context)
        return Bulk(kv_pb2.PullReply(), {PULL_DATA: b"12345"})

    async def pair(self, request: Any, context: Any) -> Any:
        self._note("Pair", context)
        if len(self.asked) == 2:
            await context.abort(grpc.StatusCode.CANCELLED, "")
        return graph_pb2.PairReply(ids=request.rows)

    async def probe(self, request: Any, context: Any) -> Any:
        self._note("Probe", context)
        return graph_pb2.ProbeReply(values=request.rows)


async def ask(owner: Owner, *requests: Any) -> list[Any]:
    """The answers that a peer of partition 1 of dataset "d" gets when it sends all requests at once."""
    services = {
        "ControlService": {"Describe": owner.describe},
        "KvService": {"Pull": owner.pull},
        "GraphService": {"Pair": owner.pair, "Probe": owner.probe},
    }
    async with serving(services) as address:
        peer = Peer(1, address, DATASET, PeerSettings(20.0))
        answers = await asyncio.gather(*(request(peer) for request in requests), return_exceptions=True)
        await peer.connection.close()
        return answers


async def pull(peer: Peer) -> bytes:
    return bytes(await peer.pull(ITEM))


async def pair(peer: Peer) -> list[int]:
    return (await peer.pair("e", np.arange(5), count=1, negative=False, stream_key=1)).tolist()


async def probe(peer: Peer) -> list[int]:
    return (await peer.probe("e", graph_pb2.ProbeRequest.DEGREE, np.arange(5))).tolist()


def test_many_requests_need_one_answer_to_who_is_there() -> None:
    owner = Owner(1, "d")
    answers = asyncio.run(ask(owner, *[pull] * 8, pair, probe))
    assert answers == [b"12345"] * 8 + [list(range(5))] * 2
    assert owner.asked[0] == ("Describe", None)
    assert len(owner.asked) == 11
    assert {header for _, header in owner.asked[1:]} == {"1/d/"}


@pytest.mark.parametrize(("part", "dataset_id"), [(2, "d"), (1, "e"), (1, "")])
def test_one_that_is_another_is_asked_for_nothing_else(part: int, dataset_id: str) -> None:
    owner = Owner(part, dataset_id)
    answers = asyncio.run(ask(owner, pull, pair, probe))
    assert all(type(answer) is WrongDatasetError for answer in answers)
    assert all(f"serves partition {part} of dataset" in str(answer) for answer in answers)
    assert all("not partition 1 of dataset d" in str(answer) for answer in answers)
    assert {name for name, _ in owner.asked} == {"Describe"}


def test_one_that_serves_more_partitions_than_the_cluster_file_says_is_refused() -> None:
    owner = Owner(1, "d", parts=2)
    answers = asyncio.run(ask(owner, pull, pair))
    assert all(type(answer) is WrongDatasetError for answer in answers)
    assert all("serves partition 1-2, but the cluster file says 1" in str(answer) for answer in answers)
    assert {name for name, _ in owner.asked} == {"Describe"}


def test_a_single_answer_that_breaks_off_is_asked_for_again() -> None:
    owner = Owner(1, "d")
    assert asyncio.run(ask(owner, pair)) == [list(range(5))]
    assert [name for name, _ in owner.asked] == ["Describe", "Pair", "Describe", "Pair"]


def test_an_answer_that_cannot_be_read_is_an_error_of_the_peer() -> None:
    """gRPC gives None for it."""
    owner = Owner(1, "d")

    async def unreadable(_request: Any, _context: Any) -> bytes:
        return b"\xff"

    owner.pair = unreadable  # type: ignore[method-assign]
    (error,) = asyncio.run(ask(owner, pair))
    assert isinstance(error, RemoteError)
    assert "without an answer that can be read" in str(error)
