"""A file with a PyG ``Data`` or ``HeteroData`` object, written by ``torch.save``; user ids are the tensor ``n_id``. Tensors
share the memory-mapped arrays of the graph folder, so memory holds only edge indices and masks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.packages import load
from atta.observe.progress import Progress
from atta.partition.exporters.common import lost_edge_types, lost_tables, split_mask, tensor_of, torch_holds
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, Graph
from atta.partition.importers.pyg import edge_table, node_table
from atta.partition.names import split_edge_type
from atta.partition.schema import Schema

MARKER: str | None = None


def lost(graph: Graph) -> list[str]:
    """Name tables whose dtype torch lacks, or whose name or shape the importer would read as something else."""
    _modules()
    shared = not graph.schema.typed

    def of_nodes(name: str) -> bool:
        return node_table(name, shared=shared) == name and not _taken_for_edges(graph.schema, name)

    masks = [name for names in graph.schema.splits.values() for name in names if _taken_for_edges(graph.schema, name)]
    return (
        [f"the split {name!r}" for name in masks]
        + lost_edge_types(graph.schema)
        + lost_tables(
            graph.schema,
            # The importer reads a column of labels [n, 1] as labels [n].
            lambda _, name, spec: torch_holds(spec) and of_nodes(name) and not (name == "y" and spec.row_shape == (1,)),
            lambda _, name, spec: torch_holds(spec) and edge_table(_edge_key(name, shared), shared=shared) == name,
        )
    )


def _taken_for_edges(schema: Schema, name: str) -> bool:
    return not schema.typed and "edge" in name and schema.node_counts[NODE_TYPE] == schema.edge_counts[EDGE_TYPE]


def _edge_key(table: str, shared: bool) -> str:
    if table in ("weight", "edge_attr"):
        return "edge_weight" if table == "weight" else table
    return f"edge_{table}" if shared else table


def write(graph: Graph, dst: Path, progress: Progress) -> None:
    """Write the file ``dst``."""
    torch, pyg_data = _modules()
    schema = graph.schema
    shared = not schema.typed
    data = pyg_data.Data() if shared else pyg_data.HeteroData()
    progress.stage("nodes", sum(schema.node_counts.values()))
    for t in schema.node_types:  # before the edges: PyG takes an unknown node type for a relation of that name
        _add_nodes(graph, t, data if shared else _store(data, t))
        progress.advance(schema.node_counts[t])
    progress.stage("edges", sum(schema.edge_counts.values()))
    for edge_type, count in schema.edge_counts.items():
        store = data if shared else _store(data, split_edge_type(edge_type))
        edges = graph.edges(edge_type)
        store["edge_index"] = tensor_of(np.array([edges.src, edges.dst], np.int64))
        for name, rows in edges.tables.items():
            store[_edge_key(name, shared)] = tensor_of(rows)
        progress.advance(count)
    if schema.num_classes is not None:
        data.num_classes = schema.num_classes
    torch.save(data, dst)


def _add_nodes(graph: Graph, node_type: str, store: Any) -> None:
    count = graph.schema.node_counts[node_type]
    store["num_nodes"] = count
    for name in graph.schema.node_tables[node_type]:
        store[name] = tensor_of(graph.table(node_type, name))
    for name in graph.schema.splits[node_type]:
        store[f"{name}_mask"] = tensor_of(split_mask(graph.split(node_type, name), 0, count))
    if (ids := graph.user_ids(node_type)) is not None:
        store["n_id"] = tensor_of(ids)


def _store(data: Any, of_type: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There exist type names", UserWarning)  # with "__": they are the user's own
        return data[of_type]


def _modules() -> tuple[Any, Any]:
    torch = load("exporting PyG files", "torch", "torch_geometric.data")
    return torch, load("exporting PyG files", "torch_geometric.data")
