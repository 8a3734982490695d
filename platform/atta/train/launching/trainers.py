"""Starts the trainers of this machine, watches them, and starts again those that may go on alone. A thread of every
trainer touches a file, also while it computes or waits. One that is stopped (SIGSTOP) does not, and is killed: the
others would wait for it until ``--rank-timeout``, and a single trainer has nobody else who notices."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from atta.errors import AttaError, TrainerLostError
from atta.observe.lastwords import printable
from atta.observe.machine.ending import PARENT, nobody_reads
from atta.train.launching.failure import Lives, failure_file, first_cause
from atta.train.launching.nodes import MeetingPlace, Nodes, Rank

MEETING = "ATTA_MEETING"
"""Tells a trainer where it meets the others, as JSON: ``address``, ``run`` and, of one that may start again, ``life``."""
MEETING_S = 120
"""How long a machine waits for other machines, and for daemons that are still starting."""
ENDING_S = 300.0
"""How long a machine whose trainers have ended waits for those of others."""
SHUTDOWN_S = 3.0
"""How long trainers that are told to end may take to close their sessions; then they are killed."""
START_S = 120.0
"""How long a trainer may take from its start to its first sign of life: it imports modules meanwhile."""
_LOOK_S = 0.1
_SPINS = "10000"
"""Turns of a thread of torch that waits for another one; then it sleeps. OpenMP's 300,000 keep daemons from the cores."""
_SIGNS = 10
"""Signs of life within the limit, at least one a second."""


class StoppedError(Exception):
    """A signal has told this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"training was stopped by {signal.Signals(number).name}")


class Processes:
    """Processes of Python by number, each in a session of its own: Ctrl-C is for this process. They end with the block."""

    def __init__(self) -> None:
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(0.0)

    def start(self, number: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start ``python -m WORDS...``, with these variables beside those of this process."""
        command, given = [sys.executable, "-m", *words], {**os.environ, **environment, PARENT: str(os.getpid())}
        self.running[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=given, start_new_session=True)

    def ended(self) -> dict[int, int]:
        """Exit codes of those that have ended since."""
        codes = {number: process.poll() for number, process in self.running.items()}
        found = {number: code for number, code in codes.items() if code is not None}
        for number in found:
            del self.running[number]
        return found

    def stop(self, within_s: float) -> None:
        """End all; those that are still there after ``within_s`` seconds are killed."""
        if within_s:
            self.send(signal.SIGTERM, self.running)
        until = time.monotonic() + within_s
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
        self.send(signal.SIGKILL, self.running)
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def send(self, number: int, to: Iterable[int]) -> None:
        """Send some of them, and all that they have started, a signal."""
        for process in [self.running[one] for one in to if one in self.running]:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


@dataclass
class Silence:
    """How long each trainer has been silent. Pure. One is given up after ``limit_s`` seconds (None: never), or ``start_s`` if
    it gives no signs yet. Looks are ``pause_s`` apart; more counts as two pauses, for then the launcher was stopped itself."""

    limit_s: float | None
    start_s: float = START_S
    pause_s: float = _LOOK_S
    _looked: float | None = None
    _signs: dict[int, int] = field(default_factory=dict)
    _silent_s: dict[int, float] = field(default_factory=dict)

    def look(self, now: float, signs: Mapping[int, int]) -> dict[int, float]:
        """Seconds of silence of those that are given up. ``signs``: by rank, a number that changes with each; 0: none."""
        if self.limit_s is None:
            return {}
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.pause_s)
        self._looked, given_up = now, {}
        for rank, sign in signs.items():
            same = self._signs.get(rank) == sign
            self._signs[rank], self._silent_s[rank] = sign, self._silent_s[rank] + passed if same else 0.0
            if self._silent_s[rank] >= (self.limit_s if sign else self.start_s):
                given_up[rank] = self._silent_s[rank]
        return given_up


def pulse_file(folder: Path, rank: int) -> Path:
    """What a trainer touches; it holds the number of its process."""
    return folder / f"pulse-{rank}"


@contextlib.contextmanager
def signs_of_life(folder: Path, rank: int, limit_s: float) -> Iterator[None]:
    """Give signs of life within the block, from a thread."""
    ended, path = threading.Event(), pulse_file(folder, rank)

    def give() -> None:
        with contextlib.suppress(OSError):  # the launcher has gone, and the folder with it
            path.write_text(str(os.getpid()), encoding="utf-8")
            while not ended.wait(min(1.0, limit_s / _SIGNS)):
                os.utime(path)
            path.unlink()

    thread = threading.Thread(target=give, name="atta-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _sign(folder: Path, rank: int) -> int:
    try:
        return pulse_file(folder, rank).stat().st_mtime_ns
    except OSError:
        return 0


def run_trainers(
    trainers: int,
    nodes: Nodes,
    folder: Path,
    limit_s: float,
    *,
    alone: int = 0,
    clean: Callable[[str], None] | None = None,
    told: bool = False,
) -> list[int]:
    """Run this machine's trainers until all have ended; returns how often each rank, of all machines, started again.

    folder: with the task. limit_s: a trainer without a sign of life for so long is killed, unless it may start again.
    alone: how often each that died is started again while the others go on; 0: all end with it. clean: called with the
    run's name (``Meeting.run``) when no trainer is left, if some have died, for one may have opened what others dropped.
    told: somebody is to read what they say.

    Raises AttaError: a trainer failed for good (the message names rank and cause), or another machine did;
    StoppedError, KeyboardInterrupt: a signal, or Ctrl-C; BrokenPipeError: nobody reads. No trainer is left then.
    """
    place = MeetingPlace(nodes, MEETING_S)
    ranks = range(nodes.rank * trainers, (nodes.rank + 1) * trainers)
    silence, silent = Silence(None if alone else limit_s), dict[int, float]()
    with _signals_raised(), nodes.interface_named(), _Trainers(folder, place, nodes, ranks, alone) as running:
        try:
            for rank in ranks:
                running.start_trainer(rank)
            while running.running:
                if told and nobody_reads(2):
                    raise BrokenPipeError(errno.EPIPE, "nobody reads the lines of this run any more")
                place.look()
                given_up = silence.look(time.monotonic(), {rank: _sign(folder, rank) for rank in running.running})
                silent = {**given_up, **silent}
                running.send(signal.SIGKILL, given_up)
                running.settle(silent)
                time.sleep(_LOOK_S)
            restarts = place.all_ended(running.lives.restarts, ENDING_S)
        except BaseException:
            place.fail()
            running.stop(SHUTDOWN_S)
            if clean is not None:
                clean(place.run)
            raise
    if any(restarts) and clean is not None:
        clean(place.run)
    return restarts


class _Trainers(Processes):
    def __init__(self, folder: Path, place: MeetingPlace, nodes: Nodes, ranks: range, alone: int) -> None:
        super().__init__()
        self._folder, self._place, self._nodes, self._ranks = folder, place, nodes, ranks
        self.lives = Lives(ranks, alone)

    def start_trainer(self, rank: int) -> None:
        meeting: dict[str, Any] = {"address": self._place.address, "run": self._place.run}
        if self.lives.most:
            meeting["life"] = self.lives.restarts[rank]
        here = len(self._ranks)
        environment = {
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            **({} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", _SPINS)}),
            **Rank(rank, self._nodes.count * here, rank - self._ranks.start, here).environment(),
            "TORCH_DIST_INIT_BARRIER": "0",  # it counts processes, also those that are started again
            MEETING: json.dumps(meeting),
        }
        self.start(rank, ["atta.train.launching.worker", str(self._folder)], environment)

    def settle(self, silent: Mapping[int, float]) -> None:
        """Start trainers that have ended again, or raise the error that ends the run."""
        lives, others = self.lives, self._nodes.count > 1
        codes = {rank: code for rank, code in self.ended().items() if code}
        again = [rank for rank in codes if lives.again(rank, _kind(failure_file(self._folder, rank)))]
        if failed := {rank: code for rank, code in codes.items() if rank not in again}:
            if not lives.most:
                self.stop(SHUTDOWN_S)  # one failure makes others fail: the cause may be theirs
            ranks = [] if lives.most else [*lives.restarts]
            cause = first_cause(self._folder, failed, others=others, silent=silent, ranks=ranks)
            number = lives.restarts[min(failed)]
            if number and type(cause) in (AttaError, TrainerLostError):
                times = "once" if number == 1 else f"{number} times"
                raise type(cause)(f"{cause}; it was started again {times} before") from None
            raise cause
        for rank in again:
            cause = first_cause(self._folder, {rank: codes[rank]}, others=others)
            failure_file(self._folder, rank).unlink(missing_ok=True)
            told = f"atta: {cause}; it starts again ({lives.restarts[rank]} of {lives.most})"
            print(printable(told), file=sys.stderr, flush=True)
            self.start_trainer(rank)


def _kind(record: Path) -> str | None:
    """The exception that a trainer has written down before it ended."""
    try:
        found: Mapping[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return str(found["kind"])
    except (OSError, ValueError, KeyError):
        return None


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
