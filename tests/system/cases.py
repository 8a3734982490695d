"""Cases that trainer processes run once for many tests: `make test` runs the quick ones, `make test-all` all."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = ["marked", "results_of", "trainers", "which"]
WORLD = 4


def marked(cases: Iterable[Any], quick: Container[Any]) -> list[Any]:
    """Cases as parameters of a test; those that are not quick are slow."""
    return [pytest.param(case, id=case.name, marks=[] if case in quick else [pytest.mark.slow]) for case in cases]


def which(request: pytest.FixtureRequest) -> str:
    """Whether this run wants ``quick`` cases or ``all``, for the trainers' command line."""
    return "quick" if "not slow" in str(request.config.getoption("-m")) else "all"


@contextmanager
def trainers(program: str, folder: Path, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    command, root = [sys.executable, "-m", program, str(folder)], Path(__file__).parents[2]
    started = [
        subprocess.Popen([*command, str(rank), *arguments], cwd=root, stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    try:
        yield started
    finally:
        for trainer in started:
            trainer.kill()
            trainer.communicate()


def results_of(program: str, folder: Path, *arguments: str, within_s: float = 300) -> list[dict[str, Any]]:
    with trainers(program, folder, *arguments) as started:
        end = time.monotonic() + within_s
        while any(t.poll() is None for t in started) and not any(t.poll() for t in started):
            assert time.monotonic() < end, "the trainers hang"
            time.sleep(0.05)
        failed = [t for t in started if t.poll()]
        assert not failed, failed[0].stderr.read() if failed[0].stderr else ""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
