"""What a run and its attempts are called. Daemons keep tables and weights of a run by these names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["announce_run", "attempt_here", "run_here", "tables_of", "weights_of"]

_RUN, _ATTEMPT = "ATTA_RUN", "ATTA_ATTEMPT"


def announce_run(task: Mapping[str, Any]) -> None:
    """Note in this process which run and attempt the task of a trainer belongs to."""
    os.environ[_RUN], os.environ[_ATTEMPT] = task.get("run", ""), str(task.get("attempt", 0))


def run_here() -> str:
    """The name of the run, the same in all attempts of ``--max-restarts``; empty: no launcher has given one."""
    return os.environ.get(_RUN, "")


def attempt_here() -> int:
    """The number of the attempt, from 0."""
    return int(os.environ.get(_ATTEMPT, "0"))


def tables_of(run: str) -> str:
    """How the names of tables begin that the run uses in all attempts."""
    return f"train-{run}-"


def weights_of(run: str, attempt: int) -> str:
    """The job of the parameter service that one attempt uses: what an attempt before still sends goes to another."""
    return f"weights-{run}-{attempt}"
