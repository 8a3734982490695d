"""An iterator gives up with the latest error of its outage, also where the daemon is just back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from atta.client.sessions.cursor import StreamPlace
from atta.client.sessions.resuming import ResumingStream
from atta.errors import PeerLostError, RemoteError, RestartedError, UnavailableError

LIMIT_S = 0.02


class LostStream:
    """A session without batches: each request raises ``error``."""

    batches, version, address, moving, left, silent, unlaunched = 5, 0, "x:1", False, 5, False, 0

    def __init__(self, error: RemoteError) -> None:
        self._error = error

    def __next__(self) -> Any:
        raise self._error

    def be_patient(self, times: float) -> None:
        """It does not matter here."""


@pytest.mark.parametrize("kind", [UnavailableError, RestartedError, PeerLostError])
def test_it_gives_up_with_the_latest_error(kind: type[RemoteError]) -> None:
    """The daemon goes away. When the limit is over it has been back, and has lost the session once more."""

    def opened(place: StreamPlace, within_s: float, search: Any) -> Any:
        time.sleep(LIMIT_S)
        return LostStream(kind("x:1", "has lost it again"))

    first: Any = LostStream(UnavailableError("x:1", "is away"))
    stream = ResumingStream(opened, StreamPlace(0, 3), LIMIT_S, first)
    with pytest.raises(kind, match=r"x:1: has lost it again \(gave up after reconnect=0.02 s\)"):
        next(stream)
    assert stream.place.batch == 3
    with pytest.raises(StopIteration):
        next(stream)
