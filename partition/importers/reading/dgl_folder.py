"""DistDGL's partitions on disk, and the original numbers of their vertices and edges. These are in ``nid_map`` and ``eid_map``
beside the configuration, in ``orig_nids.dgl`` and ``orig_eids.dgl`` in each part's folder, or in ``orig_id`` of each part's
graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, DataError
from atta.partition.importers.reading.dgl_tensors import (
    TypeNames,
    arrays,
    require_dgl,
)
from atta.partition.importers.reading.graphbolt import part_edges
from atta.partition.importers.reading.pickles import load_torch
from atta.partition.importers.reading.rows import load_array, load_npz
from atta.partition.importers.reading.source import (
    ImportOptions,
    as_ids,
    distinct_ids,
    first_line,
    head_of,
    read_description,
)

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
_GRAPHBOLT = "part_graph_graphbolt"
_KEYS = (b'"part_method"', b'"part-0"')
"""What the beginning of a ``NAME.json`` has."""
_MOST_LOOKED_AT = 100
"""Number of JSON files of a folder that are looked at."""
_KNOWN = {"_ID", "_TYPE", "part_id", "orig_id", "inner_node", "inner_edge"}
_SUFFIXES = (".npy", ".npz", ".pt", ".dgl", ".bin")


def described_parts(source: Path) -> Path | None:
    """The ``NAME.json`` that a file is or a folder has; None: the file is another, or the folder has none or several."""
    files = islice(sorted(source.glob("*.json")), _MOST_LOOKED_AT) if source.is_dir() else [source]
    found = [path for path in files if path.is_file() and all(key in head_of(path) for key in _KEYS)]
    return found[0] if len(found) == 1 else None


def called_parts(path: Path) -> str:
    """What the partitions that ``path`` describes are, for people."""
    return "partitions with GraphBolt's graphs" if _of_graphbolt(_config(path)) else "partitions of DistDGL"


@dataclass(frozen=True)
class PartsFolder:
    """DistDGL's partitions on disk: the partition configuration, its content, and names of its types."""

    path: Path
    config: dict[str, Any]
    names: TypeNames

    @classmethod
    def open(cls, path: Path) -> PartsFolder:
        config = _config(path)
        return cls(path, config, TypeNames(path, config["ntypes"], config["etypes"]))

    @property
    def num_parts(self) -> int:
        """How many parts the configuration states."""
        return int(self.config["num_parts"])

    def starts(self, key: str) -> Array:
        """The first number of each part within a node or edge type, then the end: [parts + 1]."""
        spans = self.config["node_map" if key in self.names.nodes else "edge_map"][key]
        try:
            table = np.array(spans, dtype=np.int64).reshape(self.num_parts, 2)
        except (TypeError, ValueError):
            raise DataError(self.path, f"the ranges of {key!r} are not those of {self.num_parts} parts") from None
        return np.concatenate([[0], np.cumsum(table[:, 1] - table[:, 0])])

    @property
    def of_graphbolt(self) -> bool:
        """Whether the parts' graphs are GraphBolt's alone."""
        return _of_graphbolt(self.config)

    def part_folder(self, part: int) -> Path:
        """The folder of a part's files."""
        return self._graph_file(part).parent

    def _graph_file(self, part: int) -> Path:
        try:
            name = self.config[f"part-{part}"][_GRAPHBOLT if self.of_graphbolt else "part_graph"]
            return self.path.parent / str(name)
        except (KeyError, TypeError):
            raise DataError(self.path, f"part {part} is not readable: the configuration lacks its part_graph") from None

    def graph(self, part: int) -> tuple[Any, Any]:
        """A part's graph and partition book."""
        distributed = require_dgl("importing DistDGL's partitions").distributed
        try:
            graph, _, _, book, *_ = distributed.load_partition(str(self.path), part, load_feats=False)
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None
        return graph, book

    def owned_edges(self, part: int, options: ImportOptions) -> tuple[Array, Array, Array, Array]:
        """The edges that a part owns: numbers of their types, and their own, their sources' and their destinations'
        numbers within the types."""
        if self.of_graphbolt:
            source, target, edges = part_edges(self._graph_file(part))
            kind, numbers, owner = self._within("edge_map", edges)
            inner = owner == part
            source, target = (self._within("node_map", rows[inner])[1] for rows in (source, target))
            return kind[inner], numbers[inner], source, target
        graph, book = self.graph(part)
        for name in sorted({*graph.ndata, *graph.edata} - _KNOWN):
            options.refuse(
                self.part_folder(part) / "graph.dgl", name, "it is a tensor of the part's graph, HALO included"
            )
        inner = graph.edata["inner_edge"].bool()
        source, target = (ends[inner] for ends in graph.edges(order="eid"))
        kind, numbers = book.map_to_per_etype(graph.edata["_ID"][inner])
        _, source = book.map_to_per_ntype(graph.ndata["_ID"][source])
        _, target = book.map_to_per_ntype(graph.ndata["_ID"][target])
        return kind.numpy(), numbers.numpy(), source.numpy(), target.numpy()

    def _ranges(self, name: str) -> Array:
        """The ranges of numbers that are not empty: rows of first, end, part, number of the type, and the first number
        within the type; ascending."""
        keys = self.names.nodes if name == "node_map" else self.names.edges
        rows = [
            (int(lo), int(hi), part, kind, int(self.starts(key)[part]))
            for kind, key in enumerate(keys)
            for part, (lo, hi) in enumerate(self.config[name][key])
        ]
        return np.array(sorted(row for row in rows if row[0] < row[1]), np.int64).reshape(-1, 5)

    def _within(self, name: str, numbers: Array) -> tuple[Array, Array, Array]:
        """Of vertices or edges: the numbers of the types, the numbers within them, and the parts; raises DataError."""
        ranges = self._ranges(name)
        places = np.searchsorted(ranges[:, 0], numbers, side="right") - 1
        if len(numbers) and (places.min() < 0 or (numbers >= ranges[places, 1]).any()):
            raise DataError(self.path, f"{name} has no range for a number of a part")
        found = ranges[places]
        return found[:, 3], numbers - found[:, 0] + found[:, 4], found[:, 2]

    def features(self, part: int, options: ImportOptions) -> tuple[dict[tuple[str, str], Array], ...]:
        """A part's node and edge tensors by (type, name)."""
        from dgl.distributed.partition import load_partition_feats

        try:
            frames = load_partition_feats(str(self.path), part)
        except Exception as error:  # DGL's own errors have no common base
            raise self._unreadable(part, error) from None
        found: list[dict[tuple[str, str], Array]] = []
        for frame, known in zip(frames, (self.names.nodes, self.names.edges), strict=True):
            found.append({})
            for key, rows in arrays(self.part_folder(part), frame or {}, options).items():
                of_type = max((t for t in known if key.startswith(f"{t}/")), key=len, default=None)
                if of_type is not None:
                    found[-1][of_type, key.removeprefix(f"{of_type}/")] = rows
                else:
                    options.refuse(self.part_folder(part), key, f"the graph has no type {key.partition('/')[0]!r}")
        return tuple(found)

    def _unreadable(self, part: int, error: Exception) -> DataError:
        return DataError(self.path, f"part {part} is not readable: {type(error).__name__}: {first_line(error)}")


def _of_graphbolt(config: dict[str, Any]) -> bool:
    part = config.get("part-0")
    return isinstance(part, dict) and _GRAPHBOLT in part and "part_graph" not in part


def _config(path: Path) -> dict[str, Any]:
    what = "a partition configuration of DistDGL"
    value = read_description(path, what, "edge_map", "etypes", "node_map", "ntypes", "num_parts")
    for name, types in (("node_map", "ntypes"), ("edge_map", "etypes")):
        if not isinstance(value[name], dict):
            raise DataError(
                path, f"{name} is not a table of ranges: parts that were not renumbered (reshuffle=False) are not read"
            )
        if not isinstance(value[types], dict) or set(value[name]) != set(value[types]):
            raise DataError(path, f"{name} and {types} name different types")
    if not isinstance(value["num_parts"], int) or value["num_parts"] < 1:
        raise DataError(path, f"num_parts {value['num_parts']!r} is not a number of parts")
    return value


def original_nodes(folder: PartsFolder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every vertex by DGL's types, None if they are not stated; raises DataError."""
    where, found = _find(folder, "nid_map", "orig_nids.dgl", folder.names.nodes, options)
    if found is None:
        return None
    return {
        t: distinct_ids(where, f"the original ids of {t!r}", values, int(folder.starts(t)[-1]))
        for t, values in found.items()
    }


def original_edges(folder: PartsFolder, options: ImportOptions) -> dict[str, Ids] | None:
    """Return the original number of every edge by DGL's types, None if they are not stated. Raises DataError for
    numbers that are not positions: edges in graph folders are identified by their positions."""
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
    folder: PartsFolder, name: str, in_parts: str, known: Mapping[str, str], options: ImportOptions
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


def _in_graphs(folder: PartsFolder, known: Mapping[str, str], *, of_nodes: bool) -> dict[str, Array] | None:
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
