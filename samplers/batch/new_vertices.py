"""The vertices that one operator added to a batch: their owners, and the cost of expanding and fetching them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atta.samplers.dag.instance import OwnedVertices, Task, chunk_range

if TYPE_CHECKING:
    from atta.partition.dataset import Dataset
    from atta.samplers.dag.spec import PlanOp

__all__ = ["Degree", "NewVertices", "by_owner", "concatenated"]

Degree = Callable[[Sequence[str], np.ndarray], int]
"""A function that gives the total in-degree, over some edge types, of rows of the home partition."""


@dataclass(slots=True)
class NewVertices:
    """The vertices of one node type that one operator added: local ids [start, stop), grouped by owner."""

    start: int
    stop: int
    rows: list[np.ndarray]  # per owner: positions in the owner's range
    positions: list[np.ndarray]  # per owner: local ids
    trees: np.ndarray | None  # int32 [stop - start]

    def of_task(self, task: Task) -> tuple[np.ndarray, np.ndarray]:
        """Rows and positions (int64 [n] each) of the chunk that a task is about."""
        rows, positions = self.rows[task.owner], self.positions[task.owner]
        part = chunk_range(len(rows), task.chunk, task.chunks)
        return rows[part.start : part.stop], positions[part.start : part.stop]


def by_owner(
    growths: Iterable[Mapping[str, NewVertices]],
    op: PlanOp | None,
    row_bytes: Mapping[str, int],
    *,
    dataset: Dataset,
    home: int,
    degree: Degree,
) -> Iterator[OwnedVertices]:
    """Each owner's share of ``growths`` (each by node type).

    ``op``: the hop that expands them; None if no hop does. ``row_bytes``: bytes to fetch per vertex, by node type.
    Degrees are exact for the partition ``home``. Elsewhere they are the mean of the graph, because only an owner knows
    the degrees of its vertices.
    """
    schema = dataset.schema
    for owner in range(dataset.num_parts):
        rows, degrees, nbytes = 0, 0.0, 0.0
        for growth in growths:
            for node_type, new in growth.items():
                count = len(new.rows[owner])
                rows += count
                nbytes += count * row_bytes.get(node_type, 0)
                into = [e for e, _ in op.fan_outs if schema.endpoints(e)[1] == node_type] if op is not None else []
                if into and count and owner == home:
                    degrees += float(degree(into, new.rows[owner]))
                elif into and count:
                    edges = sum(schema.edge_counts[e] for e in into)
                    degrees += count * edges / max(1, schema.node_counts[node_type])
        if rows:
            yield OwnedVertices(owner, rows, degrees, nbytes)


def concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    """``parts`` one after another; int64 [0] if there are none. A single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
