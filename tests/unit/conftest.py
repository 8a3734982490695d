"""For all unit tests: state machines are validated after every event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atta.daemon.engine.session import Session
from atta.daemon.engine.slots import SlotPool
from atta.daemon.peers.owners import PullsUnderWay
from atta.daemon.peers.watching import Hedges
from atta.scheduler import Scheduler
from tests.unit.invariants import watch


@pytest.fixture(autouse=True, scope="session")
def invariants_hold() -> Iterator[None]:
    """Check the invariants of every state machine after every event."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, Scheduler, "on")
        watch(monkeypatch, Session, "deliver", "fail", "let_go", "batch", "close")
        watch(monkeypatch, SlotPool, "opened", "closed", "trim", "acquire", "lend", "release", "abandon")
        watch(monkeypatch, Hedges, "answered", "take")
        watch(monkeypatch, PullsUnderWay, "begin", "end")
        yield
