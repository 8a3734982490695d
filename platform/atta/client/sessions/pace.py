"""Measures how long a consumer takes per batch. Daemons do not make batches faster than that."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_NEW = 0.2
"""Weight of the newest batch in the running mean."""
_OPEN = 16
"""Most measurements on the GPU that may be outstanding. Older ones are dropped."""


def cuda_event() -> Any:
    """An event in the current CUDA stream, recorded now; None if the process does not use CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class ConsumerPace:
    """Running mean of the time from a batch's arrival to the request for the next one.

    When the consumer comes back, its work on a GPU is only queued. So the GPU's time is that between two events in the
    stream: the first is reached when the GPU is done with the batch before, the second when it is done with this one.
    The larger of the host's time and the GPU's time counts. Events are read after they have been reached, so nothing
    here waits for the GPU.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, event: Callable[[], Any] = cuda_event) -> None:
        """``clock`` returns seconds. ``event`` returns an event like torch's (``query``, ``elapsed_time``), or None."""
        self._clock, self._event = clock, event
        self._arrived: tuple[float, Any] | None = None
        self._open: deque[tuple[float, Any, Any]] = deque(maxlen=_OPEN)
        self.ms = 0.0
        """Milliseconds per batch; 0 while unknown."""

    def arrived(self) -> None:
        """The consumer gets a batch."""
        self._arrived = self._clock(), self._event()

    def done(self) -> None:
        """The consumer asks for the next batch."""
        if self._arrived is None:
            return
        (since, first), self._arrived = self._arrived, None
        host_ms = 1e3 * (self._clock() - since)
        if first is None:
            self._add(host_ms)
        else:
            self._open.append((host_ms, first, self._event()))
        while self._open and self._open[0][2].query():
            host_ms, first, last = self._open.popleft()
            self._add(max(host_ms, float(first.elapsed_time(last))))

    def _add(self, ms: float) -> None:
        self.ms = ms if self.ms == 0 else (1 - _NEW) * self.ms + _NEW * ms
