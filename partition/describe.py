"""Describe a graph folder or a partitioned dataset after verifying it: plain numbers for tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError, near_path
from atta.partition import dataset as dataset_files
from atta.partition import graph as graph_files
from atta.partition.cutting.balance import Counts, summarise
from atta.partition.dataset import Dataset
from atta.partition.disk.files import FileRecord, chunks
from atta.partition.disk.store import path_here
from atta.partition.graph import Graph
from atta.partition.importers import refuse_unimported
from atta.partition.schema import Schema

_CHUNK_EDGES = 16 << 20


def describe(path: str | Path, parts: Sequence[int] | None = None) -> dict[str, Any]:
    """Verify all checksums of a graph folder or a dataset, of which ``parts`` (None: all) lie on this machine, and
    describe it: ``kind`` ("graph" or "dataset"), sizes, tables and splits. Datasets also have ``quality``, which is
    measured anew if all partitions are here, and ``parts`` with ``disk_bytes`` and ``memory_bytes`` of each, without
    caches. Raises DataError: something is missing or altered; ConfigError: ``path`` is a URL."""
    path = path_here(path, "inspect")
    if (path / dataset_files.MANIFEST).exists():
        return _describe_dataset(Dataset.open(path, parts=parts), parts)
    if not path.exists():
        raise DataError(path, f"no such folder{near_path(path)}")
    if (path / graph_files.MANIFEST).exists():
        graph = Graph.open(path)
        return {"schema": 1, "kind": "graph", **_common(graph.path, graph.schema, graph.files, graph.provenance)}
    refuse_unimported(path)
    raise DataError(path, f"holds neither {graph_files.MANIFEST} nor {dataset_files.MANIFEST}")


def _describe_dataset(dataset: Dataset, parts: Sequence[int] | None) -> dict[str, Any]:
    quality = dataset.quality
    if parts is None:
        quality = summarise(measure(dataset), dataset.quality.get("bounds") or {})
        if quality != dataset.quality:
            raise DataError(dataset.path / dataset_files.MANIFEST, "altered: its quality figures do not fit its files")
    return {
        "schema": 1,
        "kind": "dataset",
        "dataset_id": dataset.dataset_id,
        "num_parts": dataset.num_parts,
        **_common(dataset.path, dataset.schema, dataset.files, dataset.provenance),
        "quality": quality,
        "parts": [_part_size(dataset, index) for index in range(dataset.num_parts)],
    }


def _part_size(dataset: Dataset, index: int) -> dict[str, int]:
    """``disk_bytes``: the part's own files. ``memory_bytes``: all arrays that its daemon holds or maps, including the
    shared arrays."""
    own = [r for name, r in dataset.files.items() if name.startswith(f"{dataset_files.part_folder(index)}/")]
    shared = [r for name, r in dataset.files.items() if name.startswith("shared/")]
    arrays = sum(np.dtype(r.dtype).itemsize * prod(r.shape) for r in (*own, *shared))
    return {"disk_bytes": sum(r.size for r in own), "memory_bytes": arrays}


def _common(path: Path, schema: Schema, files: dict[str, FileRecord], provenance: dict[str, Any]) -> dict[str, Any]:
    return {
        "path": str(path),
        "files": len(files),
        "bytes": sum(record.size for record in files.values()),
        **schema.to_json(),
        "provenance": provenance,
    }


def measure(dataset: Dataset) -> Counts:
    """Count what every partition holds, from the files themselves; all partitions must be on this machine."""
    schema, book = dataset.schema, dataset.book
    counts = Counts.zero(schema, dataset.num_parts)
    for t in schema.node_types:
        counts.nodes[t][:] = np.diff(book.offsets[t])
        for name in schema.splits[t]:
            counts.splits[t][name][:] = np.diff(np.searchsorted(dataset.split(t, name), book.offsets[t]))
    for index in range(dataset.num_parts):
        part, degrees = dataset.part(index), {t: np.zeros(1, np.int64) for t in schema.node_types}
        for t in schema.node_types:
            counts.halo[t][index] = len(part.halo(t))
        for e in schema.edge_types:
            source, target = schema.endpoints(e)
            indices = part.csc(e).indices
            degrees[target] = degrees[target] + np.diff(part.csc(e).indptr)
            lo, hi = book.range(source, index)
            counts.edges[e][index] = len(indices)
            for first, last in chunks(len(indices), _CHUNK_EDGES):
                block = indices[first:last]
                counts.cut[index] += np.count_nonzero((block < lo) | (block >= hi))
        counts.most_into[index] = max((int(d.max(initial=0)) for d in degrees.values()), default=0)
    return counts


def degree_counts(path: str | Path, parts: Sequence[int] | None = None) -> dict[str, npt.NDArray[np.int64]]:
    """By node type how many vertices have each in-degree, over all edge types: int64 [highest degree + 1]. Of a dataset,
    the vertices of ``parts``; nothing is verified."""
    if not (path_here(path, "inspect") / dataset_files.MANIFEST).exists():
        graph = Graph.open(path, verify=False)
        into = {t: np.zeros(graph.schema.node_counts[t], np.int64) for t in graph.schema.node_types}
        for e in graph.schema.edge_types:
            targets, degrees = graph.edges(e).dst, into[graph.schema.endpoints(e)[1]]
            for first, last in chunks(len(targets), _CHUNK_EDGES):
                degrees += np.bincount(targets[first:last], minlength=len(degrees))
        return {t: np.bincount(degrees) for t, degrees in into.items()}
    dataset = Dataset.open(path, parts=parts, verify=False)
    found: dict[str, list[npt.NDArray[np.int64]]] = {t: [] for t in dataset.schema.node_types}
    for part in map(dataset.part, range(dataset.num_parts) if parts is None else parts):
        of = {t: np.zeros(part.num_core(t), np.int64) for t in found}
        for e in dataset.schema.edge_types:
            of[dataset.schema.endpoints(e)[1]] += np.diff(part.csc(e).indptr)
        for t, degrees in of.items():
            found[t].append(degrees)
    return {t: np.bincount(np.concatenate(degrees)) for t, degrees in found.items()}
