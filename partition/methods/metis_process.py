"""Runs METIS in a process of its own.

So its memory is returned at once, and a crash of the library becomes an error message. Its signal handlers (it answers
SIGTERM by a jump back into its own call) do not affect daemons and trainers. Graph and answer go through pipes, so a
killed caller leaves no files behind.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from atta.errors import AttaError, QuotaExceededError
from atta.observe.machine.memory import available_bytes

__all__ = ["metis_bytes", "metis_owners"]

Longs = npt.NDArray[np.int64]


def metis_bytes(vertices: int, neighbors: int, things: int) -> int:
    """About how many bytes METIS takes: for its input graph, and for the coarser graphs that it makes from it.

    Measured on power-law graphs, which METIS coarsens slowly (docs/partitioning.md).
    """
    return 75 * neighbors + (342 + 16 * things) * vertices


def metis_owners(
    rows: tuple[Longs, Longs, Longs], weights: Longs, *, parts: int, seeds: Sequence[int], iterations: int | None = None
) -> list[npt.NDArray[np.int32]]:
    """Partition of each vertex, int32 [n], for each of ``seeds``. METIS runs once per seed, one after another.

    Args:
        rows: starts of the rows [n+1], neighbours (both directions stored, no self-loops), weights of the edges.
        weights: [n, C] vertex weights, one column per constraint.
        parts: at least 2.
        seeds: seeds of METIS' own generator.
        iterations: number of refinement iterations at each level; None: METIS' default.

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
    arrays = [indptr, indices, weights]
    if len(indices) and edge_weights.min() != edge_weights.max():
        arrays.append(edge_weights)
    sizes = [len(indptr) - 1, len(indices), weights.shape[1], len(arrays) - 3, parts]
    command = [sys.executable, "-m", "atta.partition.methods.metis_child", *map(str, sizes)]
    command += ["" if iterations is None else str(iterations), *map(str, seeds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            _send(child, arrays)
            out, errors = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise AttaError(f"METIS failed (exit status {child.returncode}): {lines[-1] if lines else 'no message'}")
    return list(np.frombuffer(out, np.int32).reshape(len(seeds), -1).copy())


def _send(child: subprocess.Popen[bytes], arrays: Sequence[Longs]) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # the exit status and message of METIS tell more
        for array in arrays:
            child.stdin.write(np.ascontiguousarray(array, np.int64).data)
