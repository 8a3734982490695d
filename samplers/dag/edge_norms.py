"""What the edges of a type weigh in a batch, as a specification says it. The weights themselves are made where a batch is
(``atta.samplers.batch.edge_weights``)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.protos.v1 import dag_pb2

__all__ = ["EdgeNorm", "EdgeWeights"]


class EdgeNorm(enum.Enum):
    """What an edge weighs where all edges come. The value is the user's name of it; the order is that of messages."""

    NONE = "none"
    ROW = "row"
    BOTH = "both"
    GCN = "gcn"


@dataclass(frozen=True)
class EdgeWeights:
    """What the edges of a type weigh. ``unbiased``: a drawn edge weighs as much more as there are edges that were not.
    ``summed``: weights of edges (table ``weight``) take the place of 1, and sums of them that of degrees."""

    edge_type: str
    norm: EdgeNorm
    unbiased: bool
    summed: bool = False

    @classmethod
    def of(cls, message: dag_pb2.EdgeWeights) -> EdgeWeights:
        """Read a message; raises ConfigError for a norm that this release does not know."""
        norms = [*EdgeNorm]
        if not 0 <= message.norm < len(norms):
            raise ConfigError(f"edge_norm: unknown norm {message.norm}")
        return cls(message.edge_type, norms[message.norm], message.unbiased, message.summed)

    def message(self) -> dag_pb2.EdgeWeights:
        """The inverse of ``of``."""
        norm = dag_pb2.EdgeWeights.Norm.Name([*EdgeNorm].index(self.norm))
        return dag_pb2.EdgeWeights(edge_type=self.edge_type, norm=norm, unbiased=self.unbiased, summed=self.summed)

    @property
    def loops(self) -> bool:
        """Whether every vertex that is expanded gets an edge to itself, which takes the place of those that it has."""
        return self.norm is EdgeNorm.GCN
