"""Starts the trainers of this machine, and starts again those that die."""

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
from atta.observe.printable import printable
from atta.train.launching.failure import first_cause
from atta.train.launching.nodes import Nodes
from atta.train.launching.restarting.lives import Lives, Verdict
from atta.train.launching.restarting.place import MeetingPlace

__all__ = ["MEETING", "run_restarting"]

MEETING = "ATTA_MEETING"
"""Tells a trainer where it meets the others, as JSON: ``address``, ``run`` and ``life``."""
_LOOK_S = 0.1


class _StoppedError(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


def run_restarting(
    trainers: int,
    nodes: Nodes,
    folder: Path,
    *,
    most: int,
    shutdown_s: float,
    meeting_s: float,
    clean: Callable[[str], None],
) -> list[int]:
    """Run this machine's trainers until all have ended; returns how often each rank, of all machines, started again.

    Args:
        trainers: how many; ``nodes``: the machines; ``folder``: with the task.
        most: how often each trainer is started again.
        shutdown_s: how long trainers may take to end after a failure.
        meeting_s: how long machines wait for each other.
        clean: called with the name of the run (``Meeting.run``) when no trainer is left, if some have died: one that was
            started again at the very end may have opened again what others had dropped.

    Raises:
        AttaError: a trainer failed for good (the message names rank and cause), or another machine did.
        KeyboardInterrupt: Ctrl-C. No trainer is left then, as with any other error.
    """
    place = MeetingPlace(nodes, meeting_s)
    ranks = range(nodes.rank * trainers, (nodes.rank + 1) * trainers)
    lives = Lives(ranks, most)
    with (
        _signals_raised(),
        nodes.interface_named(),
        _Processes(folder, place, nodes.count * trainers, ranks) as running,
    ):
        try:
            for rank in ranks:
                running.start(rank, 0)
            while running.processes:
                place.look()
                for rank, code in running.ended():
                    _settle(rank, code, lives, running, folder, others=nodes.count > 1)
                time.sleep(_LOOK_S)
            restarts = place.all_ended(lives.restarts, meeting_s)
            if any(restarts):
                clean(place.run)
            return restarts
        except BaseException as error:
            place.fail()
            running.stop(shutdown_s)
            clean(place.run)
            if isinstance(error, _StoppedError):
                raise AttaError(f"training was stopped by {signal.Signals(error.number).name}") from None
            raise


def _settle(rank: int, code: int, lives: Lives, running: _Processes, folder: Path, *, others: bool) -> None:
    """Start a trainer that has ended again, or raise the error that ends the run."""
    record = folder / f"failure-{rank}.json"
    verdict = lives.ended(rank, code, _name(record))
    if verdict is Verdict.ENDED:
        return
    cause = first_cause(folder, {rank: code}, others=others)
    if verdict is Verdict.FAILED:
        if lives.restarts[rank] and type(cause) in (AttaError, TrainerLostError):
            raise type(cause)(f"{cause}; it was started again {_times(lives.restarts[rank])} before") from None
        raise cause
    record.unlink(missing_ok=True)
    told = f"atta: {cause}; it starts again ({lives.restarts[rank]} of {lives.most})"
    print(printable(told), file=sys.stderr, flush=True)
    running.start(rank, lives.restarts[rank])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _name(record: Path) -> str | None:
    try:
        found: Mapping[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return str(found["kind"])
    except (OSError, ValueError, KeyError):
        return None


class _Processes:
    """Processes of trainers; within the block. They end with it."""

    def __init__(self, folder: Path, place: MeetingPlace, world: int, ranks: range) -> None:
        self._folder, self._place, self._world, self._ranks = folder, place, world, ranks
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(0.0)

    def start(self, rank: int, life: int) -> None:
        """Start a trainer, in a session of its own: Ctrl-C is for this process."""
        meeting = {"address": self._place.address, "run": self._place.run, "life": life}
        environment = {
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self._world),
            "LOCAL_RANK": str(rank - self._ranks.start),
            "LOCAL_WORLD_SIZE": str(len(self._ranks)),
            "TORCH_DIST_INIT_BARRIER": "0",  # it counts processes, also those that are started again
            MEETING: json.dumps(meeting),
        }
        command = [sys.executable, "-m", "atta.train.launching.worker", str(self._folder)]
        self.processes[rank] = subprocess.Popen(command, env=environment, start_new_session=True)

    def ended(self) -> list[tuple[int, int]]:
        """Ranks that have ended since, and their exit codes."""
        codes = [(rank, process.poll()) for rank, process in self.processes.items()]
        found = [(rank, code) for rank, code in codes if code is not None]
        for rank, _ in found:
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
        raise _StoppedError(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
