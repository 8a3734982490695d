"""Structured logs on standard error, written by a thread of their own, so that logging never waits and never fails.
Standard error may be a full pipe that nobody reads, a closed file or a full disk. Lines that cannot be written are
counted and left out."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog

from atta.observe.lastwords import counted, printable

LIMIT_BYTES = 4 << 20
"""At most this many bytes of text wait to be written."""
ENTRY_BYTES = 64
"""Bytes that a write takes besides its text."""
LAST_WORDS_S = 1.0
"""How long a process that ends waits for its last lines to be written."""


class LogSink(io.TextIOBase):
    """A text stream in front of the file descriptor ``fd``. ``write`` puts text into a bounded queue, and a thread
    writes it to ``fd``. ``told``: makes the line that tells how many lines were left out at its place."""

    def __init__(self, fd: int, *, told: Callable[[int], str], limit_bytes: int = LIMIT_BYTES) -> None:
        self._fd, self._told, self._limit_bytes = fd, told, limit_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = self._missing = 0
        self._changed = threading.Condition()
        self.dropped = 0
        """Number of writes that were left out since the start."""
        threading.Thread(target=self._empty, name="atta-logs", daemon=True).start()

    def write(self, text: str, /) -> int:
        """Queue ``text``, escaped where a terminal would obey it, or drop it if it does not fit."""
        data = printable(text).encode()
        with self._changed:
            if self._bytes + ENTRY_BYTES + len(data) > self._limit_bytes:
                self._drop()
            else:
                self._waiting.append(data)
                self._bytes += ENTRY_BYTES + len(data)
                self._changed.notify_all()
        return len(text)

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The file descriptor behind the queue."""
        return self._fd

    def drain(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` until all text is written or dropped. Returns whether that has happened."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, timeout_s)

    def _drop(self) -> None:
        self.dropped += 1
        self._missing += 1

    def _empty(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data, missing = self._waiting.popleft(), self._missing
                self._missing = 0
            told = f"{self._told(missing)}\n".encode() if missing else b""
            written = self._put(told + data)
            with self._changed:
                if not written:
                    self._missing += missing
                    self._drop()
                self._bytes -= ENTRY_BYTES + len(data)
                self._changed.notify_all()

    def _put(self, data: bytes) -> bool:
        """Write all of ``data``, however long that takes; False if it cannot be written."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process that shares the file made it non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                return False
        return True


_sink: LogSink | None = None


def configure(*, format: str = "text", level: str = "info") -> None:  # noqa: A002 - the word users know
    """Log at ``level`` and above as ``text`` or ``json`` lines, and put ``sys.stderr`` behind the same queue. Warnings
    of Python's own ``logging``, which asyncio and gRPC use, and uncaught errors go there, too."""
    global _sink  # noqa: PLW0603 - a process has one standard error
    if _sink is None:
        _sink = LogSink(2, told=_told_json if format == "json" else _told_text)
        atexit.register(drain)
    sys.stderr = _sink
    logging.basicConfig(stream=_sink, level=logging.WARNING, force=True)
    renderer = structlog.processors.JSONRenderer() if format == "json" else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.StackInfoRenderer(),
            *([structlog.processors.format_exc_info] if format == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(_sink),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


def drain(timeout_s: float = LAST_WORDS_S) -> None:
    """Wait until the last lines are written, before the process ends."""
    if _sink is not None:
        _sink.drain(timeout_s)


def dropped_lines() -> int:
    """Number of log lines that were left out."""
    return 0 if _sink is None else _sink.dropped


def _told_text(count: int) -> str:
    return f"{counted(count, 'log line')} left out: standard error took no more"


def _told_json(count: int) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return json.dumps({"event": "log lines were left out", "lines": count, "level": "warning", "timestamp": now})
