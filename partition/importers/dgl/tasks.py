"""The tasks of GraphBolt's data sets: splits of vertices and their labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import DataError
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.tensors import TypeNames
from atta.partition.importers.reading.described import entries, named_file
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.rows import FileRows, npy_rows, torch_rows
from atta.partition.importers.reading.stated import as_ids, state_classes
from atta.partition.importers.reading.written import as_labels

__all__ = ["add_tasks", "rows_of"]

Array = npt.NDArray[Any]
_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}
_SEEDS, _LABELS = {"seeds", "seed_nodes"}, {"labels", "label"}
_OF_EDGES = {"node_pairs", "negative_srcs", "negative_dsts"}
_READERS = {"numpy": npy_rows, "torch": torch_rows}


def rows_of(path: Path, folder: Path, entry: Mapping[str, Any]) -> FileRows:
    """The rows of the file that an entry of the description ``path`` names; raises DataError."""
    if entry["format"] not in _READERS:
        raise DataError(path, f"the format {entry['format']!r} is neither numpy nor torch: {dict(entry)}")
    return _READERS[entry["format"]](named_file(folder, entry["path"]))


def add_tasks(  # noqa: PLR0917 - the description, and where it goes
    path: Path,
    folder: Path,
    said: Mapping[str, Any],
    names: TypeNames,
    out: GraphWriter,
    options: ImportOptions,
    *,
    labelled: Collection[str],
) -> None:
    """Add the splits and labels of the task of vertices. A note says which sets of edges are left.

    ``labelled``: node types that have labels already.
    """
    taken = None
    for task in entries(path, said, "tasks"):
        name = str(task.get("name") or "task")
        sets = {split: entries(path, task, key) for key, split in _SETS.items()}
        if all(_is_of_edges(path, folder, entry) for found in sets.values() for entry in found):
            what = f"the sets of the task {name!r} hold edges, which are no splits of vertices and are not imported"
            options.notes.append(f"{what}; give them to a LinkNeighborLoader")
        elif taken is not None:
            options.refuse(path, name, f"the splits are those of the task {taken!r}")
        else:
            taken = name
            state_classes(out, path, task.get("num_classes"))
            _Task(path, folder, names, out, options).add(sets, labelled)


def _is_of_edges(path: Path, folder: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a set is one of edges: its type is one of edges, or its seeds are pairs of vertices."""
    data = entries(path, entry, "data", "format", "path")
    if ":" in str(entry.get("type")) or any(each.get("name") in _OF_EDGES for each in data):
        return True
    seeds = [each for each in data if each.get("name") in _SEEDS] or data[:1]
    return any(rows_of(path, folder, each).row_shape == (2,) for each in seeds)


class _Task:
    """Writes the sets of a task, and the labels of all sets together."""

    def __init__(self, path: Path, folder: Path, names: TypeNames, out: GraphWriter, options: ImportOptions) -> None:
        self._path, self._folder, self._names = path, folder, names
        self._out, self._options = out, options
        self._labels: dict[str, Array] = {}

    def add(self, sets: Mapping[str, list[dict[str, Any]]], labelled: Collection[str]) -> None:
        """Write the sets by split, each a list with an entry for every node type."""
        for split, found in sets.items():
            for entry in found:
                self._add_set(split, entry)
        for node_type, values in self._labels.items():
            if node_type in labelled:
                self._options.refuse(self._path, "labels", f"{node_type!r} has labels among its features")
            else:
                self._out.add_labels(values, node_type)

    def _add_set(self, split: str, entry: dict[str, Any]) -> None:
        theirs = str(entry.get("type") or next(iter(self._names.nodes)))
        if theirs not in self._names.nodes or (not entry.get("type") and len(self._names.nodes) > 1):
            raise DataError(self._path, f"{split}: {entry.get('type')!r} is no node type")
        node_type, parts = self._names.nodes[theirs], {}
        for place, data in enumerate(entries(self._path, entry, "data", "format", "path")):
            name = str(data.get("name") or ("seeds", "labels")[min(place, 1)])
            parts[name] = rows_of(self._path, self._folder, data)
        for name in sorted(parts.keys() - _SEEDS - _LABELS):
            self._options.refuse(self._path, name, "the sets of vertices have seeds and labels")
        seeds = next((rows for name, rows in parts.items() if name in _SEEDS), None)
        if seeds is None:
            raise DataError(self._path, f"{split} of {theirs!r} has no seeds; there are: {', '.join(parts)}")
        rows = as_ids(seeds.path, "seeds", seeds.column("seeds"))
        self._out.add_split(split, rows, node_type)
        for name in sorted(parts.keys() & _LABELS):
            self._keep(parts[name], rows, node_type)

    def _keep(self, given: FileRows, rows: Array, node_type: str) -> None:
        """Put the labels of a set's vertices in their places."""
        values = as_labels(given.whole())
        if len(values) != len(rows):
            raise DataError(given.path, f"{len(values)} labels for {len(rows)} seeds")
        shape, empty = (self._out.count(node_type), *values.shape[1:]), np.nan if values.dtype.kind == "f" else -1
        if values.dtype.kind in "bu":
            values = values.astype(np.int64)
        labels = self._labels.setdefault(node_type, np.full(shape, empty, values.dtype))
        if labels.dtype != values.dtype or labels.shape != shape:
            raise DataError(given.path, f"labels {values.dtype}{list(values.shape)} differ from those of other sets")
        labels[rows] = values
