"""What every system of one benchmark does, and how a measured process talks with the benchmark (``processes`` is the other side).

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
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from atta.errors import ConfigError, UnknownNameError

SEEDS = ("local", "global")
"""How the seeds are divided among the ranks."""


def ints(text: str) -> tuple[int, ...]:
    """Numbers with commas between them, such as fan-outs; raises ValueError for any other text."""
    return tuple(int(word) for word in text.split(","))


@dataclass(frozen=True)
class BenchWorkload:
    """Sample and fetch the split's vertices with their neighbourhoods, epoch after epoch.

    Attributes:
        num_neighbors: fan-outs, counted from the seeds.
        batch_size: seeds per batch and rank.
        split: name of the split whose vertices are the seeds.
        warm_up: epochs before measuring, at least 1.
        epochs: measured epochs, at least 1.
        seconds: at least this long is measured, in whole epochs.
        threads: number of threads that a process of a system may compute with.
        timeout_s: a system that takes longer, from its start, has failed.
        seed: seed of everything random, where the system lets one choose it.
        think_ms: how long a consumer computes on each batch, on another device; for loading only.
        seeds: ``"local"``: a rank gets the seeds near it; ``"global"``: any seeds, so that a batch needs the same work
            whatever the number of partitions. For loading only.
        drop_last: leave out the last batch of an epoch if it is not full; for loading only.
    """

    num_neighbors: tuple[int, ...]
    batch_size: int
    split: str = "train"
    warm_up: int = 6
    epochs: int = 2
    seconds: float = 10.0
    threads: int = 1
    timeout_s: float = 600.0
    seed: int = 0
    think_ms: float = 0.0
    seeds: str = "local"
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not self.num_neighbors or any(f < 1 and f != -1 for f in self.num_neighbors):
            raise ConfigError(
                f"--num-neighbors {','.join(map(str, self.num_neighbors))}: each must be positive, or -1 for all"
            )
        for name in ("batch_size", "warm_up", "epochs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if self.seconds < 0:
            raise ConfigError(f"--seconds {self.seconds:g}: must not be negative")
        if self.timeout_s <= 0:
            raise ConfigError(f"--timeout {self.timeout_s:g}: must be positive")
        if self.seeds not in SEEDS:
            raise UnknownNameError.of("--seeds", self.seeds, SEEDS)
        if not 0 <= self.think_ms < math.inf:
            raise ConfigError(f"--think {self.think_ms:g} ms: must not be negative")


@dataclass(frozen=True)
class Recipe:
    """The model that all systems of the training benchmark train: GraphSAGE (mean), a layer per hop, by Adam under DDP.

    Attributes:
        channels: number of features of a vertex.
        classes: number of classes.
        layers: number of layers, one per hop.
        hidden: width of the hidden layers.
        lr: learning rate.
        dropout: share of values dropped between layers.
        seed: seed of the initial weights.
    """

    channels: int
    classes: int
    layers: int
    hidden: int = 32
    lr: float = 0.003
    dropout: float = 0.0
    seed: int = 0


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
