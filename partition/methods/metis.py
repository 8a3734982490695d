"""METIS k-way partitioning of the union graph, tamed for power-law graphs, in a process of its own: so its memory is
returned at once, and a crash of the library becomes an error message. The constraints are those of DistDGL (section 4.1
of its description). The tamed form is DistDGL's remedy: METIS sees only a few edges of every vertex, those to vertices
of low degree, and refines once. Then vertices move to the partition with most of their neighbours, by all edges."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.errors import AttaError, ConfigError, QuotaExceededError
from atta.observe.machine.memory import available_bytes
from atta.observe.progress import Progress
from atta.partition.cutting.balance import TYPES, capacities, constraints, known_balance, slacks
from atta.partition.cutting.union import Union, weighted_rows
from atta.partition.graph import Graph

Longs = npt.NDArray[np.int64]


def metis_bytes(vertices: int, neighbors: int, things: int) -> int:
    """About how many bytes METIS takes: for its input graph, and for the coarser graphs that it makes from it. Measured
    on power-law graphs, which METIS coarsens slowly (docs/guide/partitioning.md)."""
    return 75 * neighbors + (342 + 16 * things) * vertices


def metis_owners(
    rows: list[Longs], weights: Longs, *, parts: int, seeds: Sequence[int], iterations: int | None = None
) -> list[npt.NDArray[np.int32]]:
    """Partition of each vertex, int32 [n], for each of ``seeds``. METIS runs once per seed, one after another.
    ``rows``: starts of the rows [n+1], neighbours (both directions stored, no self-loops), weights of the edges. It is
    emptied. ``weights``: [n, C], one column per constraint. ``iterations``: of refinement at each level; None: METIS'
    default. Raises QuotaExceededError: METIS would not fit into the memory that is free; AttaError: METIS fails."""
    vertices, neighbors = len(rows[0]) - 1, len(rows[1])
    needed, free = metis_bytes(vertices, neighbors, weights.shape[1]), available_bytes()
    if needed > free:
        raise QuotaExceededError(
            f"METIS would take about {needed / 2**30:.1f} GiB for {vertices:,} vertices with {neighbors:,} "
            f"neighbours, and {free / 2**30:.1f} GiB are free: tame it (tame=yes, a smaller cap), or use ldg"
        )
    if not neighbors or rows[2].min() == rows[2].max():
        rows.pop()
    rows.insert(2, weights)
    sizes = [vertices, neighbors, weights.shape[1], len(rows) - 3, parts]
    command = [sys.executable, "-m", "atta.partition.methods.metis_child", *map(str, sizes)]
    command += ["" if iterations is None else str(iterations), *map(str, seeds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            _send(child, rows)
            out, errors = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise AttaError(f"METIS failed (exit status {child.returncode}): {lines[-1] if lines else 'no message'}")
    return list(np.frombuffer(out, np.int32).reshape(len(seeds), -1).copy())


def _send(child: subprocess.Popen[bytes], arrays: list[Longs]) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # the exit status and message of METIS tell more
        while arrays:  # the child has its own copy, so none is kept here
            child.stdin.write(np.ascontiguousarray(arrays.pop(0), np.int64).data)


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
        """Minimise the edge cut. Raises UnknownNameError: ``balance`` (None: nodes, edges and training vertices) names
        an unknown split; QuotaExceededError: METIS would not fit into the memory that is free; AttaError: METIS
        fails."""
        names = known_balance(graph, balance)
        counts = graph.schema.node_counts
        if parts == 1 or not sum(counts.values()):
            return {t: np.zeros(n, np.int32) for t, n in counts.items()}
        progress.stage("union graph", None)
        union = Union.of(graph)
        weights, slack = constraints(graph, names), slacks(graph, self.bounds(names))
        tamed = self.tame == "yes" or (self.tame == "auto" and len(union.indices) >= TAME_FROM)
        rows = [*(union.sparse(self.cap, seed) if tamed else weighted_rows(union))]
        iterations = _TAMED_ITERATIONS if tamed else None
        needed = metis_bytes(len(rows[0]) - 1, len(rows[1]), weights.shape[1])
        progress.stage(f"metis, about {needed / 2**30:.1f} GiB", None)
        [owners] = metis_owners(rows, weights, parts=parts, seeds=[seed], iterations=iterations)
        # METIS gets 3 % for everything, because it fails if a tighter bound is hard to keep.
        progress.stage("refining", self.passes + 1)
        room = capacities(weights, parts, slack)
        union.settle(owners, parts, weights, room, self.passes, progress.advance)
        return union.by_type(owners)
