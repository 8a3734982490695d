"""What every system of one benchmark does, and how a measured process talks with the benchmark (``processes`` is the other side).

    process                                     benchmark
      {"event": "ready", ...}               →     waits until all are ready
                                            ←     go 5
      {"event": "epoch", ...}               →     five times
      {"event": "done"}                     →     waits until all are done
                                            ←     go 12, if the five were too short, else end of input

Reports are lines of JSON on standard output. What libraries print there goes to standard error instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Self

from atta.errors import ConfigError
from atta.observe.settings import NoOption, Option, check_bounds


def ints(text: str) -> tuple[int, ...]:
    """Numbers with commas between them, such as fan-outs; raises ValueError for any other text."""
    return tuple(int(word) for word in text.split(","))


def check_fan_outs(fan_outs: Sequence[int]) -> None:
    """Raise ConfigError if ``--num-neighbors`` makes no sense."""
    if not fan_outs or any(count < 1 and count != -1 for count in fan_outs):
        raise ConfigError(f"--num-neighbors {','.join(map(str, fan_outs))}: each must be positive, or -1 for all")


FanOuts = Annotated[tuple[int, ...], Option("Fan-outs, counted from the seeds.")]
BatchSize = Annotated[int, Option("Seeds per batch and consumer.", at_least=1, at_most=1 << 20)]
Threads = Annotated[int, Option("Threads of every daemon and peer process.", at_least=1, at_most=1024)]
Seed = Annotated[
    int, Option("Of all that is random, where a system lets one choose it.", at_least=0, at_most=2**63 - 1)
]
Split = Annotated[str, Option("Split whose vertices are the seeds.")]
Seeds = Annotated[
    str, Option("local: a consumer gets the seeds near it; global: any of them.", choices=("local", "global"))
]


@dataclass(frozen=True)
class BenchWorkload:
    """Sample and fetch the split's vertices with their neighbourhoods, epoch after epoch."""

    num_neighbors: FanOuts = (15, 10, 5)
    batch_size: BatchSize = 1024
    split: Split = "train"
    warm_up: Annotated[int, Option("Epochs before measuring, per round.", at_least=1)] = 6
    epochs: Annotated[int, Option("At least this much is measured per round.", at_least=1)] = 2
    seconds: Annotated[float, Option("At least this much is measured per round.", unit="s", at_least=0)] = 10.0
    threads: Threads = 1
    timeout_s: Annotated[float, Option("Per system and round.", name="timeout", unit="s", at_least=1e-3)] = 600.0
    seed: Seed = 0
    think_ms: Annotated[float, NoOption("for benchmarks of loading")] = 0.0
    """How long a consumer computes on each batch, on another device; for loading only."""
    seeds: Seeds = "local"
    drop_last: Annotated[bool, NoOption("for batches that must all be full")] = False
    """Leave out the last batch of an epoch if it is not full; for loading only."""
    method: Annotated[str, NoOption("for benchmarks of loading")] = "uniform"
    dependency: Annotated[int, NoOption("for benchmarks of loading")] = 1
    """How Atta draws neighbours, see ``NeighborLoader``; peers draw uniformly, each batch anew."""

    def __post_init__(self) -> None:
        check_bounds(self)
        check_fan_outs(self.num_neighbors)


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


@dataclass(frozen=True, kw_only=True)
class RankConfig(BenchWorkload):
    """What a measured process is told: the workload, and its place.

    Attributes:
        rank, world_size: number of this process, and how many there are.
        rendezvous: ``tcp://host:port`` of rank 0 for gloo.
        recipe: the model that it trains; None: it only loads.
    """

    rank: int
    world_size: int
    rendezvous: str = ""
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        """The workload has been checked."""

    @classmethod
    def of(cls, workload: BenchWorkload, **more: Any) -> Self:
        """The same workload for one process."""
        return cls(**{f.name: getattr(workload, f.name) for f in fields(BenchWorkload)}, **more)

    @classmethod
    def read(cls, text: str) -> Self:
        """What ``text`` has written."""
        given = json.loads(text)
        return cls(**{**given, "recipe": given["recipe"] and Recipe(**given["recipe"])})

    def text(self) -> str:
        """As an argument of the process."""
        return json.dumps(asdict(self))


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
