"""How good a partition is: edge cut, balance, HALO ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.schema import Schema

__all__ = ["Counts", "balance", "summarise"]

PerPart = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """What each partition holds; every array is int64 [P].

    Attributes:
        nodes: node type -> core vertices.
        edges: edge type -> edges.
        splits: node type -> split -> vertices of the split.
        halo: node type -> HALO vertices.
        cut: edges with a source in another partition.
    """

    nodes: dict[str, PerPart]
    edges: dict[str, PerPart]
    splits: dict[str, dict[str, PerPart]]
    halo: dict[str, PerPart]
    cut: PerPart

    @classmethod
    def zero(cls, schema: Schema, parts: int) -> Counts:
        """Return counts of zero, to be filled in."""

        def zeros() -> PerPart:
            return np.zeros(parts, np.int64)

        return cls(
            nodes={t: zeros() for t in schema.node_types},
            edges={e: zeros() for e in schema.edge_types},
            splits={t: {name: zeros() for name in schema.splits[t]} for t in schema.node_types},
            halo={t: zeros() for t in schema.node_types},
            cut=zeros(),
        )


def balance(counts: PerPart) -> float:
    """Return maximum / mean over the partitions. 1 is perfect, and the result if all counts are zero."""
    total = int(counts.sum())
    return float(counts.max() * len(counts) / total) if total else 1.0


def summarise(counts: Counts) -> dict[str, Any]:
    """Return the ``quality`` of a manifest: plain numbers.

    ``edge_cut``: share of the edges with a source in another partition. ``halo_ratio``: HALO vertices per core vertex.
    ``balance``: maximum / mean over the partitions, for vertices, edges and each split.
    """
    nodes, edges = _total(counts.nodes, counts.cut), _total(counts.edges, counts.cut)
    halo = _total(counts.halo, counts.cut)
    splits: dict[str, PerPart] = {}
    for per_type in counts.splits.values():
        for name, sizes in per_type.items():
            splits[name] = splits.get(name, np.zeros_like(sizes)) + sizes
    return {
        "edge_cut": float(counts.cut.sum() / max(1, edges.sum())),
        "cut_edges": int(counts.cut.sum()),
        "halo_ratio": float(halo.sum() / max(1, nodes.sum())),
        "balance": {
            "nodes": balance(nodes),
            "edges": balance(edges),
            **{name: balance(sizes) for name, sizes in sorted(splits.items())},
        },
        "parts": [
            {
                "nodes": {t: int(c[p]) for t, c in counts.nodes.items()},
                "edges": {e: int(c[p]) for e, c in counts.edges.items()},
                "splits": {t: {n: int(c[p]) for n, c in s.items()} for t, s in counts.splits.items()},
                "halo": {t: int(c[p]) for t, c in counts.halo.items()},
                "cut_edges": int(counts.cut[p]),
            }
            for p in range(len(counts.cut))
        ],
    }


def _total(counts: dict[str, PerPart], like: PerPart) -> PerPart:
    return sum(counts.values(), start=np.zeros_like(like))
