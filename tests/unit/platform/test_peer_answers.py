"""Answers of peers are taken one message ahead of their reader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from atta.daemon.peers.peers import Peer
from atta.errors import RemoteError
from atta.protos.v1 import kv_pb2
from atta.samplers.batch.items import FeatureItem
from atta.wire.rpc import Bulk

DATASET: Any = SimpleNamespace(dataset_id="d", schema=SimpleNamespace(edge_tables={}), groups=[range(1), range(1, 2)])
ITEM = FeatureItem("node", ("x",), np.arange(3), np.arange(3))


class Stream:
    """A call that brings one row per message, then its end or ``failure``. It records what happens to it."""

    def __init__(self, rows: int, failure: BaseException | None = None) -> None:
        self.log: list[str] = []
        self._rows, self._failure, self._next = rows, failure, 1

    def first(self) -> Bulk:
        return Bulk(kv_pb2.PullChunk(pull=0, first_row=0, rows=1), {4: b"0"})

    async def read(self) -> Any:
        number, self._next = self._next, self._next + 1
        self.log.append(f"asked for {number}")
        if number < self._rows:
            return Bulk(kv_pb2.PullChunk(pull=0, first_row=number, rows=1), {4: str(number).encode()})
        if self._failure is not None:
            raise self._failure
        return grpc.aio.EOF  # type: ignore[attr-defined]

    def cancel(self) -> None:
        self.log.append("cancelled")


async def read(stream: Stream, monkeypatch: pytest.MonkeyPatch, most: int = 10) -> None:
    peer = Peer(1, "127.0.0.1:1", DATASET, deadline_s=1.0)

    async def connected() -> None:
        pass

    async def first(_method: str, _request: Any) -> tuple[Stream, Bulk]:
        return stream, stream.first()

    monkeypatch.setattr(peer, "_connected", connected)
    monkeypatch.setattr(peer, "_first", first)
    answers = peer.pull([ITEM])
    async for _, _, _, data in answers:
        await asyncio.sleep(0)  # the reader is busy
        stream.log.append(f"placed {data.decode()}")
        if (most := most - 1) == 0:
            break
    await answers.aclose()  # type: ignore[attr-defined]
    await peer.close()


def test_the_next_message_is_asked_for_before_this_one_has_been_put_into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(3)
    asyncio.run(read(stream, monkeypatch))
    assert stream.log == [
        *("asked for 1", "placed 0", "asked for 2", "placed 1", "asked for 3", "placed 2"),
        "cancelled",  # cancelling does nothing to a call that has ended
    ]


def test_a_later_message_that_cannot_be_read_is_an_error_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC gives None for it."""
    stream = Stream(3)
    monkeypatch.setattr(Stream, "read", partial(_unreadable, Stream.read, stream))
    with pytest.raises(RemoteError, match="an answer that can be read"):
        asyncio.run(read(stream, monkeypatch))
    assert [line for line in stream.log if line.startswith("placed")] == ["placed 0", "placed 1"]


async def _unreadable(honest: Callable[[Stream], Awaitable[Any]], stream: Stream) -> Any:
    found = await honest(stream)
    return None if stream.log[-1] == "asked for 2" else found


def test_a_failure_behind_a_message_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(2, RemoteError("owner", "is out of rows"))
    with pytest.raises(RemoteError, match="out of rows"):
        asyncio.run(read(stream, monkeypatch))
    assert stream.log[-3:] == ["asked for 2", "placed 1", "cancelled"]


def test_whoever_stops_reading_hears_nothing_of_what_comes_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(1, RemoteError("owner", "is out of rows"))
    asyncio.run(read(stream, monkeypatch, most=1))
    gc.collect()
    assert stream.log == ["asked for 1", "placed 0", "cancelled"]
    assert not caplog.records, "a failure that nobody has looked at is logged when it is collected"
