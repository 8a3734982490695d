"""What a trainer sends and gets: rows of other trainers, and the weights of the job on a daemon."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np

from atta.client.parameters import JobWeights
from atta.errors import AttaError, DeadlineError, RemoteError
from atta.train.dorylus.engine import Acknowledged, Arrived, Begun, Broken, Happening
from atta.train.dorylus.links import Listener, Stream, join, packed
from atta.train.dorylus.progress import PipelineStage, Work

_ASKED_S = 0.5
"""How long a request for weights waits for slower intervals. After that another interval may have its turn."""
_END_S = 5.0


class PeerLinks:
    """A stream to each trainer that reads rows of this one, and those that others have opened to its listener.

    Few messages wait: an interval scatters once per stage, and is at most so many epochs ahead.
    """

    def __init__(self, listener: Listener, key: bytes, rank: int, happenings: queue.SimpleQueue[Happening]) -> None:
        self._key, self._rank, self._happenings, self._closed = key, rank, happenings, False
        self._senders: dict[int, tuple[ThreadPoolExecutor, Stream]] = {}
        listener.roles["trainer"] = self._bring

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Open the streams to other trainers, by rank; raises the errors of ``join``."""
        for other, address in addresses.items():
            stream, _ = join(address, self._key, {"role": "trainer", "rank": self._rank})
            self._senders[other] = ThreadPoolExecutor(1, "atta-rows"), stream

    def send(self, rank: int, stage: PipelineStage, interval: int, epoch: int, rows: np.ndarray) -> None:
        about = {"part": stage.part, "layer": stage.layer, "interval": interval, "epoch": epoch}
        thread, stream = self._senders[rank]
        thread.submit(self._deliver, rank, stream, packed(about, {"rows": rows}))

    def close(self) -> None:
        """End the streams after everything has been sent; other trainers must have ended their work."""
        self._closed = True
        for thread, stream in self._senders.values():
            wait([thread.submit(stream.close)], _END_S)
            stream.close()
            thread.shutdown()

    def _deliver(self, rank: int, stream: Stream, raw: bytes) -> None:
        try:
            stream.send_packed(raw)
        except RemoteError as error:
            self._lose(rank, f"reads no rows any more: {error}")

    def _bring(self, hello: dict[str, Any], stream: Stream) -> None:
        """Take in rows of another trainer."""
        rank = int(hello["rank"])
        try:
            while True:
                about, arrays = stream.receive()
                stage, producer = PipelineStage(about["part"], int(about["layer"])), (rank, int(about["interval"]))
                self._happenings.put(Arrived(stage, producer, int(about["epoch"]), arrays["rows"]))
        except (AttaError, KeyError, TypeError, ValueError) as error:
            self._lose(rank, f"sends no rows any more: {error}")

    def _lose(self, rank: int, what: str) -> None:
        if not self._closed:
            self._happenings.put(Broken(RemoteError(f"trainer {rank}", what)))


class DaemonWeights:
    """The weights of a job: one thread asks for them, another sends gradients.

    Members of the job are intervals: those of this trainer count from ``first``.
    """

    def __init__(self, job: JobWeights, first: int, happenings: queue.SimpleQueue[Happening]) -> None:
        self._job, self._first, self._happenings = job, first, happenings
        self._asks, self._pushes = (ThreadPoolExecutor(1, "atta-weights") for _ in range(2))
        self._change = threading.Lock()
        self._wanted: list[Work] = []
        self._asked: set[tuple[int, int]] = set()
        self._asking = self._closed = False

    def want(self, works: Sequence[Work]) -> None:
        with self._change:
            self._wanted = [work for work in works if (work.interval, work.epoch) not in self._asked]
            if self._wanted and not self._asking:
                self._asking = True
                self._asks.submit(self._tell, self._ask)

    def push(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        """At most one gradient per interval and layer waits."""
        self._pushes.submit(self._tell, partial(self._send, work, layer, version, gradient))

    def close(self) -> None:
        """End the threads, after the requests that are under way."""
        self._closed = True
        for pool in (self._asks, self._pushes):
            pool.shutdown(cancel_futures=True)

    def _tell(self, step: Callable[[], None]) -> None:
        try:
            step()
        except AttaError as error:
            if not self._closed:
                self._happenings.put(Broken(error))

    def _ask(self) -> None:
        """Begin the epochs of all intervals that wait, the slowest first."""
        while (work := self._slowest()) is not None:
            try:
                found = self._job.begin(self._first + work.interval, work.epoch, within_s=_ASKED_S)
            except DeadlineError:
                continue
            if found.values is None:
                raise RemoteError(
                    "the daemon", f"interval {work.interval} cannot begin epoch {work.epoch}: it is over there"
                )
            with self._change:
                self._asked.add((work.interval, work.epoch))
                self._asked.discard((work.interval, work.epoch - 2))
                self._wanted = [one for one in self._wanted if one != work]
            self._happenings.put(Begun(work.interval, work.epoch, found.version, found.values))

    def _slowest(self) -> Work | None:
        with self._change:
            found = None if self._closed else min(self._wanted, default=None)
            self._asking = found is not None
            return found

    def _send(self, work: Work, layer: int, version: int, gradient: np.ndarray) -> None:
        self._job.push(self._first + work.interval, work.epoch, gradient, layer=layer, version=version)
        self._happenings.put(Acknowledged(work.interval, work.epoch, layer))  # the answer means that it counts
