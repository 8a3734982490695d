"""Rows and gradients on their way to other trainers: one connection and one thread for each of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping

import numpy as np

from atta.errors import AttaError
from atta.train.steps.pipeline.decisions.stages import PipelineStage
from atta.train.steps.pipeline.engine import Broken, Happening
from atta.train.steps.pipeline.frames import packed
from atta.train.steps.pipeline.links.sockets import FrameSocket, call

__all__ = ["PeerLinks"]


class PeerLinks:
    """See ``PeerRows``. Few messages wait: an interval scatters once per stage, and is at most so many epochs ahead."""

    def __init__(
        self, addresses: Mapping[int, str], key: bytes, rank: int, happenings: queue.SimpleQueue[Happening]
    ) -> None:
        """``addresses``: of the trainers that read rows of this one, by rank; raises the errors of ``call``."""
        self._happenings, self._closed = happenings, False
        self._queues: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._connections: list[FrameSocket] = []
        self._threads: list[threading.Thread] = []
        for other, address in addresses.items():
            connection = call(address, key, {"role": "trainer", "rank": rank})
            waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            self._queues[other] = waiting
            self._connections.append(connection)
            thread = threading.Thread(target=self._deliver, args=(connection, waiting), name="atta-rows", daemon=True)
            self._threads.append(thread)
            thread.start()

    def send(self, rank: int, stage: PipelineStage, interval: int, epoch: int, rows: np.ndarray) -> None:
        about = {"part": stage.part, "layer": stage.layer, "interval": interval, "epoch": epoch}
        self._queues[rank].put(packed(about, {"rows": rows}))

    def close(self) -> None:
        """End the connections after everything has been sent; other trainers must have ended their work."""
        self._closed = True
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(5)
        for connection in self._connections:
            connection.close()

    def _deliver(self, connection: FrameSocket, waiting: queue.SimpleQueue[bytes | None]) -> None:
        try:
            while (frame := waiting.get()) is not None:
                connection.send_raw(frame)
        except AttaError as error:
            if not self._closed:
                self._happenings.put(Broken(error))
