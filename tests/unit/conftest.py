"""For all unit tests: state machines are validated after every event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atta.scheduler import Scheduler
from tests.unit.invariants import watch


@pytest.fixture(autouse=True, scope="session")
def invariants_hold() -> Iterator[None]:
    """Check the invariants of every state machine after every event."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, Scheduler, "on")
        yield
