"""Counts of a partitioned graph from which forecasts follow: how much each strategy computes and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atta.errors import ConfigError

__all__ = ["PAPER_EXPANSION", "Expansion", "LayerWork", "MeanBatch", "ServerWork", "Sizes"]


class Expansion(NamedTuple):
    """Bounds of expansion-aware sampling (GraNNDis, section 4.3): hops, and new neighbours per vertex (-1: all)."""

    max_hop: int
    fanout: int


PAPER_EXPANSION = Expansion(1, 15)
"""The bounds that the paper trains with."""


@dataclass(frozen=True)
class ServerWork:
    """What a server computes on in one step. Figures are the largest over servers, because all wait for the slowest.

    Attributes:
        vertices, edges: of the largest server's subgraph.
        mean_vertices: mean over servers.
        internal: rows that the busiest trainer receives before each layer from trainers of its own server.
        external: rows that the busiest server receives before each layer from other servers; 0 if servers send only
            gradients.
        preloaded: vertices of other servers whose features the largest server fetches once; for co-batches those of
            the whole subgraph that they are taken from.
    """

    vertices: float
    edges: float
    mean_vertices: float
    internal: float
    external: float = 0.0
    preloaded: float = 0.0

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
    """A trainer's mini-batch: means over sampled ones.

    Attributes:
        vertices: new vertices per hop, [hops + 1]; the first number counts the seeds.
        edges: sampled edges per hop, [hops].
        remote: vertices whose features are on other servers.
    """

    vertices: tuple[float, ...]
    edges: tuple[float, ...]
    remote: float

    def __post_init__(self) -> None:
        if len(self.vertices) != len(self.edges) + 1 or min(*self.vertices, *self.edges, self.remote) < 0:
            raise ConfigError("a mini-batch has one more number of vertices than of edges, none of them negative")

    def work(self, *, reads: bool) -> LayerWork:
        """Work of all layers together: each further layer has one hop less.

        reads: a layer also computes the rows that it only reads, as in deep models, whose layers keep the number of
        rows.
        """
        hops = len(self.edges)
        rows = sum(sum(self.vertices[: hops - layer + reads]) for layer in range(hops))
        return LayerWork(rows, sum(sum(self.edges[: hops - layer]) for layer in range(hops)))


@dataclass(frozen=True)
class Sizes:
    """Counts of a partitioned graph for one number of servers, of trainers on each, and of layers.

    Attributes:
        vertices, edges, targets: of the whole graph; targets are training vertices.
        exchanged: full-graph training in which servers exchange boundary rows (``ServerWork.external``).
        closure: shared preloading, where a server has everything that L layers over its vertices depend on.
        closure_by_hop: vertices within 0 ... L hops of a server's own, means over servers.
        sampled: expansion-aware sampling, by its bounds.
        co_batches: one co-batch, by the number of co-batches per epoch.
        co_batch_rule: bounds of the subgraph that co-batches are taken from.
        mini_batch: None if there is nothing to train on.
        batch_size, num_neighbors: of the mini-batch.
        counted_servers: number of servers that were counted.
        whole_split: whether METIS saw all edges when it divided subgraphs among trainers, as in training. Otherwise
            the number of internal rows is rather too large.
    """

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
