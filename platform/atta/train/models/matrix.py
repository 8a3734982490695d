"""Adjacency matrices in CSR. With a list of edges PyG would copy one row per edge; it multiplies rows by a matrix."""

from __future__ import annotations

import functools
import warnings

import torch


def row_starts(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return int64 [count + 1]: where each row begins, if entries with these row numbers are sorted by them."""
    starts = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(torch.bincount(rows, minlength=count), 0, out=starts[1:])
    return starts


def adjacency(
    sources: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Return the matrix ``size``, [targets, sources], of edges that are sorted by target; all tensors are [E]."""
    return csr_matrix(row_starts(targets, size[0]), sources, weights, size)


def csr_matrix(
    starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Return a matrix of torch in CSR, whose arrays are not checked; without torch's note that CSR is in beta."""
    _note_given()
    return torch.sparse_csr_tensor(starts, columns, values, size=size, check_invariants=False)


@functools.cache
def _note_given() -> None:
    """Have torch give its note on CSR where nobody reads it. It gives the note once per process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        empty = torch.zeros(1, dtype=torch.int64)
        torch.sparse_csr_tensor(empty, empty[:0], torch.zeros(0), size=(0, 0), check_invariants=False)
