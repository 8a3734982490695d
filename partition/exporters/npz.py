"""The neutral npz layout: a folder of plain numpy files, as ``importers/npz.py`` describes it."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from atta.observe.progress import Progress
from atta.partition.disk.files import NpyAppender, write_json
from atta.partition.exporters.common import lost_edge_types, lost_tables, row_chunks, split_mask
from atta.partition.graph import NODE_TYPE, Graph
from atta.partition.importers.npz import edge_array
from atta.partition.importers.reading.source import Array
from atta.partition.names import file_name, node_folder
from atta.partition.schema import Schema

MARKER: str | None = "graph.npz"
_EDGE_NAMES = {"weight": "edge_weight", "time": "time", "edge_attr": "edge_attr"}
_MASK_FILES = ("train", "val", "test")


def lost(graph: Graph) -> list[str]:
    """Name what the layout lacks: tables besides x and y, labels of a second type, edge tables of several edge
    types."""
    schema = graph.schema
    single = len(schema.edge_types) == 1
    found = lost_edge_types(schema) + lost_tables(
        schema, lambda _, name, spec: name in ("x", "y"), lambda _, name, spec: single and name in _EDGE_NAMES
    )
    first, *others = _labelled(schema) or [""]
    return found + [f"labels and splits of {t!r} besides those of {first!r}" for t in others]


def _labelled(schema: Schema) -> list[str]:
    return [t for t in schema.node_types if "y" in schema.node_tables[t] or schema.splits[t]]


def write(graph: Graph, dst: Path, progress: Progress) -> None:
    """Write the folder ``dst``; arrays are copied file by file or chunk by chunk."""
    schema = graph.schema
    progress.stage("nodes", sum(schema.node_counts.values()))
    for t in schema.node_types:
        for name in ("ids", *schema.node_tables[t]):
            if (path := graph.path / node_folder(t) / f"{name}.npy").exists():
                single = name == "y" or t == NODE_TYPE
                shutil.copyfile(path, dst / (f"{name}.npy" if single else file_name(t, ".npy", prefix=f"{name}__")))
        progress.advance(schema.node_counts[t])
    target = _labelled(schema)
    if target:
        _write_splits(graph, target[0], dst)
    _write_edges(graph, dst, progress)
    meta: dict[str, Any] = {
        "num_nodes": sum(schema.node_counts.values()),
        "node_types": dict(schema.node_counts),
        "relations": {e: {"edges": n} for e, n in schema.edge_counts.items()},
    }
    if target:
        meta["target_type"] = target[0]
    if schema.num_classes is not None:
        meta["num_classes"] = schema.num_classes
    write_json(dst / "meta.json", meta)


def _write_splits(graph: Graph, target: str, dst: Path) -> None:
    count = graph.schema.node_counts[target]
    others = []
    for name in graph.schema.splits[target]:
        if name not in _MASK_FILES:
            others.append(name)
            continue
        rows = graph.split(target, name)
        with NpyAppender(dst / f"{name}_mask.npy", np.bool_) as out:
            for lo, hi in row_chunks(count):
                out.append(split_mask(rows, lo, hi))
    if others:
        with zipfile.ZipFile(dst / "split.npz", "w") as archive:
            for name in others:
                rows = graph.split(target, name)
                masks = (split_mask(rows, lo, hi) for lo, hi in row_chunks(count))
                _write_member(archive, f"{name}_mask", (count,), np.dtype(np.bool_), masks)


def _write_edges(graph: Graph, dst: Path, progress: Progress) -> None:
    with zipfile.ZipFile(dst / "graph.npz", "w") as archive:
        for edge_type in graph.schema.edge_types:
            edges = graph.edges(edge_type)
            progress.stage(f"edges {edge_type}", len(edges))
            name = "edge_index" if not graph.schema.typed else edge_array(edge_type)
            dtype = np.result_type(edges.src.dtype, edges.dst.dtype)
            ends = (rows[lo:hi] for rows in (edges.src, edges.dst) for lo, hi in row_chunks(len(edges)))
            _write_member(archive, name, (2, len(edges)), dtype, ends)
            for table, values in edges.tables.items():
                rows = (values[lo:hi] for lo, hi in row_chunks(len(edges), values))
                _write_member(archive, _EDGE_NAMES[table], values.shape, values.dtype, rows)
            progress.advance(len(edges))


def _write_member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], pieces: Iterable[Array]
) -> None:
    """Write one array of an npz archive piece by piece; ``np.savez`` needs it whole."""
    descr = np.lib.format.dtype_to_descr(dtype)
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as out:
        np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
        for piece in pieces:
            out.write(piece.astype(dtype, copy=False).tobytes())
