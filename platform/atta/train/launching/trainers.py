"""Starts the trainers of this machine, watches them, and starts again those that may go on alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from atta.errors import AttaError, TrainerLostError
from atta.observe.lastwords import printable
from atta.train.launching.failure import Lives, Verdict, first_cause
from atta.train.launching.life import START_S, watched
from atta.train.launching.nodes import MeetingPlace, Nodes, Rank

MEETING = "ATTA_MEETING"
"""Tells a trainer where it meets the others, as JSON: ``address``, ``run`` and, of one that may start again, ``life``."""
MEETING_S = 120
"""How long a machine waits for other machines, and for daemons that are still starting."""
ENDING_S = 300.0
"""How long a machine whose trainers have ended waits for those of others."""
SHUTDOWN_S = 10.0
"""How long the other trainers may take to end after one has failed; then they are killed."""
_LOOK_S = 0.1


class StoppedError(Exception):
    """A signal has told this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"training was stopped by {signal.Signals(number).name}")


def run_trainers(
    trainers: int,
    nodes: Nodes,
    folder: Path,
    limit_s: float,
    *,
    alone: int = 0,
    clean: Callable[[str], None] | None = None,
) -> list[int]:
    """Run this machine's trainers until all have ended; returns how often each rank, of all machines, started again.

    Args:
        trainers: how many; ``nodes``: the machines; ``folder``: with the task.
        limit_s: a trainer that gives no sign of life for so many seconds is killed, unless it may start again.
        alone: how often each trainer that died is started again, while the others go on. 0: all end with it.
        clean: called with the name of the run (``Meeting.run``) when no trainer is left, if some have died: one that was
            started again at the very end may have opened again what others had dropped.

    Raises:
        AttaError: a trainer failed for good (the message names rank and cause), or another machine did.
        StoppedError, KeyboardInterrupt: a signal, or Ctrl-C. No trainer is left then, as with any other error.
    """
    place = MeetingPlace(nodes, MEETING_S)
    ranks = range(nodes.rank * trainers, (nodes.rank + 1) * trainers)
    lives = Lives(ranks, alone)
    signs: contextlib.AbstractContextManager[dict[int, float]] = contextlib.nullcontext({})
    if not alone:
        signs = watched(folder, ranks, limit_s, START_S)
    with (
        _signals_raised(),
        nodes.interface_named(),
        signs as silent,
        _Processes(folder, place, nodes.count * trainers, ranks, may_start_again=alone > 0) as running,
    ):
        try:
            for rank in ranks:
                running.start(rank, 0)
            while running.processes:
                place.look()
                _settle(running.ended(), lives, running, folder, silent, others=nodes.count > 1)
                time.sleep(_LOOK_S)
            restarts = place.all_ended(lives.restarts, ENDING_S)
        except BaseException:
            place.fail()
            running.stop(SHUTDOWN_S)
            if clean is not None:
                clean(place.run)
            raise
    if any(restarts) and clean is not None:
        clean(place.run)
    return restarts


def _settle(
    ended: Mapping[int, int],
    lives: Lives,
    running: _Processes,
    folder: Path,
    silent: Mapping[int, float],
    *,
    others: bool,
) -> None:
    """Start trainers that have ended again, or raise the error that ends the run."""
    verdicts = {rank: lives.ended(rank, code, _name(_record(folder, rank))) for rank, code in ended.items()}
    if failed := {rank: ended[rank] for rank, verdict in verdicts.items() if verdict is Verdict.FAILED}:
        ranks = []
        if not lives.most:
            running.stop(SHUTDOWN_S)  # one failure makes others fail: the cause may be theirs
            ranks = [*lives.restarts]
        cause = first_cause(folder, failed, others=others, silent=silent, ranks=ranks)
        number = lives.restarts[min(failed)]
        if number and type(cause) in (AttaError, TrainerLostError):
            raise type(cause)(f"{cause}; it was started again {_times(number)} before") from None
        raise cause
    for rank in (rank for rank, verdict in verdicts.items() if verdict is Verdict.AGAIN):
        cause = first_cause(folder, {rank: ended[rank]}, others=others)
        _record(folder, rank).unlink(missing_ok=True)
        told = f"atta: {cause}; it starts again ({lives.restarts[rank]} of {lives.most})"
        print(printable(told), file=sys.stderr, flush=True)
        running.start(rank, lives.restarts[rank])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _record(folder: Path, rank: int) -> Path:
    return folder / f"failure-{rank}.json"


def _name(record: Path) -> str | None:
    """The exception that a trainer has written down before it ended."""
    try:
        found: Mapping[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return str(found["kind"])
    except (OSError, ValueError, KeyError):
        return None


class _Processes:
    """Processes of trainers; within the block. They end with it."""

    def __init__(self, folder: Path, place: MeetingPlace, world: int, ranks: range, *, may_start_again: bool) -> None:
        self._folder, self._place, self._world, self._ranks = folder, place, world, ranks
        self._may_start_again = may_start_again
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(0.0)

    def start(self, rank: int, life: int) -> None:
        """Start a trainer, in a session of its own: Ctrl-C is for this process."""
        meeting: dict[str, Any] = {"address": self._place.address, "run": self._place.run}
        if self._may_start_again:
            meeting["life"] = life
        place = Rank(rank, self._world, rank - self._ranks.start, len(self._ranks))
        environment = {
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **os.environ,
            **place.environment(),
            "TORCH_DIST_INIT_BARRIER": "0",  # it counts processes, also those that are started again
            MEETING: json.dumps(meeting),
        }
        command = [sys.executable, "-m", "atta.train.launching.worker", str(self._folder)]
        self.processes[rank] = subprocess.Popen(command, env=environment, start_new_session=True)

    def ended(self) -> dict[int, int]:
        """Exit codes of the ranks that have ended since."""
        codes = {rank: process.poll() for rank, process in self.processes.items()}
        found = {rank: code for rank, code in codes.items() if code is not None}
        for rank in found:
            del self.processes[rank]
        return found

    def stop(self, within_s: float) -> None:
        """End all trainers; those that are still there after ``within_s`` seconds are killed."""
        if within_s:
            self._signal(signal.SIGTERM)
        until = time.monotonic() + within_s
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def _signal(self, number: int) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Within the block, signals that would end this process at once raise an error instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> NoReturn:
        raise StoppedError(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
