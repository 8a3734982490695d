"""A trainer's listener: workers get their tasks here, and other trainers bring rows."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from atta.errors import AttaError, ConfigError, RemoteError
from atta.train.steps.pipeline.decisions.hand_out import HandOut
from atta.train.steps.pipeline.decisions.stages import PipelineStage, Work
from atta.train.steps.pipeline.engine import Arrived, Broken, Computed, Happening
from atta.train.steps.pipeline.frames import Arrays, packed
from atta.train.steps.pipeline.links.sockets import MEETING_S, PROTOCOL, FrameSocket, listen

__all__ = ["TaskDesk"]

_MOST_CONNECTIONS = 1024
_LOOK_S = 1.0


class TaskDesk:
    """Accepts workers and other trainers, each in a thread of its own.

    Attributes:
        address: ``HOST:PORT``.
    """

    def __init__(
        self,
        host: str,
        key: bytes,
        hand_out: HandOut,
        happenings: queue.SimpleQueue[Happening],
        *,
        setting: Mapping[str, Any],
    ) -> None:
        """``setting``: what each worker is told once, such as the task that losses are of."""
        self._key, self._hand_out, self._happenings, self._setting = key, hand_out, happenings, dict(setting)
        self._socket = listen(host)
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._change = threading.Condition()
        self._frames: dict[Work, bytes] = {}
        self._workers: dict[int, tuple[FrameSocket, int]] = {}  # with the number that it was started with
        self._connections: set[FrameSocket] = set()
        self._leaving = 0
        self._numbers = itertools.count()
        self._closed = False
        threading.Thread(target=self._accept, name="atta-desk", daemon=True).start()

    @property
    def connected(self) -> list[int]:
        """The numbers with which the workers were started that are connected."""
        with self._change:
            return [number for _, number in self._workers.values()]

    def give(self, work: Work, about: Mapping[str, Any], arrays: Arrays) -> None:
        """Raises ConfigError if the task is too large for a message."""
        frame = packed({**about, "work": work}, arrays)
        with self._change:
            self._hand_out.add(work)
            self._frames[work] = frame
            self._change.notify()

    def look(self) -> list[int]:
        """Have late tasks done by others; returns the numbers of workers that hang.

        Raises:
            AttaError: a task was relaunched too often.
        """
        now = time.monotonic()
        with self._change:
            if self._hand_out.late(now):
                self._change.notify_all()
            return [self._workers[worker][1] for worker in self._hand_out.stuck(now) if worker in self._workers]

    def let_go(self, count: int) -> None:
        """Let so many workers end as soon as they are idle."""
        with self._change:
            self._leaving = count
            self._change.notify_all()

    def close(self) -> None:
        """End all connections; workers end too."""
        with self._change:
            self._closed = True
            connections = list(self._connections)
            self._change.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connected, place = self._socket.accept()
            except OSError:
                return
            connection = FrameSocket(connected, f"{place[0]}:{place[1]}")
            with self._change:
                full = self._closed or len(self._connections) >= _MOST_CONNECTIONS
                if not full:
                    self._connections.add(connection)
            if full:
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), name="atta-desk", daemon=True).start()

    def _serve(self, connection: FrameSocket) -> None:
        try:
            connection.prove(self._key, calls=False)
            hello, _ = connection.receive(MEETING_S)
            if hello.get("protocol") != PROTOCOL:
                connection.send({"refused": f"this trainer speaks protocol {PROTOCOL}, not {hello.get('protocol')!r}; "
                                 "trainers and workers must be of the same version of Atta"})  # fmt: skip
                return
            connection.send(self._setting)
            if hello.get("role") == "trainer":
                self._bring(connection, int(hello["rank"]))
            else:
                self._work(connection, int(hello["number"]))
        except (AttaError, KeyError, TypeError, ValueError):
            pass  # whoever it was, the job goes on without it; trainers are missed elsewhere
        finally:
            with self._change:
                self._connections.discard(connection)
            connection.close()

    def _bring(self, connection: FrameSocket, rank: int) -> None:
        """Take in rows of another trainer."""
        while True:
            try:
                about, arrays = connection.receive()
                stage = PipelineStage(about["part"], int(about["layer"]))
                self._happenings.put(
                    Arrived(stage, (rank, int(about["interval"])), int(about["epoch"]), arrays["rows"])
                )
            except (AttaError, KeyError, TypeError, ValueError) as error:
                if not self._closed:
                    self._happenings.put(Broken(RemoteError(f"trainer {rank}", f"sends no rows any more: {error}")))
                return

    def _work(self, connection: FrameSocket, number: int) -> None:
        """Give a worker one task after another."""
        worker = next(self._numbers)
        with self._change:
            self._workers[worker] = connection, number
        try:
            while (frame := self._next(worker)) is not None:
                connection.send_raw(frame)
                self._result(worker, *self._answer(connection))
            with contextlib.suppress(RemoteError):
                connection.send({"end": True})
        except (RemoteError, ConfigError, KeyError, TypeError, ValueError):
            pass  # the worker is gone, or talks nonsense: another one does its task
        finally:
            with self._change:
                del self._workers[worker]
                try:
                    self._hand_out.gone(worker)
                except AttaError as error:
                    self._happenings.put(Broken(error))
                self._change.notify_all()

    def _next(self, worker: int) -> bytes | None:
        """The next task of a worker; None: it shall end."""
        with self._change:
            while not self._closed:
                if self._leaving > 0:
                    self._leaving -= 1
                    return None
                work = self._hand_out.take(worker, time.monotonic())
                if work is not None:
                    return self._frames[work]
                self._change.wait(_LOOK_S)
        return None

    @staticmethod
    def _answer(connection: FrameSocket) -> tuple[dict[str, Any], Arrays]:
        # Workers that hang are killed (``look``), which ends their connections: so no deadline is needed here.
        return connection.receive()

    def _result(self, worker: int, about: Mapping[str, Any], arrays: Arrays) -> None:
        work = Work(*map(int, about["work"]))
        with self._change:
            first = self._hand_out.result(worker, work, time.monotonic())
            if first:
                del self._frames[work]
        if first and "error" in about:
            self._happenings.put(Broken(ConfigError(str(about["error"]))))
        elif first:
            self._happenings.put(Computed(work, arrays))
