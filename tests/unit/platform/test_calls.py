"""Requests, errors and bytes are counted by method, and nothing about the answers changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from atta.daemon.services.calls import Calls
from atta.wire.bulk import PULL_DATA
from atta.wire.rpc import Bulk


async def stats(request: Any, context: Any) -> str:
    if request == "bad":
        raise ValueError(request)
    return f"answer to {request}"


async def pull(request: int, context: Any) -> AsyncIterator[Any]:
    for _ in range(request):
        yield b"12345"
    yield Bulk(None, {PULL_DATA: np.zeros(3, np.int64)})
    if request == 0:
        raise ValueError("nothing to pull")


async def drive(calls: Calls) -> list[Any]:
    control, kv = calls.counted("ControlService", {"Stats": stats}), calls.counted("KvService", {"Pull": pull})
    replies: list[Any] = [await control["Stats"]("me", None)]
    with pytest.raises(ValueError, match="bad"):
        await control["Stats"]("bad", None)
    replies += [reply async for reply in kv["Pull"](2, None)]
    with pytest.raises(ValueError, match="nothing"):
        [reply async for reply in kv["Pull"](0, None)]
    return replies


def test_counts() -> None:
    calls = Calls()
    replies = asyncio.run(drive(calls))
    assert replies[:3] == ["answer to me", b"12345", b"12345"]
    assert calls.stats() == {
        "requests_ControlService.Stats": 2,
        "request_errors_ControlService.Stats": 1,
        "requests_KvService.Pull": 2,
        "request_errors_KvService.Pull": 1,
        "sent_bytes_KvService.Pull": 10 + 24 + 24,
    }
