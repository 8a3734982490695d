"""Cut a graph folder into a partitioned dataset: one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atta.errors import ConfigError
from atta.partition.graph import Graph
from atta.partition.methods import find_method
from atta.partition.progress import Progress, Silent
from atta.partition.writer import MAX_PARTS, write_dataset

__all__ = ["partition_graph"]


def partition_graph(
    src: str | Path,
    dst: str | Path,
    *,
    parts: int,
    method: str = "metis",
    seed: int = 0,
    balance: Sequence[str] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> None:
    """Partition the graph folder ``src`` into the dataset ``dst``.

    Args:
        src: a graph folder.
        dst: folder to write, complete or not at all.
        parts: number of partitions, at least 1; more than vertices is allowed.
        method: a name in ``methods.METHODS``.
        seed: of the method.
        balance: what every partition should get an equal share of: ``nodes``, ``edges``, names of splits. None: what the
            method balances by itself (metis: nodes, edges, train).
        overwrite: replace an existing dataset.
        verify: check the graph folder's checksums first.
        progress: told of the stages.

    Raises:
        ConfigError: an option is wrong or ``dst`` may not be written.
        DataError: the graph folder is damaged.
    """
    if not 1 <= parts <= MAX_PARTS:
        raise ConfigError(f"--parts {parts}: must lie between 1 and {MAX_PARTS}")
    assign = find_method(method)
    progress = progress or Silent()
    graph = Graph.open(src, verify=verify)
    owners = assign(graph, parts, seed=seed, balance=balance, progress=progress)
    how = {
        "command": "partition",
        "method": method,
        "parts": parts,
        "seed": seed,
        "balance": list(balance) if balance else None,
    }
    write_dataset(graph, owners, dst, parts, provenance=how, overwrite=overwrite, progress=progress)
