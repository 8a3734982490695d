"""How good a partition is: edge cut, balance, HALO ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.partition.cutting.balance import TYPES, capacity
from atta.partition.schema import Schema

__all__ = ["Counts", "balance", "missed_lines", "summarise"]

ROUNDING = 1e-9

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
        most_into: the greatest in-degree of one vertex, over all edge types.
    """

    nodes: dict[str, PerPart]
    edges: dict[str, PerPart]
    splits: dict[str, dict[str, PerPart]]
    halo: dict[str, PerPart]
    cut: PerPart
    most_into: PerPart

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
            most_into=zeros(),
        )


def balance(counts: PerPart) -> float:
    """Return maximum / mean over the partitions. 1 is perfect, and the result if all counts are zero."""
    total = int(counts.sum())
    return float(counts.max() * len(counts) / total) if total else 1.0


def summarise(counts: Counts, bounds: Mapping[str, float] | None) -> dict[str, Any]:
    """Return the ``quality`` of a manifest: plain numbers.

    ``edge_cut``: share of the edges with a source in another partition. ``halo_ratio``: HALO vertices per core vertex.
    ``balance``: maximum / mean over the partitions, for vertices, edges and each split. ``bounds``: as given, what the
    method promised. ``missed``: the bounds that are not kept, each with ``of`` (what is balanced), ``part`` (the
    fullest partition), ``count`` (what it holds), ``allowed`` (what it may hold at most) and ``share`` (an even share).
    Without ``bounds`` (None: nobody recorded them) both are left out.
    """
    nodes, edges = _total(counts.nodes, counts.cut), _total(counts.edges, counts.cut)
    halo = _total(counts.halo, counts.cut)
    splits: dict[str, PerPart] = {}
    for per_type in counts.splits.values():
        for name, sizes in per_type.items():
            splits[name] = splits.get(name, np.zeros_like(sizes)) + sizes
    held = {"nodes": nodes, "edges": edges, **splits}
    promised = {} if bounds is None else {"bounds": dict(bounds), "missed": _missed(counts, held, bounds)}
    return {
        "edge_cut": float(counts.cut.sum() / max(1, edges.sum())),
        "cut_edges": int(counts.cut.sum()),
        "halo_ratio": float(halo.sum() / max(1, nodes.sum())),
        "balance": {name: balance(held[name]) for name in ("nodes", "edges", *sorted(splits))},
        **promised,
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


def missed_lines(quality: Mapping[str, Any]) -> list[str]:
    """A line for each bound that the partitions miss, by how much."""
    return [
        f"balance of {m['of']} missed by {m['count'] - m['allowed']:,}: partition {m['part']} has {m['count']:,} and "
        f"may have {m['allowed']:,} (an even share is {m['share']:,.1f})"
        for m in quality.get("missed", ())
    ]


def _missed(counts: Counts, held: Mapping[str, PerPart], bounds: Mapping[str, float]) -> list[dict[str, Any]]:
    things = {name: (held[name], slack) for name, slack in bounds.items() if name in held}
    if TYPES in bounds:
        things |= {f"type {t}": (per_part, bounds[TYPES]) for t, per_part in counts.nodes.items()}
    found = []
    for of, (loads, slack) in things.items():
        share = float(loads.sum() / len(loads))
        heaviest = int(counts.most_into.max()) if of == "edges" else min(1, int(loads.max()))
        allowed, part = int(capacity(share, slack, heaviest) + ROUNDING), int(loads.argmax())
        if loads[part] > allowed:
            found.append({"of": of, "part": part, "count": int(loads[part]), "allowed": allowed, "share": share})
    return found


def _total(counts: dict[str, PerPart], like: PerPart) -> PerPart:
    return sum(counts.values(), start=np.zeros_like(like))
