"""A ``.bin`` file of one graph that ``dgl.save_graphs`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.tensors import TypeNames, add_tensor, arrays, edge_tensor, table_names
from atta.partition.importers.reading.edges import add_edges
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import offered_ids, state_classes

__all__ = ["read_file"]


def read_file(dgl: Any, source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph ``source``; ``dgl`` is the package."""
    graph, labels = _load_file(dgl, source)
    names = TypeNames(
        source,
        {t: number for number, t in enumerate(graph.ntypes)},
        {":".join(e): number for number, e in enumerate(graph.canonical_etypes)},
    )
    for theirs, node_type in names.nodes.items():
        count, frame = graph.num_nodes(theirs), arrays(source, graph.nodes[theirs].data, options)
        out.add_nodes(node_type, count, ids=offered_ids(source, "_ID", frame.pop("_ID", None), count, options))
        tables = table_names({name: rows.dtype for name, rows in frame.items()})
        for name, rows in frame.items():
            add_tensor(source, out, node_type, name, rows, tables.get(name), options=options)
    state_classes(out, int(labels["num_classes"][0]) if "num_classes" in labels else None)
    for name in labels.keys() - {"num_classes"}:
        options.refuse(source, name, "it is a tensor of the whole graph")
    for key, edge_type in names.edges.items():
        relation = tuple(key.split(":"))
        src, dst = (rows.numpy() for rows in graph.edges(etype=relation, order="eid"))
        columns = {}
        for name, rows in arrays(source, graph.edges[relation].data, options).items():
            if name == "_ID" and np.array_equal(rows, np.arange(len(src))):
                continue  # the positions are these numbers already
            if (values := edge_tensor(source, name, rows, options)) is not None:
                columns[name] = values
        add_edges(out, edge_type, (src, dst), options, columns)


def _load_file(dgl: Any, path: Path) -> tuple[Any, Mapping[str, Any]]:
    try:
        graphs, labels = dgl.load_graphs(str(path))
    except Exception as error:  # DGL's own errors have no common base, and their messages are stack traces
        raise DataError(path, f"not readable by dgl.load_graphs: {str(error).splitlines()[0]}") from None
    if len(graphs) != 1:
        raise DataError(path, f"holds {len(graphs)} graphs; only single graphs are imported")
    return graphs[0], labels
