"""Tells for each case of a peer's tests whether it passed over Atta, differs for a known reason, or shows a fault."""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from atta.errors import AttaError

_pytests_raises = pytest.raises


class Outcome(enum.Enum):
    PASSED = "passed"
    DIFFERS = "documented difference"
    FAULT = "fault"
    APART = "apart"
    """It made no loader of Atta's: it tests something else, or returned before."""


@dataclass(frozen=True)
class Difference:
    """Why some cases do not pass: patterns of their names, and a regular expression for the failure. Another failure of
    the same case is a fault. ``reason`` is a sentence of ``document``, where users read it."""

    cases: tuple[str, ...]
    shows: str
    reason: str
    document: str

    def explains(self, case: str, failure: str) -> bool:
        return any(fnmatchcase(_plain(case), _plain(p)) for p in self.cases) and bool(re.search(self.shows, failure))


def _plain(name: str) -> str:
    return name.translate({ord("["): "(", ord("]"): ")"})


def known_differences() -> list[Difference]:
    entries = tomllib.loads((Path(__file__).parent / "differences.toml").read_text())["difference"]
    return [Difference(**{**entry, "cases": tuple(entry["cases"])}) for entry in entries]


@dataclass(frozen=True)
class Case:
    """What a case ``test_file.py::test_name[parameters]`` told; ``why``: the difference's reason, or the failure in one
    line; ``seconds``: with the daemons' start."""

    name: str
    outcome: Outcome
    why: str = ""
    document: str = ""
    seconds: float = 0.0


@dataclass
class Recorder:
    """A plugin of pytest that records what each case tells. ``asked`` returns how often Atta was asked for something so
    far; ``told`` is called with every case; ``reading`` makes what holds while test files are read."""

    asked: Callable[[], int]
    told: Callable[[Case], None]
    reading: Callable[[], AbstractContextManager[None]] = nullcontext
    cases: list[Case] = field(default_factory=list)
    known: list[Difference] = field(default_factory=known_differences)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[Any]:
        """Let errors of Atta's have words of their own; their types are what a case asks for."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pytest, "raises", _raises)
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[Any]:
        with self.reading():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._failure, self._seconds, self._refused, before = "", 0.0, False, self.asked()
        result = yield
        name = f"{item.path.name}::{item.name}"
        self._tell(self._case(name, apart=self.asked() == before and not self._refused))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        self._seconds += call.duration
        if call.excinfo is not None and not self._failure:
            self._failure, self._refused = _one_line(call.excinfo), isinstance(call.excinfo.value, AttaError)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = str(report.longrepr).strip().splitlines() or ["unreadable"]
            self._failure, self._seconds = lines[-1], 0.0
            self._tell(self._case(Path(report.nodeid).name, apart=False))

    def _tell(self, case: Case) -> None:
        self.cases.append(case)
        self.told(case)

    def _case(self, name: str, *, apart: bool) -> Case:
        failure = self._failure
        if apart:
            return Case(name, Outcome.APART, failure, seconds=self._seconds)
        if not failure:
            return Case(name, Outcome.PASSED, seconds=self._seconds)
        for known in self.known:
            if known.explains(name, failure):
                return Case(name, Outcome.DIFFERS, known.reason, known.document, self._seconds)
        return Case(name, Outcome.FAULT, failure, seconds=self._seconds)


def _raises(expected: Any, *given: Any, match: str | None = None, **options: Any) -> Any:
    """``pytest.raises`` that looks for the words ``match`` in errors of others only."""
    if match is not None:
        options["check"] = lambda error: isinstance(error, AttaError) or bool(re.search(match, str(error)))
    return _pytests_raises(expected, *given, **options)


def _one_line(failed: pytest.ExceptionInfo[BaseException]) -> str:
    """Where in the test a failure came from, and what it was; of an exit what led to it."""
    if isinstance(failed.value, SystemExit) and (cause := failed.value.__context__) is not None:
        failed = pytest.ExceptionInfo.from_exception(cause)
    entry = next((e for e in reversed(failed.traceback) if Path(e.path).name.startswith("test_")), failed.traceback[-1])
    statement = " ".join(str(entry.statement).split())
    return f"{statement[:100]} -> {' '.join(failed.exconly().split())[:300]} (line {entry.lineno + 1})"
