"""A ``.bin`` file of one graph that ``dgl.save_graphs`` wrote, or the ``NAME.json`` of DistDGL's partitions (``dgl_parts.py``).

Tensors ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits, others tables of their own name. Distinct numbers
``ndata["_ID"]`` are the user ids.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.observe.extras import load
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.common import add_features
from atta.partition.importers.reading.edges import add_edges
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import as_mask, offered_ids, state_classes
from atta.partition.schema import is_table_name

__all__ = ["TypeNames", "add_tensor", "arrays", "edge_tensor", "node_table", "read", "require_dgl"]

Array = npt.NDArray[Any]
_TABLES = {"feat": "x", "label": "y", "labels": "y"}
_SCALARS = ("weight", "time")
_NO_NAME = "tables cannot have this name"


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph (``.bin``) or the partition configuration ``source``."""
    dgl = require_dgl("importing DGL's graphs")
    if source.suffix == ".bin":
        _read_file(dgl, source, out, options)
    else:
        from atta.partition.importers.dgl_parts import read_parts

        read_parts(source, out, options)


def node_table(name: str) -> str | None:
    """Return the node table that the tensor ``name`` of a graph is read as."""
    if name.endswith("_mask"):
        return None
    table = _TABLES.get(name, name)
    return table if is_table_name(table) else None


class TypeNames:
    """Atta's names of DGL's types, by DGL's names (``"a:r:b"`` for edges) and in the order of their numbers."""

    def __init__(self, path: Path, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
        """Raise DataError naming ``path`` where the types are not those of a graph."""
        try:
            self._name(node_types, edge_types)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise DataError(path, f"its types are not readable: {error}") from None

    def _name(self, node_types: Mapping[str, int], edge_types: Mapping[str, int]) -> None:
        single = len(node_types) == 1
        self.nodes = {
            t: NODE_TYPE if single and t == "_N" else t for t in sorted(node_types, key=lambda t: node_types[t])
        }
        self.edges = {}
        for key in sorted(edge_types, key=lambda e: edge_types[e]):
            source, relation, target = key.split(":")
            plain = single and relation == "_E"
            self.edges[key] = EDGE_TYPE if plain else f"{self.nodes[source]}__{relation}__{self.nodes[target]}"


def _read_file(dgl: Any, source: Path, out: GraphWriter, options: ImportOptions) -> None:
    graph, labels = _load_file(dgl, source)
    names = TypeNames(
        source,
        {t: number for number, t in enumerate(graph.ntypes)},
        {":".join(e): number for number, e in enumerate(graph.canonical_etypes)},
    )
    for theirs, node_type in names.nodes.items():
        count, frame = graph.num_nodes(theirs), arrays(source, graph.nodes[theirs].data, options)
        out.add_nodes(node_type, count, ids=offered_ids(source, "_ID", frame.pop("_ID", None), count, options))
        for name, rows in frame.items():
            add_tensor(source, out, node_type, name, rows, options=options)
    state_classes(out, int(labels["num_classes"][0]) if "num_classes" in labels else None)
    for name in labels.keys() - {"num_classes"}:
        options.refuse(source, name, "it is a tensor of the whole graph")
    for key, edge_type in names.edges.items():
        relation = tuple(key.split(":"))
        src, dst = (rows.numpy() for rows in graph.edges(etype=relation, order="eid"))
        tables = {}
        for name, rows in arrays(source, graph.edges[relation].data, options).items():
            if name == "_ID" and np.array_equal(rows, np.arange(len(src))):
                continue  # what the positions say already
            if (values := edge_tensor(source, name, rows, options)) is not None:
                tables[name] = values
        add_edges(out, edge_type, (src, dst), options, tables)


def arrays(source: Path, frame: Mapping[str, Any], options: ImportOptions) -> dict[str, Array]:
    """Return the tensors of a frame as numpy arrays; those of types that numpy lacks are refused."""
    found = {}
    for name, rows in frame.items():
        try:
            found[str(name)] = rows.numpy()
        except (TypeError, RuntimeError):
            options.refuse(source, name, f"there are no tables of {rows.dtype}")
    return found


def add_tensor(
    where: Path, out: GraphWriter, node_type: str, name: str, rows: Array, *, options: ImportOptions
) -> None:
    """Write the tensor ``name`` of a node type as a table or as splits."""
    table = node_table(name)
    if name.endswith("_mask"):
        split, mask = name.removesuffix("_mask"), as_mask(where, f"{name!r} of {node_type!r}", rows)
        columns = {split: mask} if mask.ndim == 1 else {f"{split}_{i}": mask[:, i] for i in range(mask.shape[1])}
        for column, chosen in columns.items():
            out.add_split(column, chosen, node_type)
    elif table == "x":
        add_features(out, rows, node_type, options)
    elif table == "y":
        out.add_labels(rows, node_type)
    elif table is not None:
        out.add_table(table, rows, node_type)
    else:
        options.refuse(where, name, _NO_NAME)


def edge_tensor(where: Path, name: str, rows: Array, options: ImportOptions) -> Array | None:
    """Return the rows of an edge table, None for a tensor that is left out; a weight or time in a column becomes a vector."""
    if not is_table_name(name):
        options.refuse(where, name, _NO_NAME if name != "_ID" else "edges are identified by their positions")
        return None
    return rows.reshape(-1) if name in _SCALARS and rows.size == len(rows) else rows


def _load_file(dgl: Any, path: Path) -> tuple[Any, Mapping[str, Any]]:
    try:
        graphs, labels = dgl.load_graphs(str(path))
    except Exception as error:  # DGL's own errors have no common base, and their messages are stack traces
        raise DataError(path, f"not readable by dgl.load_graphs: {str(error).splitlines()[0]}") from None
    if len(graphs) != 1:
        raise DataError(path, f"holds {len(graphs)} graphs; only single graphs are imported")
    return graphs[0], labels


def require_dgl(what: str) -> Any:
    """Import DGL; raises ConfigError naming the extra that ``what`` needs."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    return load(what, "dgl", "torch")
