"""The edges of a graph, as its daemons tell them. Each rank asks for those into its share of vertices, then ranks
exchange them: every rank calls these functions, within the process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import atta
from atta.train.tasks.candidates import GraphPairs

_TOGETHER = 1 << 14
"""Number of vertices whose in-edges a batch has."""


class GraphEdges(NamedTuple):
    """All edges of a type.

    ids: int64 [vertices], user ids of the targets' node type; ends: int64 [2, edges], user ids; tables: by name of an
    edge table, int64 or float64 [edges].
    """

    ids: np.ndarray
    ends: np.ndarray
    tables: dict[str, np.ndarray]


def everywhere(mine: torch.Tensor) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks."""
    rank, counts = dist.get_rank(), torch.zeros(dist.get_world_size(), dtype=torch.int64, device=mine.device)
    counts[rank] = len(mine)
    dist.all_reduce(counts)
    ends = counts.cumsum(0).tolist()
    found = torch.zeros(ends[-1], *mine.shape[1:], dtype=mine.dtype, device=mine.device)
    found[ends[rank] - len(mine) : ends[rank]] = mine
    dist.all_reduce(found)
    return found


def read_edges(cluster: atta.Cluster, edge_type: str, tables: Sequence[str], device: torch.device) -> GraphEdges:
    """All edges of a type, with tables of a number per edge. Raises RemoteError."""
    schema = cluster.schema
    source, target = schema.endpoints(edge_type)
    specs = {name: schema.edge_tables[edge_type][name] for name in tables}
    kinds: dict[str, Any] = {name: np.float64 if spec.dtype[1] == "f" else np.int64 for name, spec in specs.items()}
    seeds, ends = [np.empty(0, np.int64)], [np.empty((2, 0), np.int64)]
    rows = {name: [np.empty(0, kind)] for name, kind in kinds.items()}
    hops = {e: [-1 if e == edge_type else 0] for e in schema.edge_types}
    for batch in _batches(cluster, target, hops, edge_tables={edge_type: [*tables]} if tables else {}):
        n_id = batch.n_id(target)
        seeds.append(n_id[: batch.batch_size].copy())
        from_places, to_places = batch.edge_index(edge_type)
        ends.append(np.stack([batch.n_id(source)[from_places], n_id[to_places]]))
        for name, kind in kinds.items():
            rows[name].append(batch.edge_table(name, edge_type).reshape(-1).astype(kind))
    return GraphEdges(
        _of_all(seeds, device),
        np.stack([_of_all([side], device) for side in np.concatenate(ends, axis=1)]),
        {name: _of_all(parts, device) for name, parts in rows.items()},
    )


def read_pairs(
    cluster: atta.Cluster, edge_type: str, device: torch.device, *, timed: bool
) -> tuple[GraphPairs, np.ndarray | None]:
    """All pairs that are edges of a type, and if ``timed`` the time of each one's first edge, from the edge table
    ``time``, int64 or float64 [pairs].
    """
    edges = read_edges(cluster, edge_type, ["time"] if timed else [], device)
    sources, targets = edges.ends
    source, target = cluster.schema.endpoints(edge_type)
    if source == target:
        pairs = GraphPairs.of(edges.ids, sources, targets)
    else:
        found = [np.empty(0, np.int64), *(batch.n_id(source).copy() for batch in _batches(cluster, source, []))]
        pairs = GraphPairs.of(_of_all(found, device), sources, targets, edges.ids)
    if not timed:
        return pairs, None
    keys, kept = pairs.keys_of(sources, targets)
    times = edges.tables["time"][kept]
    order = np.lexsort((times, keys))
    first = np.unique(keys[order], return_index=True)[1]
    return pairs, times[order][first]


def _batches(cluster: atta.Cluster, node_type: str, hops: Any, **options: Any) -> atta.NeighborLoader:
    """This rank's share of all vertices of a type."""
    return atta.NeighborLoader(
        cluster, hops, (node_type, None), batch_size=_TOGETHER, pad=False, rank=dist.get_rank(),
        world_size=dist.get_world_size(), tables=[], edge_ids=False, **options,
    )  # fmt: skip


def _of_all(parts: Sequence[np.ndarray], device: torch.device) -> np.ndarray:
    return everywhere(torch.from_numpy(np.concatenate(parts)).to(device)).cpu().numpy()
