"""Processor time of processes and of their threads, from /proc, and where in the code it is spent, from ``perf``."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atta.errors import AttaError
from atta_bench.lab.netlab import loopback

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


CODE = ("interpreter", "grpc", "kernel", "copies", "native", "other")
"""Kinds of code. ``native`` does the work: Atta's own, or that of DGL and torch. ``other`` is memory management, numpy
and what else libraries do."""
_HERTZ = 499
_START_S, _END_S = 30.0, 30.0
_SAMPLE = re.compile(r"\s*(\d+)\s+[0-9a-f]+\s+(.*)\s\((.*)\)\s*")
_LIBRARIES = (
    ("kernel", re.compile(r"\[(?!vdso)")),
    ("native", re.compile(r".*/(_native\.|libdgl|libtensoradapter|libtorch|libc10|libgomp)")),
    ("grpc", re.compile(r".*/(cygrpc|_message\.abi|_upb)")),
    ("interpreter", re.compile(r".*/(libpython3|python3?(\.\d+)?$|lib-dynload/)")),
)
_COPY = re.compile(r"_*(mem(move|cpy|set)|__memcpy)")

Samples = dict[str, Counter[str]]
"""Group of processes -> kind of code -> number of samples."""


def no_perf() -> str | None:
    """Why there can be no samples; None if there can."""
    if shutil.which("perf") is None:
        return "there is no perf on this machine"
    with tempfile.TemporaryDirectory(prefix="atta-perf-") as folder:
        command = [*_record(Path(folder) / "samples"), "--", "true"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_END_S)
    lines = [line.strip() for line in tried.stderr.splitlines() if line.strip()]
    return f"perf may not sample the machine: {lines[0] if lines else 'no reason given'}" if tried.returncode else None


def code_of(symbol: str, library: str) -> str:
    """The kind of code of a function in a library.

    >>> code_of("__memmove_evex_unaligned_erms", "/usr/lib/libc.so.6")
    'copies'
    """
    for kind, pattern in _LIBRARIES:
        if pattern.match(library):
            return kind
    return "copies" if _COPY.match(symbol) else "other"


def count_samples(lines: Iterable[str], groups: Mapping[str, Sequence[int]]) -> Samples:
    """Count the lines of ``perf script -F pid,ip,sym,dso`` by group of processes and kind of code."""
    group_of = {pid: name for name, pids in groups.items() for pid in pids}
    found: Samples = {name: Counter() for name in groups}
    for line in lines:
        match = _SAMPLE.fullmatch(line)
        if match and (group := group_of.get(int(match[1]))):
            found[group][code_of(match[2].strip(), match[3])] += 1
    return found


@contextlib.contextmanager
def sampled(groups: Mapping[str, Sequence[int]]) -> Iterator[Samples]:
    """Sample the processes while the block runs; what was found is in the mapping when it has ended."""
    found: Samples = {}
    with tempfile.TemporaryDirectory(prefix="atta-perf-") as folder:
        data = Path(folder) / "samples"
        command, answer = _pipes(Path(folder))
        here = loopback(1)[0]  # it ends with this process
        perf = here.popen(
            [*_record(data), "--control", f"fifo:{command},{answer}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await(command, answer)
            yield found
        finally:
            perf.send_signal(signal.SIGINT)  # it writes the rest of its samples
            with contextlib.suppress(subprocess.TimeoutExpired):
                perf.wait(_END_S)
            if perf.poll() is None:
                perf.kill()
                perf.wait()
        found |= _read(data, groups)


def _pipes(folder: Path) -> tuple[Path, Path]:
    command, answer = folder / "command", folder / "answer"
    for pipe in (command, answer):
        os.mkfifo(pipe)
    return command, answer


def _await(command: Path, answer: Path) -> None:
    """Wait until ``perf`` takes samples; it answers commands from then on."""
    with command.open("r+b", buffering=0) as asked, answer.open("r+b", buffering=0) as answered:
        asked.write(b"enable\n")
        poll = select.poll()  # select() takes no descriptor beyond 1,023
        poll.register(answered, select.POLLIN)
        if not poll.poll(1e3 * _START_S):
            raise AttaError(f"perf takes no samples within {_START_S:g} s")
        answered.read(64)


def _record(data: Path) -> list[str]:
    return ["perf", "record", "--all-cpus", "--event", "cpu-clock", "--freq", str(_HERTZ), "--output", str(data)]


def _read(data: Path, groups: Mapping[str, Sequence[int]]) -> Samples:
    command = ["perf", "script", "--input", str(data), "--fields", "pid,ip,sym,dso"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        return count_samples(script.stdout, groups)
