"""Which edges a batch has among its vertices: PyG's ``subgraph_type``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from atta.errors import ConfigError, known_name
from atta.partition.names import reverse_relation, split_edge_type
from atta.partition.schema import Schema

SUBGRAPHS = ("directional", "induced", "bidirectional")
EDGE_ORDERS = ("source", "file")
"""By what the edges into a vertex stand: the ids of their sources, or their own."""
_EDGE_ARRAYS = ("row", "col", "e_id", "edge_weight")


def subgraph_name(given: Any) -> str:
    """One of ``SUBGRAPHS`` from its name or PyG's ``SubgraphType``; raises UnknownNameError."""
    return known_name("subgraph type", str(getattr(given, "value", given)), SUBGRAPHS)


def reverse_types(schema: Schema, edge_type: str) -> list[str]:
    """Which types may hold the reverses of a type's edges, as PyG finds them: ``rev_<relation>``, or a relation of the same
    name; else the same type between vertices of one type, else all types in the other direction."""
    source, relation, target = split_edge_type(edge_type)
    others = [e for e in schema.edge_types if e != edge_type and schema.endpoints(e) == (target, source)]
    named = [e for e in others if e == reverse_relation(edge_type) or reverse_relation(e) == edge_type]
    named = named or [e for e in others if split_edge_type(e)[1] == relation]
    return named[:1] or ([edge_type] if source == target else others)


def reverses_of(schema: Schema) -> dict[str, str]:
    """The type of each edge type's reverses. Types without one, or with several, are left out, with a warning."""
    found = {}
    for edge_type in schema.edge_types:
        if len(able := reverse_types(schema, edge_type)) == 1:
            found[edge_type] = able[0]
        else:
            warnings.warn(
                f"bidirectional: {edge_type} has {len(able)} types of reverses, it stays as it is", stacklevel=2
            )
    return found


def check_rows(reverses: Mapping[str, str], edge_tables: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError for an edge table (edge type, name) that has no rows for reverses."""
    for edge_type, name in edge_tables:
        if reverses.get(edge_type, edge_type) != edge_type:
            raise ConfigError(
                f"edge_tables: reverses of {edge_type} are edges of {reverses[edge_type]}, without rows of {name!r}; leave "
                "it out, or take subgraph_type='directional' or 'induced'"
            )


def with_reverses(arrays: Mapping[str, np.ndarray], reverses: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a batch with the reverse of every edge beside it, each pair of ends once, by target and source.

    A reverse has the edge id and the rows of edge tables of the edge that it reverses, if both are of one type. Edges of
    types with reverses of another type have none, as in PyG.
    """
    out = dict(arrays)
    for edge_type, reverse in reverses.items():
        own, other = _ends(arrays, edge_type), _ends(arrays, reverse)
        if f"row/{edge_type}" not in arrays and not other.size:
            continue
        ends = np.concatenate([own, other[::-1]], axis=1)
        width = 1 + int(ends.max(initial=0))
        _, chosen = np.unique(ends[1].astype(np.int64) * width + ends[0], return_index=True)
        out[f"row/{edge_type}"], out[f"col/{edge_type}"] = np.ascontiguousarray(ends[:, chosen])
        out[f"hops/{edge_type}"] = np.array([len(chosen)])
        tables = [name for name in arrays if name.rpartition("/")[0] == f"edge/{edge_type}"]  # no table has a "/"
        for name in (f"e_id/{edge_type}", *tables):
            if reverse != edge_type:
                out.pop(name, None)
            elif name in arrays:
                out[name] = np.concatenate([arrays[name]] * 2)[chosen]
    return out


def in_file_order(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a batch with the edges into each vertex by their ids, which ascend in the user's file. The edges of a hop
    stay together."""
    out = dict(arrays)
    for edge_type in [name.removeprefix("e_id/") for name in arrays if name.startswith("e_id/")]:
        counts = arrays[f"hops/{edge_type}"]
        hop = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((arrays[f"e_id/{edge_type}"], arrays[f"col/{edge_type}"], hop))
        owned = {f"{kind}/{edge_type}" for kind in _EDGE_ARRAYS}
        for name in arrays:
            if name in owned or name.rpartition("/")[0] == f"edge/{edge_type}":
                out[name] = arrays[name][order]
    return out


def _ends(arrays: Mapping[str, np.ndarray], edge_type: str) -> np.ndarray:
    if f"row/{edge_type}" not in arrays:
        return np.empty((2, 0), np.int64)
    return np.stack([arrays[f"row/{edge_type}"], arrays[f"col/{edge_type}"]])
