"""METIS k-way partitioning of the union graph, tamed for power-law graphs.

The constraints are those of DistDGL (section 4.1 of its description): vertices, in-edges and training vertices are
balanced together.

The tamed form is DistDGL's remedy, built with the options of stock METIS. METIS sees only a few edges of every vertex
and refines once. Then vertices move to the partition with most of their neighbours, by all edges. The kept edges lead
to vertices of low degree, because these say most about where a vertex belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import TYPES, capacities, constraints, known_balance, slacks
from atta.partition.cutting.union import Union, weighted_rows
from atta.partition.graph import Graph
from atta.partition.methods.metis_process import metis_bytes, metis_owners

__all__ = ["TAME_FROM", "Metis"]

TAME = ("auto", "yes", "no")
TAME_FROM = 20_000_000
"""Number of neighbours in the union graph from which ``auto`` uses the tamed form."""
_TAMED_ITERATIONS = 1
_BOUNDS = {"nodes": 0.03, "edges": 0.08, TYPES: 0.03}
"""A hub is hard to place, so in-edges have more room."""
_SPLIT_BOUND = 0.02
"""Splits have little room, because they set the number of batches."""


@dataclass(frozen=True)
class Metis:
    """Multilevel k-way partitioning (Karypis and Kumar, SIAM J. Sci. Comput. 1998) with several balance constraints.

    Attributes:
        tame: ``"yes"``, ``"no"``, or ``"auto"``: from 20 million neighbours on.
        cap: number of neighbours per vertex that the tamed form shows to METIS.
        passes: number of passes that move vertices by all edges, after the tamed form.
    """

    tame: str = "auto"
    cap: int = 8
    passes: int = 5

    def __post_init__(self) -> None:
        if self.tame not in TAME or not 1 <= self.cap <= 1 << 20 or not 0 <= self.passes <= 1000:
            raise ConfigError(
                f"tame {self.tame!r}, cap {self.cap}, passes {self.passes}: must be one of {', '.join(TAME)}, "
                f"1 to {1 << 20}, and 0 to 1000"
            )

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        return {name: _BOUNDS.get(name, _SPLIT_BOUND) for name in names}

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Minimise the edge cut.

        Raises:
            UnknownNameError: ``balance`` (None: nodes, edges and training vertices) names an unknown split.
            QuotaExceededError: METIS would not fit into the memory that is free.
            AttaError: METIS fails.
        """
        names = known_balance(graph, balance)
        counts = graph.schema.node_counts
        if parts == 1 or not sum(counts.values()):
            return {t: np.zeros(n, np.int32) for t, n in counts.items()}
        progress.stage("union graph", None)
        union = Union.of(graph)
        weights, slack = constraints(graph, names), slacks(graph, self.bounds(names))
        tamed = self.tame == "yes" or (self.tame == "auto" and len(union.indices) >= TAME_FROM)
        rows = union.sparse(self.cap, seed) if tamed else weighted_rows(union)
        iterations = _TAMED_ITERATIONS if tamed else None
        needed = metis_bytes(len(rows[0]) - 1, len(rows[1]), weights.shape[1])
        progress.stage(f"metis, about {needed / 2**30:.1f} GiB", None)
        [owners] = metis_owners(rows, weights, parts=parts, seeds=[seed], iterations=iterations)
        del rows
        # METIS gets 3 % for everything, because it fails if a tighter bound is hard to keep.
        progress.stage("refining", self.passes + 1)
        room = capacities(weights, parts, slack)
        _native.even_owners(union.indptr, union.indices, owners, parts, weights.reshape(-1), room)
        for _ in range(self.passes):
            progress.advance(1)
            if not _native.refine_owners(union.indptr, union.indices, owners, parts, weights.reshape(-1), room):
                break
        return union.by_type(owners)
