"""The workers of a trainer: processes that get one task after another. Those that die or hang are replaced."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from atta.errors import AttaError, ConfigError, RemoteError
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.links import Arrays, Listener, Stream, packed
from atta.train.dorylus.progress import Broken, Computed, Happening, Work

_CHECK_S = 1.0
_LOOK_S = 1.0
_END_S = 5.0
_FAILED_STARTS = 5


class WorkerPool:
    """Hands tasks to as many processes ``atta worker`` on this machine as ``PoolSize`` says; ``started``: how many ever were."""

    def __init__(
        self,
        listener: Listener,
        hand_out: HandOut,
        size: PoolSize,
        key: bytes,
        happenings: queue.SimpleQueue[Happening],
    ) -> None:
        self.hand_out, self._size, self._happenings = hand_out, size, happenings
        self._address, self._key = listener.address, key
        self._change = threading.Condition()
        self._frames: dict[Work, bytes] = {}
        self._connected: dict[int, int] = {}  # by stream: the number that the worker was started with
        self._streams = itertools.count()
        self._leaving = 0
        self._closed = False
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by number
        self._met: set[int] = set()
        self._failed = self.started = 0
        self._checked = time.monotonic()
        listener.roles["worker"] = self._serve
        self._fill()

    @property
    def size(self) -> int:
        """How many workers there should be."""
        return self._size.size

    def counts(self) -> dict[str, float]:
        """What workers have done so far, and how many there should be now."""
        did = self.hand_out
        counted = {"relaunched": did.relaunched, "lost": did.lost, "ignored": did.ignored, "tasks": did.handed}
        return {"workers": self.size, "started": self.started, "worker_s": did.busy_s, **counted}

    @property
    def connected(self) -> list[int]:
        """The numbers with which the workers were started that are connected."""
        with self._change:
            return list(self._connected.values())

    def give(self, work: Work, about: Mapping[str, Any], arrays: Arrays) -> None:
        """Raises ConfigError if the task is too large for a message."""
        frame = packed({**about, "work": work}, arrays)
        with self._change:
            self.hand_out.add(work)
            self._frames[work] = frame
            self._change.notify()

    def tick(self, queue: int) -> None:
        """Have late tasks done by others, kill workers that hang, replace those that have ended. Raises AttaError: a
        task was relaunched too often."""
        now = time.monotonic()
        with self._change:
            if self.hand_out.late(now):
                self._change.notify_all()
            stuck = {self._connected.get(stream, -1) for stream in self.hand_out.stuck(now)}
        for number in stuck & self._processes.keys():
            self._processes[number].kill()
        if now - self._checked >= _CHECK_S:
            self._checked = now
            self._size.check(queue)
        self._fill()

    def close(self) -> None:
        """End all workers."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        until = time.monotonic() + _END_S
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _fill(self) -> None:
        connected = set(self.connected)
        self._met |= connected
        for number in [one for one, process in self._processes.items() if process.poll() is not None]:
            process = self._processes.pop(number)
            self._failed = 0 if number in self._met else self._failed + 1
            self._met.discard(number)
            if self._failed >= _FAILED_STARTS:
                text = f"{self._failed} workers in a row ended before they connected, the last with code"
                self._happenings.put(Broken(AttaError(f"{text} {process.returncode}")))
                return
        with self._change:
            self._leaving = max(0, len(connected) - self.size)
            self._change.notify_all()
        for _ in range(self.size - len(self._processes)):
            self._processes[self.started] = start_worker(self._address, self._key, self.started)
            self.started += 1

    def _serve(self, hello: dict[str, Any], worker: Stream) -> None:
        stream, number = next(self._streams), int(hello["number"])
        with self._change:
            self._connected[stream] = number
        try:
            while (frame := self._next(stream)) is not None:
                worker.send_packed(frame)
                # Workers that hang are killed, which ends their streams: so no deadline is needed here.
                self._result(stream, *worker.receive())
            with contextlib.suppress(RemoteError):
                worker.send({"end": True})
        except (RemoteError, ConfigError, KeyError, TypeError, ValueError):
            pass  # the worker is gone, or talks nonsense: another one does its task
        finally:
            with self._change:
                del self._connected[stream]
                try:
                    self.hand_out.gone(stream)
                except AttaError as error:
                    self._happenings.put(Broken(error))
                self._change.notify_all()

    def _next(self, stream: int) -> bytes | None:
        with self._change:
            while not self._closed:
                if self._leaving > 0:
                    self._leaving -= 1
                    return None
                if (work := self.hand_out.take(stream, time.monotonic())) is not None:
                    return self._frames[work]
                self._change.wait(_LOOK_S)
        return None

    def _result(self, stream: int, about: Mapping[str, Any], arrays: Arrays) -> None:
        work = Work(*map(int, about["work"]))
        with self._change:
            first = self.hand_out.result(stream, work, time.monotonic())
            if first:
                del self._frames[work]
        if first and "error" in about:
            self._happenings.put(Broken(ConfigError(str(about["error"]))))
        elif first:
            self._happenings.put(Computed(work, arrays))


def start_worker(address: str, key: bytes, number: int) -> subprocess.Popen[bytes]:
    """A process ``atta worker``. It reads the key from its standard input: nobody else sees it there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atta.cli.main", "worker", address, "--number", str(number)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:  # it has ended already: that is seen elsewhere
        process.stdin.write(key.hex().encode() + b"\n")
    return process
