"""Cases that trainer processes run once for many tests: `make test` runs the quick ones, `make test-all` all."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest

__all__ = ["marked", "which"]


def marked(cases: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """Cases as parameters of a test; those that are not quick are slow."""
    return [pytest.param(case, id=case.name, marks=[] if case in quick else [pytest.mark.slow]) for case in cases]


def which(request: pytest.FixtureRequest) -> str:
    """Whether this run wants ``quick`` cases or ``all``, for the trainers' command line."""
    return "quick" if "not slow" in str(request.config.getoption("-m")) else "all"
