"""A file of one graph, written by ``dgl.save_graphs``: features ``feat``, labels ``label``, masks of splits, user ids
``_ID``. Tensors share the memory-mapped arrays of the graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.packages import load
from atta.observe.progress import Progress
from atta.partition.exporters.common import lost_edge_types, lost_tables, split_mask, tensor_of
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, Graph
from atta.partition.importers.reading.dgl_tensors import require_dgl, table_names
from atta.partition.names import split_edge_type
from atta.partition.schema import TableSpec

MARKER: str | None = None
_KEYS = {"x": "feat", "y": "label"}


def lost(graph: Graph) -> list[str]:
    """Name tables whose dtype DGL's files lack, or whose name the importer would read as something else."""
    _modules()
    return lost_edge_types(graph.schema) + lost_tables(
        graph.schema,
        lambda t, name, spec: _held(spec) and _returns(graph.schema.node_tables[t], name),
        lambda _, name, spec: _held(spec),
    )


def _returns(specs: Mapping[str, TableSpec], name: str) -> bool:
    keys = {_KEYS.get(table, table): np.dtype(spec.dtype) for table, spec in specs.items()}
    return len(keys) == len(specs) and table_names(keys).get(_KEYS.get(name, name)) == name


def _held(spec: TableSpec) -> bool:
    """Whether DGL keeps the dtype. It writes truth values as uint8, and has no tensors of long doubles."""
    dtype = np.dtype(spec.dtype)
    return dtype.kind != "b" and dtype.itemsize <= 8


def write(graph: Graph, dst: Path, progress: Progress) -> None:
    """Write the file ``dst``."""
    torch, dgl = _modules()
    schema = graph.schema
    plain = not schema.typed
    progress.stage("edges", sum(schema.edge_counts.values()))
    ends = {}
    for edge_type, count in schema.edge_counts.items():
        edges = graph.edges(edge_type)
        ends[split_edge_type(edge_type)] = tuple(tensor_of(np.asarray(r, np.int64)) for r in (edges.src, edges.dst))
        progress.advance(count)
    if plain:
        whole = dgl.graph(ends[split_edge_type(EDGE_TYPE)], num_nodes=schema.node_counts[NODE_TYPE])
    else:
        whole = dgl.heterograph(ends, num_nodes_dict=schema.node_counts)
    progress.stage("nodes", sum(schema.node_counts.values()))
    for t, count in schema.node_counts.items():
        _add_nodes(graph, t, whole.nodes["_N" if plain else t].data)
        progress.advance(count)
    for e in schema.edge_types:
        frame = whole.edges["_E" if plain else split_edge_type(e)].data
        for name, rows in graph.edges(e).tables.items():
            frame[name] = tensor_of(rows)
    labels = {} if schema.num_classes is None else {"num_classes": torch.tensor([schema.num_classes])}
    dgl.save_graphs(str(dst), [whole], labels)


def _add_nodes(graph: Graph, node_type: str, frame: Any) -> None:
    for name in graph.schema.node_tables[node_type]:
        frame[_KEYS.get(name, name)] = tensor_of(graph.table(node_type, name))
    for name in graph.schema.splits[node_type]:
        mask = split_mask(graph.split(node_type, name), 0, graph.schema.node_counts[node_type])
        frame[f"{name}_mask"] = tensor_of(mask)
    if (ids := graph.user_ids(node_type)) is not None:
        frame["_ID"] = tensor_of(ids)


def _modules() -> tuple[Any, Any]:
    return load("exporting DGL files", "torch"), require_dgl("exporting DGL files")
