"""The child process that runs METIS: ``python -m atta.partition.methods.metis_child SIZES... ITERATIONS SEED...``.
SIZES are the numbers of vertices, neighbours and constraints, then 1 if edges have weights, then the number of
partitions. Standard input has int64 ``xadj`` [vertices + 1], ``adjncy`` [neighbours], ``vwgt`` [vertices, constraints]
and the weights of the edges, standard output int32 partitions [vertices] for each seed. pymetis' wrapper takes only one
weight per vertex, so this calls its library."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from io import BufferedReader
from typing import Any

import numpy as np
import numpy.typing as npt
from pymetis import _internal

_OK = 1
_ERRORS = {-2: "wrong input", -3: "out of memory", -4: "internal error"}
_NUM_OPTIONS = 40
_IMBALANCE = 1.03
_PR_SET_PDEATHSIG = 1

Longs = npt.NDArray[np.int64]


def _pointer(array: npt.NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data if array is not None else None)


def part_graph(
    xadj: Longs,
    adjncy: Longs,
    vwgt: Longs,
    adjwgt: Longs | None,
    *,
    parts: int,
    seed: int,
    iterations: int | None = None,
) -> Longs:
    """Call METIS_PartGraphKway; returns the partition of each vertex, int64 [n]. ``xadj``: [n+1] starts of the rows of
    ``adjncy``: neighbours, both directions stored, no self-loops. ``vwgt``: [n, C], one column per constraint.
    ``iterations``: of refinement at each level; None: METIS' default."""
    if _internal._idx_type_width() != 64:
        raise RuntimeError("pymetis was built with 32-bit indices; 64-bit ones are needed")
    options, library = np.zeros(_NUM_OPTIONS, np.int64), ctypes.CDLL(_internal.__file__)
    library.METIS_SetDefaultOptions(_pointer(options))
    positions: Any = _internal.options_indices  # type: ignore[attr-defined]
    options[positions.SEED], options[positions.NUMBERING] = seed % 2**31, 0
    if iterations is not None:
        options[positions.NITER] = iterations
    count, ncon, nparts = (ctypes.c_int64(x) for x in (len(xadj) - 1, vwgt.shape[1], parts))
    cut, part = ctypes.c_int64(0), np.zeros(len(xadj) - 1, np.int64)
    imbalance = np.full(vwgt.shape[1], _IMBALANCE, np.float32)
    status = library.METIS_PartGraphKway(
        ctypes.byref(count), ctypes.byref(ncon), _pointer(xadj), _pointer(adjncy), _pointer(vwgt), None,
        _pointer(adjwgt), ctypes.byref(nparts), None, _pointer(imbalance), _pointer(options), ctypes.byref(cut),
        _pointer(part),
    )  # fmt: skip
    if status != _OK:
        raise RuntimeError(_ERRORS.get(status, f"status {status}"))
    return part


def _read(file: BufferedReader, *shape: int) -> Longs:
    array = np.empty(shape, np.int64)
    if file.readinto(array.reshape(-1).view(np.uint8).data) < array.nbytes:
        raise RuntimeError("the graph ends too early")
    return array


def main(sizes: Sequence[int], iterations: int | None, seeds: Sequence[int]) -> None:
    """Read a graph and write its partitions, one per seed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # without the parent nobody reads the answer
    answer = os.dup(1)
    os.dup2(2, 1)  # the library prints some of its errors on standard output
    vertices, neighbors, constraints, weighted, parts = sizes
    with open(0, "rb") as graph:
        xadj, adjncy, vwgt = _read(graph, vertices + 1), _read(graph, neighbors), _read(graph, vertices, constraints)
        adjwgt = _read(graph, neighbors) if weighted else None
    with os.fdopen(answer, "wb") as out:
        for seed in seeds:
            part = part_graph(xadj, adjncy, vwgt, adjwgt, parts=parts, seed=seed, iterations=iterations)
            out.write(part.astype(np.int32).data)


if __name__ == "__main__":
    rounds = sys.argv[6]
    main([int(size) for size in sys.argv[1:6]], int(rounds) if rounds else None, [int(seed) for seed in sys.argv[7:]])
