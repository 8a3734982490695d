"""Logging never waits and never fails, even if standard error is broken."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from atta.observe.logs import LogSink
from tests.waiting import eventually


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield ours, theirs
    finally:
        for fd in (ours, theirs):
            if fd >= 0:
                os.close(fd)


def told(count: int) -> str:
    return f"<{count} left out>"


def test_lines_arrive_in_order() -> None:
    with pipe() as (ours, theirs):
        sink = LogSink(theirs, told=told)
        for number in range(50):
            print(f"line {number} ü", file=sink, flush=True)
        assert sink.drain(10)
        assert os.read(ours, 1 << 16).decode() == "".join(f"line {number} ü\n" for number in range(50))
        assert sink.dropped == 0


def test_what_a_terminal_would_obey_is_escaped() -> None:
    with pipe() as (ours, theirs):
        sink = LogSink(theirs, told=told)
        sink.write("job=\x1b[2J \x9b1m\u202e\udcff\r ü\n\tin line 3\n")
        assert sink.drain(10)
        assert os.read(ours, 1 << 16).decode() == r"job=\x1b[2J \x9b1m\u202e\udcff\r ü" + "\n\tin line 3\n"


def test_a_pipe_that_nobody_reads_costs_lines_and_not_time() -> None:
    with pipe() as (ours, theirs):
        sink = LogSink(theirs, told=told, limit_bytes=10_000)
        written: list[str] = []

        def fill() -> bool:
            """Write more lines than the queue holds, until the pipe is full and the rest must wait."""
            for _ in range(1000):
                written.append(f"{len(written):07d}\n")
                sink.write(written[-1])
            return not sink.drain(0.05)

        writer = threading.Thread(target=lambda: eventually(fill), daemon=True)
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
        assert sink.dropped > 0
        assert not sink.drain(0.01)
        found = ""

        def read_all() -> bool:
            nonlocal found
            found += os.read(ours, 1 << 16).decode()
            return sink.drain(0)

        assert eventually(read_all)
        lost = sink.dropped
        sink.write("the last\n")
        assert sink.drain(10)  # and the number of lines that were left out before it
        found += os.read(ours, 1 << 16).decode()
        lines = found.splitlines()
        kept = [line for line in lines if line.isdecimal()]
        assert kept == sorted(set(kept))  # each once, in order
        assert len(kept) == len(written) - lost
        assert lines[-1] == "the last"
        assert sum(int(line.strip("<").split()[0]) for line in lines if line.startswith("<")) == lost


def test_a_full_disk_or_a_missing_reader_raises_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        sink = LogSink(full, told=told)
        sink.write("lost\n")
        assert sink.drain(10)
        assert sink.dropped == 1
    finally:
        os.close(full)
    ours, theirs = os.pipe()
    os.close(ours)
    sink = LogSink(theirs, told=told)
    sink.write("lost\n")
    assert sink.drain(10)
    assert sink.dropped == 1
    os.close(theirs)


def test_a_file_that_does_not_wait_is_waited_for() -> None:
    with pipe() as (ours, theirs):
        os.set_blocking(theirs, False)
        sink = LogSink(theirs, told=told)
        sink.write("x" * 200_000)
        found = 0
        while found < 200_000:
            found += len(os.read(ours, 1 << 16))
        assert sink.drain(10)
        assert sink.dropped == 0
