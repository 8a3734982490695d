"""How a measured process talks with the benchmark (``processes`` is the other side).

    process                                     benchmark
      {"event": "ready", ...}               →     waits until all are ready
                                            ←     go 5
      {"event": "epoch", ...}               →     five times
      {"event": "done"}                     →     waits until all are done
                                            ←     go 12, if the five were too short, else end of input

Reports are lines of JSON on standard output. What libraries print there goes to standard error instead. The module
imports only Python's own library, because processes of peers use it too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

__all__ = ["Epoch", "Reporter"]


@dataclass
class Epoch:
    """What one rank did in one epoch. A figure that a system cannot tell is None or empty.

    Attributes:
        rank, epoch: numbers, from 0.
        start, stop: seconds on the machine's monotonic clock.
        batches, seeds: delivered to the rank.
        nodes: vertices on the input sides of the batches.
        edges: sampled edges.
        feature_bytes: bytes of the delivered rows of all tables.
        remote_rows, remote_bytes: delivered rows that another machine held.
        sampling_s, fetch_s: seconds that the rank waited for sampling and for rows.
        queue_bytes: the most memory that finished batches have taken so far.
        make_ms: milliseconds from the launch of each batch to its end.
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


class Reporter:
    """Reports on standard output and takes commands on standard input, see the module docstring."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def stretches(self, warm_up: Epoch) -> Iterator[int]:
        """Report the last epoch of warming up, and yield how many epochs to run each time that measuring begins.

        After a stretch, wait until the benchmark has read the usage of this process. Ends the process quietly if the
        benchmark is gone before the first one.
        """
        self._emit({"event": "ready", **asdict(warm_up)})
        count = self._told()
        if not count:
            sys.exit(0)
        while count:
            yield count
            self._emit({"event": "done"})
            count = self._told()

    def report(self, epoch: Epoch) -> None:
        """Report one measured epoch."""
        self._emit({"event": "epoch", **asdict(epoch)})

    @staticmethod
    def _told() -> int:
        """How many epochs the benchmark wants next; 0: none any more."""
        words = sys.stdin.readline().split()
        return int(words[1]) if len(words) == 2 and words[0] == "go" else 0

    def _emit(self, event: Mapping[str, object]) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()
