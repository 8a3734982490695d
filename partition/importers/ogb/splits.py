"""The folder ``split/`` and the file ``meta_dict.pt`` of OGB's data sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError
from atta.partition.graph import NODE_TYPE, GraphWriter
from atta.partition.importers.ogb.text import marked_types
from atta.partition.importers.reading.inert_pickle import load_inert
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import csv_rows

__all__ = ["Meta", "add_splits", "read_meta"]

_SPLITS = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class Meta:
    """What ``meta_dict.pt`` says.

    Attributes:
        num_classes: number of classes; None: it does not say.
        add_inverse_edge: whether the reverse of each edge belongs to the graph.
    """

    num_classes: int | None = None
    add_inverse_edge: bool = False


def read_meta(folder: Path, options: ImportOptions) -> Meta:
    """Read the ``meta_dict.pt`` in the folder or beside it, if there is one; raises DataError."""
    path = next((p for p in (folder / "meta_dict.pt", folder.parent / "meta_dict.pt") if p.exists()), None)
    if path is None:
        return Meta()
    said = load_inert(path)
    if not isinstance(said, Mapping):
        raise DataError(path, "holds no dictionary")
    layout = (
        str(said.get("is hetero", "")),
        (folder / "raw" / "num_nodes_dict.npz").exists() or (folder / "raw" / "num-node-dict.csv.gz").exists(),
    )
    if layout in (("True", False), ("False", True)):
        raise DataError(path, f"'is hetero' is {layout[0]}, but {folder / 'raw'} says otherwise")
    classes = said.get("num classes")
    if isinstance(classes, str) and classes.isdecimal():
        classes = int(classes)
    return Meta(
        classes if isinstance(classes, int) and classes > 0 else None, str(said.get("add_inverse_edge")) == "True"
    )


def add_splits(folder: Path, types: Collection[str], out: GraphWriter, options: ImportOptions) -> None:
    """Add the splits of vertices, of the node ``types``, of the only scheme in the folder. A note says which splits of
    edges are left."""
    schemes = sorted(p for p in folder.glob("*") if p.is_dir()) if folder.is_dir() else []
    if not schemes:
        return
    if len(schemes) > 1:
        raise DataError(folder, f"holds {len(schemes)} splitting schemes; leave one")
    scheme = schemes[0]
    if (path := scheme / "split_dict.pt").exists():
        _add_dictionary(path, types, out, options)
    elif marked := marked_types(scheme / "nodetype-has-split.csv.gz", types):
        for node_type in marked:
            _add_texts(scheme / node_type, out, options, node_type)
    else:
        _add_texts(scheme, out, options, NODE_TYPE)
        if found := sorted(path.name for path in scheme.glob("*.pt")):
            options.notes.append(_left(scheme, found))


def _left(where: Path, names: list[str]) -> str:
    return (
        f"{where.parent.name}/{where.name}: {', '.join(names)} hold edges, which are no splits of vertices and are not "
        "imported; give them to a LinkNeighborLoader"
    )


def _add_texts(folder: Path, out: GraphWriter, options: ImportOptions, node_type: str) -> None:
    for path in sorted(folder.glob("*.csv.gz")):
        if path.name.removesuffix(".csv.gz") not in _SPLITS:
            options.refuse(folder, path.name, "the layout has no such split")
    for theirs, name in _SPLITS.items():
        if (path := folder / f"{theirs}.csv.gz").exists():
            out.add_split(name, csv_rows(path, np.int64).column("split"), node_type)


def _add_dictionary(path: Path, types: Collection[str], out: GraphWriter, options: ImportOptions) -> None:
    """Add the splits of ``{"train": [n], ...}``, or by type of ``{"train": {TYPE: [n]}, ...}``."""
    said = load_inert(path)
    if not isinstance(said, Mapping):
        raise DataError(path, "holds no dictionary of splits")
    edges = []
    for theirs, value in said.items():
        if theirs not in _SPLITS:
            options.refuse(path, theirs, "the layout has no such split")
            continue
        by_type: Mapping[str, Any] = value if isinstance(value, Mapping) else {NODE_TYPE: value}
        if not set(by_type) <= set(types):
            edges.append(theirs)
            continue
        for node_type, rows in by_type.items():
            if not isinstance(rows, np.ndarray):
                raise DataError(path, f"{theirs!r} holds no array of numbers")
            out.add_split(_SPLITS[theirs], rows, node_type)
    if edges:
        options.notes.append(_left(path.parent, edges))
