"""Processor time of processes and of their threads, from /proc: it needs nothing of the processes but their ids.

Daemons of all versions are read alike. The kernel keeps the names of threads: those of gRPC and of native code, and
those that Atta gives its own (``atta-worker``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["EVENT_LOOP", "ProcessorTime", "parse_stat", "read_times", "role_of", "total"]

EVENT_LOOP, UNNAMED, ENDED = "event_loop", "unnamed", "ended"
_OURS = "atta-"
_GRPC = ("grpc", "event_engine", "lifeguard", "resolver", "timer_manager", "default-execut")
_INTERPRETERS = ("python", "atta")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessorTime:
    """Processor seconds of some processes.

    Attributes:
        user_s, system_s: in and below the kernel's interface; of all threads, also of those that have ended.
        threads: (process, thread) -> (role, seconds) of the threads that live.
    """

    user_s: float = 0.0
    system_s: float = 0.0
    threads: Mapping[tuple[int, int], tuple[str, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """User and system time."""
        return self.user_s + self.system_s

    def since(self, earlier: ProcessorTime) -> ProcessorTime:
        """What was spent since the reading ``earlier`` of the same processes."""
        before = {thread: seconds for thread, (_, seconds) in earlier.threads.items()}
        spent = {thread: (role, s - before.get(thread, 0.0)) for thread, (role, s) in self.threads.items()}
        return ProcessorTime(self.user_s - earlier.user_s, self.system_s - earlier.system_s, spent)

    def roles(self) -> dict[str, float]:
        """Seconds by role of the threads. What they do not account for is of threads that have ended."""
        found: dict[str, float] = {}
        for role, seconds in self.threads.values():
            found[role] = found.get(role, 0.0) + seconds
        rest = self.seconds - sum(found.values())
        ticks = _TICK_S * len({pid for pid, _ in self.threads})  # that the kernel may have rounded away
        return found | ({ENDED: rest} if rest > max(2 * ticks, 0.01 * self.seconds) else {})


def role_of(name: str, *, main: bool) -> str:
    """What a thread does, by its name. The main thread of a daemon is its event loop.

    >>> role_of("atta-worker", main=False)
    'worker'
    """
    if main:
        return EVENT_LOOP
    if name.startswith(_OURS):
        return name.removeprefix(_OURS).rstrip("-_0123456789")
    if name.startswith(_GRPC):
        return "grpc"
    # Python's threads have the name of the program before 3.14, unless they name themselves.
    return UNNAMED if name.startswith(_INTERPRETERS) else name.rstrip("-_0123456789:/") or UNNAMED


def parse_stat(text: str) -> tuple[str, float, float]:
    """Name, user seconds and system seconds from the text of ``/proc/.../stat``."""
    # A name may contain spaces and parentheses: it ends at the last one.
    before, _, after = text.rpartition(")")
    fields = after.split()
    return before.partition("(")[2], int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S


def read_times(pids: Iterable[int]) -> ProcessorTime:
    """The time of these processes so far. Processes that are gone count nothing."""
    user, system, threads = 0.0, 0.0, dict[tuple[int, int], tuple[str, float]]()
    for pid in pids:
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{pid}")
            _, own_user, own_system = parse_stat((folder / "stat").read_text(encoding="utf-8", errors="replace"))
            user, system = user + own_user, system + own_system
            for thread in (folder / "task").iterdir():
                with contextlib.suppress(OSError):
                    threads[pid, int(thread.name)] = _thread(thread, main=thread.name == str(pid))
    return ProcessorTime(user, system, threads)


def total(times: Iterable[ProcessorTime]) -> ProcessorTime:
    """The sum over disjoint sets of processes."""
    user, system, threads = 0.0, 0.0, dict[tuple[int, int], tuple[str, float]]()
    for time in times:
        user, system = user + time.user_s, system + time.system_s
        threads |= time.threads
    return ProcessorTime(user, system, threads)


def _thread(folder: Path, *, main: bool) -> tuple[str, float]:
    name, user, system = parse_stat((folder / "stat").read_text(encoding="utf-8", errors="replace"))
    with contextlib.suppress(OSError, ValueError, IndexError):  # not every kernel counts nanoseconds
        return role_of(name, main=main), int((folder / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return role_of(name, main=main), user + system
