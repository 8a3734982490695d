"""For all unit tests: state machines are validated after every event; tools of the repository can be loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atta import _native
from atta.daemon.engine.session import Session
from atta.daemon.engine.slots import SlotPool
from atta.daemon.peers.owners import PullsUnderWay
from atta.daemon.peers.watching import Hedges
from tests.unit.invariants import watch


@pytest.fixture(autouse=True, scope="session")
def invariants_hold() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch(monkeypatch, Session, "deliver", "fail", "let_go", "batch", "close")
        watch(monkeypatch, SlotPool, "opened", "closed", "trim", "acquire", "lend", "release", "abandon")
        watch(monkeypatch, Hedges, "answered", "take")
        watch(monkeypatch, PullsUnderWay, "begin", "end")
        yield


@pytest.fixture(autouse=True)
def undamaged_files() -> None:
    """Links refuse to answer once a file of the process is known to have changed, which a test before may have brought
    about."""
    _native.declare_files_damaged(False)


@pytest.fixture(scope="session")
def module_at() -> Callable[[str], Any]:
    """Loads a Python file of the repository that belongs to no package."""

    def load(path: str) -> Any:
        spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[2] / path)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
            spec.loader.exec_module(module)
        return module

    return load
