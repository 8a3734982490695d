"""Where in the code processes spend their time: samples of ``perf``, by the library and function that ran.

``perf`` samples the whole machine by the clock, and the samples of other processes are thrown away. So it adds nothing
to the switches between threads of the measured ones. It runs beside a stretch of its own, whose time counts nowhere.
"""

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
from pathlib import Path

from atta.errors import AttaError
from atta_bench.lab.netlab import loopback

__all__ = ["CODE", "Samples", "code_of", "count_samples", "no_perf", "sampled"]

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
