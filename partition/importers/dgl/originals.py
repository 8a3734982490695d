"""Finds the original numbers of DistDGL's vertices and edges. They are in one of three places:

- ``nid_map`` and ``eid_map`` beside the configuration (``.npy``, ``.npz``, ``.pt``, ``.dgl`` or ``.bin``). They hold
  the result of ``partition_graph(..., return_mapping=True)``, saved by ``np.save``, ``np.savez``, ``torch.save`` or
  ``dgl.data.utils.save_tensors``. In graphs of several types they are by type, edge types as tuples or as ``"a:r:b"``.
- ``orig_nids.dgl`` and ``orig_eids.dgl`` in each part's folder. DGL's distributed partitioning pipeline writes them.
- ``orig_id`` in ``ndata`` and ``edata`` of each part's graph. Older releases write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.importers.dgl.tensors import TypeNames, require_dgl
from atta.partition.importers.reading.common import first_line, load_array, load_npz
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.importers.reading.stated import as_ids, distinct_ids
from atta.partition.importers.reading.torch_files import load_torch

__all__ = ["original_edges", "original_nodes"]

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
_SUFFIXES = (".npy", ".npz", ".pt", ".dgl", ".bin")


class Folder(Protocol):
    """DistDGL's partitions."""

    @property
    def path(self) -> Path:
        """The partition configuration."""

    @property
    def names(self) -> TypeNames:
        """Names of its types."""

    @property
    def num_parts(self) -> int:
        """Number of parts."""

    def starts(self, key: str) -> Array:
        """The first number of each part within a type, then the end: [parts + 1]."""

    def part_folder(self, part: int) -> Path:
        """The folder of a part's files."""

    @property
    def of_graphbolt(self) -> bool:
        """Whether the parts' graphs are GraphBolt's, which keep no original numbers."""

    def graph(self, part: int) -> tuple[Any, Any]:
        """A part's graph and partition book."""


def original_nodes(folder: Folder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every vertex by DGL's types, None if they are not stated; raises DataError."""
    where, found = _find(folder, "nid_map", "orig_nids.dgl", folder.names.nodes, options)
    if found is None:
        return None
    return {
        t: distinct_ids(where, f"the original ids of {t!r}", values, int(folder.starts(t)[-1]))
        for t, values in found.items()
    }


def original_edges(folder: Folder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every edge by DGL's types, None if they are not stated.

    Raises DataError for numbers that are not positions: edges in graph folders are identified by their positions.
    """
    where, found = _find(folder, "eid_map", "orig_eids.dgl", folder.names.edges, options)
    if found is None:
        return None
    places = {}
    for key, values in found.items():
        total = int(folder.starts(key)[-1])
        ids = distinct_ids(where, f"the original edge ids of {key!r}", values, total)
        if total and (ids.min() < 0 or ids.max() >= total):
            why = f"the original edge ids of {key!r} are not 0 to {total - 1}, and edges have no ids but positions"
            options.refuse(where, where.name, why)
            return None
        places[key] = ids
    return places


def _find(
    folder: Folder, name: str, in_parts: str, known: Mapping[str, str], options: ImportOptions
) -> tuple[Path, dict[str, Array] | None]:
    """Return the place of the original numbers, and the numbers by DGL's types."""
    beside = [path for suffix in _SUFFIXES if (path := folder.path.parent / f"{name}{suffix}").exists()]
    parts = [path for p in range(folder.num_parts) if (path := folder.part_folder(p) / in_parts).exists()]
    if len(beside) > 1 or (beside and parts):
        raise DataError(
            folder.path.parent, f"holds {', '.join(p.name for p in (*beside, *parts[:1]))}; leave one of them"
        )
    if beside:
        return beside[0], _by_type(beside[0], _load(beside[0]), known)
    if parts:
        if len(parts) < folder.num_parts:
            raise DataError(folder.path.parent, f"{in_parts} is missing in some parts")
        pieces = [_by_type(path, _load(path), known) for path in parts]
        return parts[0], {key: np.concatenate([piece[key] for piece in pieces]) for key in known}
    if folder.of_graphbolt:
        return folder.path, None
    return folder.path, _in_graphs(folder, known, of_nodes="nid" in name)


def _load(path: Path) -> Any:
    if path.suffix == ".npy":
        return load_array(path)
    if path.suffix == ".npz":
        return load_npz(path)
    if path.suffix == ".pt":
        return load_torch(path)
    try:
        return require_dgl("importing DistDGL's partitions").data.utils.load_tensors(str(path))
    except ConfigError:
        raise
    except Exception as error:  # torch and DGL raise many unrelated types
        raise DataError(path, f"not readable: {first_line(error)}") from None


def _by_type(path: Path, value: Any, known: Iterable[str]) -> dict[str, Array]:
    """Return the arrays of a file by the type names of the configuration."""
    types = list(known)
    if not isinstance(value, Mapping):
        value = {types[0]: value} if len(types) == 1 else {}
    elif len(types) == 1 == len(value):
        value = {types[0]: next(iter(value.values()))}
    found: dict[str, Array] = {}
    for key, tensor in value.items():
        name = ":".join(key) if isinstance(key, tuple) else str(key)
        if name not in types:  # a relation alone
            name = next((t for t in types if f":{name}:" in t), name)
        found[name] = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    if set(found) != set(types):
        raise DataError(path, f"holds numbers of {', '.join(found) or 'no type'}; the graph has {', '.join(types)}")
    return found


def _in_graphs(folder: Folder, known: Mapping[str, str], *, of_nodes: bool) -> dict[str, Array] | None:
    """The tensors ``orig_id`` of the parts' graphs, in the order of DistDGL's numbers."""
    numbers = {key: np.zeros(int(folder.starts(key)[-1]), np.int64) for key in known}
    for part in range(folder.num_parts):
        graph, book = folder.graph(part)
        frame = graph.ndata if of_nodes else graph.edata
        if "orig_id" not in frame:
            return None
        inner = frame["inner_node" if of_nodes else "inner_edge"].bool()
        kind, rows = (book.map_to_per_ntype if of_nodes else book.map_to_per_etype)(frame["_ID"][inner])
        values = as_ids(folder.part_folder(part) / "graph.dgl", "orig_id", frame["orig_id"][inner].numpy())
        for number, key in enumerate(known):
            mine = (kind == number).numpy()
            numbers[key][rows.numpy()[mine]] = values[mine]
    return _per_type(numbers)


def _per_type(numbers: dict[str, Array]) -> dict[str, Array]:
    """Count from 0 in each type. With several types, DGL numbers the vertices (or edges) of all types together."""
    starts = np.concatenate([[0], np.cumsum([len(values) for values in numbers.values()])])
    spans = list(zip(numbers.items(), starts, starts[1:], strict=False))
    if not all(((values >= lo) & (values < hi)).all() for (_, values), lo, hi in spans):
        return numbers
    return {key: values - lo for (key, values), lo, _ in spans}
