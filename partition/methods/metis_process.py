"""METIS in a process of its own.

Its memory is returned at once, a crash of the library becomes an error message, and its signal handlers (it answers SIGTERM by a
jump back into its own call) stay away from daemons and trainers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atta.errors import AttaError, QuotaExceededError
from atta.observe.memory import available_bytes
from atta.partition.files import map_array, write_array

__all__ = ["metis_bytes", "metis_owners"]

Longs = npt.NDArray[np.int64]


def metis_bytes(vertices: int, neighbors: int, things: int) -> int:
    """About how much memory METIS takes: the graph it is given, and the coarser ones that it makes of it.

    Measured on power-law graphs, which METIS coarsens slowly (docs/partitioning.md).
    """
    return 75 * neighbors + (342 + 16 * things) * vertices


def metis_owners(
    rows: tuple[Longs, Longs, Longs], weights: Longs, *, parts: int, seeds: Sequence[int], iterations: int | None = None
) -> list[npt.NDArray[np.int32]]:
    """Partition of each vertex, int32 [n], for each of ``seeds``, which METIS tries one after the other.

    Args:
        rows: starts of the rows [n+1], neighbours (both directions stored, no self-loops), weights of the edges.
        weights: [n, C] of the vertices, one column per constraint.
        parts: at least 2.
        seeds: of METIS' own generator.
        iterations: of refinement at each level; None: METIS' default.

    Raises:
        QuotaExceededError: METIS would not fit into the memory that is free.
        AttaError: METIS fails.
    """
    indptr, indices, edge_weights = rows
    needed, free = metis_bytes(len(indptr) - 1, len(indices), weights.shape[1]), available_bytes()
    if needed > free:
        raise QuotaExceededError(
            f"METIS would take about {needed / 2**30:.1f} GiB for {len(indptr) - 1:,} vertices with {len(indices):,} "
            f"neighbours, and {free / 2**30:.1f} GiB are free: tame it (tame=yes, a smaller cap), or use ldg"
        )
    with tempfile.TemporaryDirectory(prefix="atta-metis-") as name:
        folder = Path(name)
        write_array(folder / "xadj.npy", indptr)
        write_array(folder / "adjncy.npy", indices)
        if len(indices) and edge_weights.min() != edge_weights.max():
            write_array(folder / "adjwgt.npy", edge_weights)
        write_array(folder / "vwgt.npy", weights)
        command = [sys.executable, "-m", "atta.partition.methods.metis_child", name, str(parts)]
        command += ["" if iterations is None else str(iterations), *map(str, seeds)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        if child.returncode != 0:
            lines = child.stderr.strip().splitlines()
            raise AttaError(f"METIS failed (exit status {child.returncode}): {lines[-1] if lines else 'no message'}")
        return [np.array(map_array(folder / f"part-{k}.npy"), dtype=np.int32) for k in range(len(seeds))]
