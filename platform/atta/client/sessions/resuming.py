"""An epoch of batches that outlives its session: when the daemon goes away, another session goes on at the cursor."""

from __future__ import annotations

import enum
import logging
import random
import time
from collections.abc import Callable, Iterator

from atta import errors
from atta.client.sessions.cursor import Reattachment, StreamPlace
from atta.client.sessions.stream import BatchStream, RawBatch

LOST = (errors.UnavailableError, errors.DeadlineError, errors.RestartedError, errors.PeerLostError)
"""What a request raises whose session may be gone, or that failed as a daemon is away. Others would come again."""
RECONNECT_S = 60.0  # how long loaders wait for a daemon that has gone, unless told otherwise
FIRST_OPEN_S = 30.0
"""How long the first request for a session may take."""
_JITTER = random.Random()  # its own: the program's random numbers stay what they would be
LEAST_S = 1.0
"""How long an attempt may take at least, also at the very end of an outage."""
MOVE_S = 2.0
"""How long opening the rest at a replica may take, while the daemon that stops still serves it."""
MOVE_AGAIN_S = 2.0
"""How long to stay with a daemon that stops before its replicas are asked again."""
MOST_DOUBLINGS = 5
"""How often the patience with silent daemons is doubled, at most."""


class Search(enum.Enum):
    """Where the daemon of a session is looked for."""

    NOWHERE = "it is where it was"
    EVERYWHERE = "it was lost: perhaps it is at another address, or a replica takes over"
    ELSEWHERE = "it is stopping: only a replica will do"


log = logging.getLogger("atta.sessions")
Opener = Callable[[StreamPlace, float, Search], BatchStream]


class ResumingStream(Iterator[RawBatch]):
    """The batches from ``place`` to the end of the epoch, each once and in order.

    Attributes:
        place: of the next batch. It stays readable when the stream is gone.
    """

    def __init__(
        self, opened: Opener, place: StreamPlace, reconnect_s: float, stream: BatchStream | None = None
    ) -> None:
        """Open the session by ``opened``, with one attempt within a number of seconds, unless ``stream`` has been
        opened for ``place`` already. ``reconnect_s``: how long to wait for a daemon that has gone; 0: not at all.
        Raises what ``Cluster.stream`` does."""
        self.place = place
        self._opened = opened
        self._outages = Reattachment(reconnect_s, place.batch)
        self._reconnect_s = reconnect_s
        self._failed, self._ended_at, self._told_at, self._move_at = False, -1, -1, 0.0
        self._silences = 0  # since the latest batch
        if stream is None:
            try:
                stream = opened(place, FIRST_OPEN_S, Search.NOWHERE)
            except LOST as error:
                stream = self._reopened(error)
        self._stream = stream
        self.batches = self._stream.batches
        self.place.version = stream.version  # the rest of the epoch has the same, wherever it comes from

    def __next__(self) -> RawBatch:
        if self._stream.moving and self._stream.left:
            self._move()
        while True:
            try:
                batch = next(self._stream)
            except errors.DaemonEndedError:  # nobody will come back
                self._failed = True
                raise
            except LOST as error:
                if self._failed:
                    raise StopIteration from None
                self._silences += self._stream.silent
                self._stream = self._same(self._reopened(error))
                # It may be the link that is slow, and then no daemon would answer in time.
                self._stream.be_patient(2.0 ** min(self._silences, MOST_DOUBLINGS))
            except (errors.UnknownNameError, errors.NotAuthenticatedError) as error:
                # The session has ended: its lease ran out while this process was stopped, or its token was replaced while
                # a request was on its way. If the same happens again at the same batch, it is neither.
                if not self._reconnect_s or self._ended_at == self.place.batch:
                    raise
                self._ended_at = self.place.batch
                self._stream = self._same(self._reopened(errors.UnavailableError(self._stream.address, str(error))))
            else:
                self.place.batch += 1
                self._silences = 0
                return batch

    @property
    def unlaunched(self) -> int:
        """Number of batches that the daemon had not begun when it sent the latest one."""
        return self._stream.unlaunched

    def close(self) -> None:
        """End the session; repeating it does nothing."""
        self._stream.close()

    def _move(self) -> None:
        """Take the rest from a replica. If none will do, the stopping daemon serves the session on as long as it can."""
        if time.monotonic() < self._move_at:
            return
        try:
            there = self._opened(self.place, MOVE_S, Search.ELSEWHERE)
        except errors.AttaError:
            self._move_at = time.monotonic() + MOVE_AGAIN_S
            return
        before, self._stream = self._stream, self._same(there)
        before.close()

    def _reopened(self, lost: errors.RemoteError) -> BatchStream:
        """A session from the next batch on. Raises the latest error when the outage has lasted too long."""
        while True:
            wait_s = self._outages.wait_s(time.monotonic(), self.place.batch, _JITTER.random())
            if wait_s is None:
                self._failed = True
                raise self._told(lost)
            time.sleep(wait_s)
            left_s = max(LEAST_S, self._outages.left_s(time.monotonic()))
            if self._told_at != self.place.batch:
                self._told_at = self.place.batch
                log.warning("batches wait for a daemon: %s (at most %.0f s more)", lost, left_s)
            try:
                return self._opened(self.place, left_s, Search.EVERYWHERE)
            except errors.DaemonEndedError:
                self._failed = True
                raise
            except LOST as error:
                lost = error

    def _told(self, lost: errors.RemoteError) -> errors.RemoteError:
        """The error, with how long the daemon was waited for."""
        if not self._reconnect_s:
            return lost
        return type(lost)(lost.peer, f"{lost.cause} (gave up after reconnect={self._reconnect_s:g} s)")

    def _same(self, stream: BatchStream) -> BatchStream:
        if stream.batches == self.batches and stream.version == self.place.version:
            return stream
        stream.close()
        if stream.batches == self.batches:
            raise errors.RemoteError(
                stream.address, f"reads version {stream.version} of the tables, it was {self.place.version} before"
            )
        raise errors.RemoteError(
            stream.address, f"has {stream.batches} batches in this epoch, not {self.batches} as before"
        )
