"""A folder as PyG's ``Partitioner`` writes it, from a partitioned dataset, for ``torch_geometric.distributed``. Vertices keep
the users' ids, which must be 0 to n-1 because PyG looks them up in arrays; edges keep theirs. Labels and masks of splits are
features ``y`` and ``NAME_mask`` beside ``x``. One part is in memory at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import ConfigError
from atta.observe.packages import load
from atta.observe.progress import Progress
from atta.partition.dataset import Dataset
from atta.partition.exporters.common import lost_tables, torch_holds
from atta.partition.graph import EDGE_TYPE, NODE_TYPE
from atta.partition.importers.pyg_parts import map_file
from atta.partition.importers.reading.source import Array
from atta.partition.names import split_edge_type

MARKER = "META.json"


def lost(dataset: Dataset) -> list[str]:
    """Name what PyG's partitions cannot hold: ids that are not positions, and dtypes that torch lacks."""
    _torch()
    schema, found = dataset.schema, []
    for t in schema.node_types:
        ids = np.sort(dataset.ids(t))
        if not np.array_equal(ids, np.arange(len(ids))):
            found.append(f"the users' ids of node type {t!r}, which are not 0 to {len(ids) - 1}")
    files: dict[str, str] = {}
    for kind, owner, key in [
        *(("node_map", t, t) for t in schema.node_types),
        *(("edge_map", e, split_edge_type(e)) for e in schema.edge_types),
    ]:
        try:
            if files.setdefault(map_file(kind, key), owner) != owner:
                found.append(f"the type {owner!r}, whose file PyG would call as that of {files[map_file(kind, key)]!r}")
        except ConfigError as error:
            found.append(str(error))
    return found + lost_tables(schema, lambda _, name, spec: torch_holds(spec), lambda _, name, spec: torch_holds(spec))


def write(dataset: Dataset, dst: Path, progress: Progress) -> None:
    """Write the folder ``dst``, part after part."""
    schema, single = dataset.schema, not dataset.schema.typed
    progress.stage("parts", dataset.num_parts)
    starts = dict(zip(schema.edge_types, np.cumsum([0, *schema.edge_counts.values()]).tolist(), strict=False))
    owners = {e: np.zeros(n, np.int64) for e, n in schema.edge_counts.items()}
    for part in range(dataset.num_parts):
        folder = dst / f"part_{part}"
        folder.mkdir()
        nodes = {t: _nodes(dataset, part, t) for t in schema.node_types}
        edges = {e: _edges(dataset, part, e) for e in schema.edge_types}
        for e, (graph, _) in edges.items():
            owners[e][graph["edge_id"].numpy()] = part
            graph["edge_id"] += 0 if single else starts[e]  # PyG numbers the edges of all types together
        _save(folder / "node_feats.pt", nodes[NODE_TYPE] if single else nodes)
        for name, index in (("graph.pt", 0), ("edge_feats.pt", 1)):
            values = {split_edge_type(e): found[index] for e, found in edges.items()}
            _save(folder / name, values[split_edge_type(EDGE_TYPE)] if single else values)
        progress.advance(1)
    for t in schema.node_types:
        parts = np.empty(schema.node_counts[t], np.int64)
        parts[dataset.ids(t)] = np.repeat(np.arange(dataset.num_parts), np.diff(dataset.book.offsets[t]))
        _save(dst / map_file("node_map", None if single else t), _tensor(parts))
    for e, parts in owners.items():
        _save(dst / map_file("edge_map", None if single else split_edge_type(e)), _tensor(parts))
    offsets = np.cumsum([0, *schema.node_counts.values()])[:-1].tolist()
    meta = {
        "num_parts": dataset.num_parts,
        "node_types": None if single else list(schema.node_types),
        "edge_types": None if single else [list(split_edge_type(e)) for e in schema.edge_types],
        "node_offset": None if single else offsets,
        "is_hetero": not single,
        "is_sorted": True,
    }
    (dst / MARKER).write_text(json.dumps(meta) + "\n")


def _nodes(dataset: Dataset, part: int, node_type: str) -> dict[str, Any]:
    lo, hi = dataset.book.range(node_type, part)
    ids = np.array(dataset.ids(node_type)[lo:hi], dtype=np.int64)
    feats = {name: _tensor(dataset.part(part).table(node_type, name)) for name in dataset.schema.node_tables[node_type]}
    for split in dataset.schema.splits[node_type]:
        feats[f"{split}_mask"] = _tensor(np.isin(np.arange(lo, hi), dataset.split(node_type, split)))
    return {"global_id": _tensor(ids), "id": _tensor(ids), "feats": feats}


def _edges(dataset: Dataset, part: int, edge_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    schema, shard = dataset.schema, dataset.part(part)
    source, target = schema.endpoints(edge_type)
    lo, hi = dataset.book.range(target, part)
    csc = shard.csc(edge_type)
    cols = np.repeat(np.asarray(dataset.ids(target)[lo:hi]), np.diff(csc.indptr))
    order = np.argsort(cols, kind="stable")
    ids = np.asarray(csc.edge_ids)[order].astype(np.int64)
    graph = {
        "edge_id": _tensor(ids),
        "row": _tensor(np.asarray(dataset.ids(source))[np.asarray(csc.indices)[order]]),
        "col": _tensor(cols[order]),
        "size": (schema.node_counts[source], schema.node_counts[target]),
    }
    tables = {name: np.asarray(shard.edge_table(edge_type, name))[order] for name in schema.edge_tables[edge_type]}
    features: dict[str, Any] = {"global_id": _tensor(ids)} if tables else {}
    if "time" in tables:
        features["edge_time"] = _tensor(tables.pop("time"))
    if tables:
        features["feats"] = {name: _tensor(rows) for name, rows in tables.items()}
    return graph, features


def _tensor(array: Array) -> Any:
    return _torch().from_numpy(np.array(array))  # a copy, because torch needs writable memory


def _save(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _torch().save(value, path)


def _torch() -> Any:
    return load("exporting PyG's partitions", "torch")
