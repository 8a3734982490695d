"""The quantities that are balanced over partitions, and how good a partition is: edge cut, balance, HALO ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import UnknownNameError
from atta.partition.graph import Graph
from atta.partition.schema import Schema

DEFAULT_BALANCE = ("nodes", "edges", "train")
TYPES = "types"

Longs = npt.NDArray[np.int64]


def known_balance(graph: Graph, balance: Sequence[str] | None) -> list[str]:
    """Check the names in ``balance``: ``nodes``, ``edges``, ``types`` (each node type) or a split. None: vertices,
    edges and training vertices, if they exist. Raises UnknownNameError."""
    splits = {name for per_type in graph.schema.splits.values() for name in per_type}
    known = {"nodes", "edges", TYPES, *splits}
    if balance is None:
        return [name for name in DEFAULT_BALANCE if name in known]
    for name in balance:
        if name not in known:
            raise UnknownNameError.of("name in --balance:", name, known)
    return list(balance)


def slacks(graph: Graph, bounds: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return float64 [C]: the bound of each column of ``constraints(graph, list(bounds))``."""
    return np.array([bounds.get(name, 0.0) for name, _ in _columns(graph, list(bounds))])


def constraints(
    graph: Graph, balance: Sequence[str] = DEFAULT_BALANCE, in_degrees: Mapping[str, Longs] | None = None
) -> Longs:
    """Return the vertex weights [N, C] of the union graph, a column for each thing to balance: 1 for each vertex
    (``nodes``), its in-degree (``edges``), 1 for those of a split, a column per node type (``types``). Columns of zeros
    are left out. ``in_degrees``: of each row by node type; None: they are counted. Raises UnknownNameError for a split
    that no node type has."""
    return np.ascontiguousarray(np.stack([column for _, column in _columns(graph, balance, in_degrees)], axis=1))


def _columns(
    graph: Graph, balance: Sequence[str], in_degrees: Mapping[str, Longs] | None = None
) -> list[tuple[str, Longs]]:
    columns: list[tuple[str, Longs]] = []
    for name in dict.fromkeys(balance):
        found = _type_columns(graph) if name == TYPES else [weight_column(graph, name, in_degrees)]
        columns += [(name, column) for column in found if column.any()]
    return columns or [("nodes", weight_column(graph, "nodes"))]


def capacities(weights: Longs, parts: int, slack: float | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return float64 [C]: how much of each column a partition may hold. This is its share, plus the fraction ``slack``
    of the share, plus room for one vertex."""
    return capacity(weights.sum(axis=0, dtype=np.float64) / parts, slack, weights.max(axis=0, initial=0))


def capacity(
    share: float | npt.NDArray[np.float64], slack: float | npt.NDArray[np.float64], heaviest: float | Longs
) -> npt.NDArray[np.float64]:
    """Return how much a partition may hold whose even share is ``share``; ``heaviest``: the weight of one vertex."""
    room = np.maximum(share * (1 + slack), np.ceil(share))
    most: npt.NDArray[np.float64] = np.maximum(room, heaviest)
    return most


def weight_column(graph: Graph, name: str, in_degrees: Mapping[str, Longs] | None = None) -> Longs:
    """A column of ``constraints``, also one of zeros: int64 [N]."""
    schema = graph.schema
    weights = {t: np.zeros(n, np.int64) for t, n in schema.node_counts.items()}
    if name == "nodes":
        weights = {t: np.ones(n, np.int64) for t, n in schema.node_counts.items()}
    elif name == "edges" and in_degrees is not None:
        weights = dict(in_degrees)
    elif name == "edges":
        for edge_type in schema.edge_types:
            target = schema.endpoints(edge_type)[1]
            _native.count_ids(graph.edges(edge_type).dst, weights[target])
    else:
        for node_type, splits in schema.splits.items():
            if name in splits:
                weights[node_type][graph.split(node_type, name)] = 1
    return np.concatenate([weights[t] for t in schema.node_counts])


def _type_columns(graph: Graph) -> list[Longs]:
    counts = graph.schema.node_counts
    return [np.concatenate([np.full(n, int(t == mine), np.int64) for t, n in counts.items()]) for mine in counts]


ROUNDING = 1e-9

PerPart = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """What each partition holds; every array is int64 [P]: core vertices, edges, vertices of the splits and HALO
    vertices by type, edges with a source in another partition (``cut``), and the greatest in-degree of a vertex over
    all edge types."""

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


def summarise(counts: Counts, bounds: Mapping[str, float]) -> dict[str, Any]:
    """Return the ``quality`` of a manifest. ``edge_cut``: share of the edges with a source in another partition.
    ``halo_ratio``: HALO vertices per core vertex. ``balance``: maximum / mean over the partitions. ``bounds``: what the
    method promised. ``missed``: the bounds that are not kept: what is balanced, the fullest partition, what it holds,
    may hold, and an even share."""
    nodes, edges = _total(counts.nodes, counts.cut), _total(counts.edges, counts.cut)
    halo = _total(counts.halo, counts.cut)
    splits: dict[str, PerPart] = {}
    for per_type in counts.splits.values():
        for name, sizes in per_type.items():
            splits[name] = splits.get(name, np.zeros_like(sizes)) + sizes
    held = {"nodes": nodes, "edges": edges, **splits}
    return {
        "edge_cut": float(counts.cut.sum() / max(1, edges.sum())),
        "cut_edges": int(counts.cut.sum()),
        "halo_ratio": float(halo.sum() / max(1, nodes.sum())),
        "balance": {name: balance(held[name]) for name in ("nodes", "edges", *sorted(splits))},
        "bounds": dict(bounds),
        "missed": _missed(counts, held, bounds),
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
