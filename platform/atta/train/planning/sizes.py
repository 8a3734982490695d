"""What is counted of a partitioned graph, and how fast machines are: the work of a step, and rates of doing it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atta.errors import ConfigError
from atta.train.dorylus.progress import stages_of
from atta.train.settings.common import DEEP_MODELS, MODELS


class Expansion(NamedTuple):
    """Bounds of expansion-aware sampling (GraNNDis, section 4.3): hops, and new neighbours per vertex (-1: all)."""

    max_hop: int
    fanout: int


PAPER_EXPANSION = Expansion(1, 15)
"""The bounds that the paper trains with."""


@dataclass(frozen=True)
class ServerWork:
    """What a server computes on in one step. Figures are the largest over servers, because all wait for the slowest.

    ``internal``, ``external``: rows that the busiest trainer receives before each layer from its own server, and the
    busiest server from others. ``preloaded``: vertices of other servers whose features the largest server fetches once.
    ``cut``: mean share of in-edges from other servers; 0: not counted."""

    vertices: float
    edges: float
    mean_vertices: float
    internal: float
    external: float = 0.0
    preloaded: float = 0.0
    cut: float = 0.0

    def __post_init__(self) -> None:
        if not all(value >= 0 for value in vars(self).values()):
            raise ConfigError(f"a server's work cannot have negative sizes: {self}")


@dataclass(frozen=True)
class LayerWork:
    """Rows and edges that the layers of a model compute."""

    rows: float
    edges: float


@dataclass(frozen=True)
class MeanBatch:
    """A trainer's mini-batch: means over sampled ones, by hop. ``vertices`` are new ones, the seeds first. ``remote``:
    vertices whose features are on other servers. ``summed``: rows' worth of bytes that cross for these where owners sum
    the last hop's rows; None: they do not."""

    vertices: tuple[float, ...]
    edges: tuple[float, ...]
    remote: float
    summed: float | None = None

    @property
    def crossing(self) -> float:
        """Rows' worth of bytes that come from other servers."""
        return self.remote if self.summed is None else self.summed

    def __post_init__(self) -> None:
        if len(self.vertices) != len(self.edges) + 1 or min(*self.vertices, *self.edges, self.remote) < 0:
            raise ConfigError("a mini-batch has one more number of vertices than of edges, none of them negative")

    def work(self, *, reads: bool) -> LayerWork:
        """Work of all layers together: each further layer has one hop less. reads: a layer also computes the rows that
        it only reads, as in deep models, whose layers keep the number of rows."""
        hops = len(self.edges)
        rows = sum(sum(self.vertices[: hops - layer + reads]) for layer in range(hops))
        return LayerWork(rows, sum(sum(self.edges[: hops - layer]) for layer in range(hops)))


@dataclass(frozen=True)
class Sizes:
    """Counts of a partitioned graph for one number of servers, of trainers on each, and of layers.

    ``exchanged``: servers exchange boundary rows. ``closure``: a server has everything that L layers over its vertices
    depend on; ``closure_by_hop``: vertices within 0 ... L hops, means over servers. ``sampled``: by bounds of
    expansion-aware sampling. ``co_batches``: by their number per epoch. ``mini_batch``: None if there is nothing to
    train on. ``whole_split``: whether METIS saw all edges when it divided subgraphs among trainers, as in training.
    Otherwise the number of internal rows is rather too large."""

    vertices: int
    edges: int
    targets: int
    exchanged: ServerWork
    closure: ServerWork
    closure_by_hop: tuple[float, ...]
    sampled: Mapping[Expansion, ServerWork] = field(default_factory=dict)
    co_batches: Mapping[int, ServerWork] = field(default_factory=dict)
    co_batch_rule: Expansion = PAPER_EXPANSION
    mini_batch: MeanBatch | None = None
    batch_size: int = 1024
    num_neighbors: tuple[int, ...] = ()
    counted_servers: int = 1
    whole_split: bool = True


_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Machines:
    """Servers, and ``trainers`` on each; ``memory`` bytes per trainer. Raises ConfigError if there is none."""

    servers: int
    trainers: int
    memory: float = math.inf
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.servers < 1 or self.trainers < 1 or not self.memory > 0:
            raise ConfigError(
                f"servers {self.servers}, trainers {self.trainers}, memory {self.memory}: must be positive"
            )


@dataclass(frozen=True)
class PlannedModel:
    """The model to train. Raises ConfigError for an unknown model or a width below 1."""

    model: str
    layers: int
    hidden: int
    inputs: int
    classes: int = 2

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"model {self.model!r}: must be one of {', '.join(MODELS)}")
        if min(self.layers, self.hidden, self.inputs, self.classes) < 1:
            raise ConfigError("layers and widths must be at least 1")

    @property
    def deep(self) -> bool:
        """Whether a linear layer maps features to the hidden width before the first message passing."""
        return self.model in DEEP_MODELS

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the hidden width."""
        return _FLOAT_BYTES * self.hidden

    @property
    def feature_rows(self) -> float:
        """A row of features, in rows of the hidden width."""
        return self.inputs / self.hidden

    @property
    def exchanges(self) -> float:
        """How often per step a boundary row is sent, forward and backward, in rows of the hidden width. This counts
        computed rows. ``feature_exchanges`` counts features, which the first layer reads unless the model is deep."""
        return 2.0 * (self.layers if self.deep else self.layers - 1)

    @property
    def feature_exchanges(self) -> float:
        """The same for features. They are sent once per subgraph, and have no gradients."""
        return 0.0 if self.deep else self.feature_rows


@dataclass(frozen=True)
class Rates:
    """Measured speeds. A device takes v / vertices + e / edges seconds for v rows and e edges of a layer, both ways.

    ``internal``, ``external``: rows per second that a trainer receives from another of its server, and a server over
    its link. ``drawing``: sampled edges per second; ``extracting``: edges per second of a co-batch. ``parameters``: of
    the model; each step sums up their gradients. ``disk``: rows per second of a server's own partition, of which some
    come from the disk."""

    vertices: float
    internal: float
    external: float
    edges: float = math.inf
    drawing: float = math.inf
    extracting: float = math.inf
    parameters: float = 0.0
    disk: float = math.inf

    def __post_init__(self) -> None:
        speeds = (self.vertices, self.internal, self.external, self.edges, self.drawing, self.extracting, self.disk)
        if not all(speed > 0 for speed in speeds):
            raise ConfigError("rates must be positive")
        if not self.parameters >= 0:
            raise ConfigError("parameters must not be negative")


AGAIN = 1 / 3
"""Share of a layer's rows that workers of ``dorylus`` compute a second time, in backward: forward is a third of both."""
HANDED = 5
"""How often per epoch and layer the rows of a trainer go to its workers, or come from them."""


class IntervalCosts(NamedTuple):
    """An interval of ``dorylus``: mean seconds of a stage that its trainer computes, and of a worker's task; bytes of a
    task, and of its result."""

    graph_s: float
    task_s: float
    task_bytes: float


def interval_costs(work: ServerWork, model: PlannedModel, rates: Rates, intervals: int) -> IntervalCosts:
    """What one of ``intervals`` of a trainer costs, if the trainer reads the edges and workers compute the rows. work:
    of its server, which has no other trainer."""
    stages = stages_of(model.layers)
    own = intervals * sum(stage.by_trainer for stage in stages)
    given = intervals * len(stages) - own
    rows, edges = model.layers * work.vertices, model.layers * work.edges
    return IntervalCosts(
        edges / rates.edges / own,
        (1 + AGAIN) * rows / rates.vertices / given,
        HANDED * rows * model.row_bytes / (2 * given),
    )
