"""Daemons that are child processes: they are started together, watched, and end together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from atta.client.control import Connection, Description
from atta.errors import DaemonEndedError, DeadlineError, RemoteError, UnavailableError
from atta.observe import lastwords
from atta.wire.parts import parts_text

START_DEADLINE_S = 120.0
"""How long daemons may take to start."""
WATCH_S = 0.1
"""How often it is looked whether a daemon has ended."""
LOOK_S = 0.02
"""The same while somebody waits for it."""
ENDING_S = 0.3
"""How long a process may take to end after its connections have: then it is known how it ended."""
_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
"""Standard inputs of all daemons that this process has started."""


@dataclass(frozen=True)
class DaemonChild:
    """A daemon of ``parts`` at ``address``. ``last_words``: where it leaves its error; its log is beside it."""

    parts: range
    address: str
    process: subprocess.Popen[bytes]
    last_words: Path

    @classmethod
    def start(cls, parts: range, address: str, command: Sequence[str], last_words: Path) -> DaemonChild:
        """Run ``command``, which ends when its standard input does."""
        environment = {**os.environ, lastwords.VARIABLE: str(last_words)}
        with last_words.with_suffix(".log").open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=environment)
        assert process.stdin is not None
        _pipes.add(process.stdin)
        return cls(parts, address, process, last_words)

    def awaited(self, connection: Connection) -> Description:
        """What the daemon says of itself once it serves. Raises the error with which it ended instead."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            if (code := self.process.poll()) is not None:
                cause = f"the daemon {_how(code)}: {self._last_line()}"
                raise lastwords.read(self.last_words) or RemoteError(connection.address, cause)
            try:
                return connection.describe(wait=True, timeout=0.5)
            except (DeadlineError, UnavailableError):
                if time.monotonic() > deadline:
                    raise

    def ended(self, within_s: float = 0.0) -> DaemonEndedError | None:
        """How the daemon has been lost; None: it runs, and goes on ``within_s``, or it has drained: whoever stopped it may
        start another one in its place, as ``atta roll`` does."""
        until = time.monotonic() + within_s
        while (code := self._exit_code()) is None:
            if time.monotonic() >= until:
                return None
            time.sleep(LOOK_S)
        if code == 0:
            return None
        return DaemonEndedError(self.address, f"the daemon of partition {parts_text(self.parts)} {_how(code)}")

    def _exit_code(self) -> int | None:
        """Negative for a signal; None: it runs. Its process id stays taken until somebody stops all daemons."""
        if self.process.returncode is not None:
            return self.process.returncode
        try:
            found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # this is a forked child, and the daemon is not its own
            return None
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _last_line(self) -> str:
        log = self.last_words.with_suffix(".log").read_text(errors="replace")
        lines = [line for line in log.splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}" + ("; out of memory?" if -code == signal.SIGKILL else "")


class DaemonChildren:
    """The daemons of one cluster. A thread notices when one ends that nobody has stopped."""

    def __init__(self) -> None:
        self.children: list[DaemonChild] = []
        self._stopping = threading.Event()

    def watch(self, told: Callable[[dict[str, str]], None]) -> None:
        """From now on, call ``told`` with how each address has ended, whenever another one does."""
        threading.Thread(target=self._watch, args=(told,), name="atta-children", daemon=True).start()

    def _watch(self, told: Callable[[dict[str, str]], None]) -> None:
        known: dict[str, str] = {}
        while len(known) < len(self.children) and not self._stopping.wait(WATCH_S):
            ends = {child.address: found.cause for child in self.children if (found := child.ended()) is not None}
            if len(ends) > len(known):
                with contextlib.suppress(OSError):  # the folder is being removed, or the disk is full
                    told(ends)
                known = ends

    def ended(self, address: str) -> DaemonEndedError | None:
        """How the daemon at ``address`` has ended; None: it has not, or another one serves the same, or it was stopped."""
        mine = next((child for child in self.children if child.address == address), None)
        if mine is None or self._stopping.is_set():
            return None
        found = mine.ended(ENDING_S)
        others = [child for child in self.children if child.parts == mine.parts and child is not mine]
        return found if all(child.ended() is not None for child in others) else None

    def first_ended(self) -> DaemonEndedError | None:
        """How a daemon has ended whose partitions no other one serves; None: there is none."""
        gone = [child for child in self.children if child.ended() is not None]
        return next((found for child in gone if (found := self.ended(child.address)) is not None), None)

    def terminate(self) -> None:
        """Stop daemons that may still be loading: these do not look at their standard input yet."""
        for child in self.children:
            child.process.terminate()
        self.stop()

    def stop(self) -> None:
        """Have all daemons save their tables and end."""
        self._stopping.set()
        for child in self.children:
            if child.process.stdin is not None:
                child.process.stdin.close()
        for child in self.children:
            try:
                child.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _let_go() -> None:
    """Close a forked child's copies of the pipes. A daemon ends when its pipe does, so they would keep it running."""
    for pipe in _pipes:
        pipe.close()


os.register_at_fork(after_in_child=_let_go)
