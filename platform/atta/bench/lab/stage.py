"""A measured process's side of its talk with the benchmark (``drive`` is the other side).

    process                                     benchmark
      {"event": "ready", ...}               →     waits until all are ready
                                            ←     go 5
      {"event": "epoch", ...}               →     five times
      {"event": "done"}                     →     waits until all are done
                                            ←     end of input

Lines of JSON on standard output; what libraries print there goes to standard error instead. Imports nothing but Python's own
library: peers use it too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

__all__ = ["Epoch", "Stage"]


@dataclass
class Epoch:
    """What one rank did in one epoch; times in seconds, ``start`` and ``stop`` on the machine's monotonic clock.

    ``edges`` counts sampled edges, ``nodes`` the vertices of the batches' input sides, ``feature_bytes`` the rows of all tables
    delivered; ``make_ms`` is how long each batch was being made, ``queue_bytes`` the most that finished ones have taken until now,
    where the system can tell. ``sampling_s`` and ``fetch_s`` are what the consumer waited for each, where it can tell them apart.
    """

    rank: int
    epoch: int
    start: float = 0.0
    stop: float = 0.0
    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    feature_bytes: int = 0
    remote_rows: float | None = None
    remote_bytes: float | None = None
    sampling_s: float | None = None
    fetch_s: float | None = None
    queue_bytes: float | None = None
    make_ms: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Set ``start`` and ``stop`` around the block."""
        self.start = time.monotonic()
        yield
        self.stop = time.monotonic()


class Stage:
    """Standard input and output, used as the module docstring says."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def ready(self, warm_up: Epoch) -> int:
        """Report for measuring, with the last epoch of warming up, and wait.

        Returns how many epochs to run. Exits quietly if the benchmark is gone.
        """
        self._emit({"event": "ready", **asdict(warm_up)})
        words = sys.stdin.readline().split()
        if len(words) != 2 or words[0] != "go":
            sys.exit(0)
        return int(words[1])

    def report(self, epoch: Epoch) -> None:
        """Report one measured epoch."""
        self._emit({"event": "epoch", **asdict(epoch)})

    def done(self) -> None:
        """Report the end and stay until the benchmark has read everything it wants to know about this process."""
        self._emit({"event": "done"})
        sys.stdin.readline()

    def _emit(self, event: Mapping[str, object]) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()
