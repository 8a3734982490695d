"""A partition method, the chunks of Gemini (Zhu et al., OSDI 2016): consecutive rows, even in vertices and in-edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.graph import Graph


@dataclass(frozen=True)
class Chunks:
    """Consecutive ranges of rows; each has about the same sum of ``alpha`` per vertex and 1 per in-edge.

    Attributes:
        alpha: cost of a vertex in edges; 0: 8 (parts - 1), as in the paper.
    """

    alpha: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1e6:
            raise ConfigError(f"alpha {self.alpha}: must lie in 0..1e6")

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Vertices and edges are balanced by the method itself, and nothing depends on ``seed``."""
        if balance is not None:
            raise ConfigError(f"--balance {','.join(balance)}: the method chunks balances vertices and edges")
        progress.stage("chunks", None)
        alpha = self.alpha or 8.0 * max(1, parts - 1)
        cost = {t: np.full(n, alpha) for t, n in graph.schema.node_counts.items()}
        for edge_type in graph.schema.edge_types:
            target = graph.schema.endpoints(edge_type)[1]
            cost[target] += np.bincount(graph.edges(edge_type).dst, minlength=len(cost[target]))
        return {node_type: _cut(of_type, parts) for node_type, of_type in cost.items()}


def _cut(cost: npt.NDArray[np.float64], parts: int) -> npt.NDArray[np.int32]:
    """The partition of each row: its middle decides which share of the total it falls into."""
    middle = np.cumsum(cost) - cost / 2
    return (middle * parts / max(1.0, float(cost.sum()))).astype(np.int32).clip(max=parts - 1)
