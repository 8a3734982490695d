"""The schema of a graph: node types, edge types, their tables and splits. Graph folders and datasets share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from atta.errors import ConfigError, UnknownNameError, known_name
from atta.observe import html
from atta.observe.lastwords import counted
from atta.partition.names import RESERVED, check_name, check_type_name, join_edge_type, split_edge_type

NODE_TYPE, EDGE_TYPE = "node", "node__to__node"
"""The types of a graph whose types have no names of their own."""

_LARGEST = 2**63 - 1


@lru_cache(maxsize=4096)
def _endpoints(edge_type: str) -> tuple[str, str]:
    source, _, destination = split_edge_type(edge_type)
    return source, destination


@dataclass(frozen=True)
class TableSpec:
    """Describes a table with one row per vertex (or edge).

    Attributes:
        dtype: numpy dtype string, little endian, such as ``"<f4"``.
        row_shape: shape of one row, ``()`` for scalars.
    """

    dtype: str
    row_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except (SyntaxError, TypeError, ValueError):
            raise ConfigError(f"table: {self.dtype!r} is not a dtype") from None
        if dtype.kind not in "biuf" or dtype.str != self.dtype or self.dtype.startswith(">"):
            raise ConfigError(f"table: dtype {self.dtype!r} is not a plain little-endian number such as '<f4'")
        if any(not isinstance(n, int) or n < 0 for n in self.row_shape):
            raise ConfigError(f"table: row shape {self.row_shape!r} is not a tuple of sizes")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * prod(self.row_shape)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict with the shape as a list."""
        return {"dtype": self.dtype, "row_shape": list(self.row_shape)}


@dataclass(frozen=True)
class Schema:
    """The types of a graph, and the tables and splits of each.

    Attributes:
        node_types: names, sorted.
        edge_types: ``"src__rel__dst"`` strings, sorted.
        node_counts: node type -> number of vertices.
        edge_counts: edge type -> number of edges.
        node_tables: node type -> table name -> spec; every node type has an entry.
        edge_tables: edge type -> table name -> spec; every edge type has an entry. ``weight`` and ``time`` are scalars.
        splits: node type -> split name -> number of vertices; every node type has an entry.
        num_classes: number of classes of the labels ``y``, the largest of all node types; None: no labels.
        classes: node or edge type -> table (of several columns ``"table/column"``) -> names of classes, by their numbers.
        columns: node type -> table -> names of the columns of a file that it was made of.
        room: node type -> how many of its vertices nobody uses yet (``atta partition --room``): those with the largest ids.
    """

    node_types: tuple[str, ...]
    edge_types: tuple[str, ...]
    node_counts: dict[str, int]
    edge_counts: dict[str, int]
    node_tables: dict[str, dict[str, TableSpec]] = field(default_factory=dict)
    edge_tables: dict[str, dict[str, TableSpec]] = field(default_factory=dict)
    splits: dict[str, dict[str, int]] = field(default_factory=dict)
    num_classes: int | None = None
    classes: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    columns: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    room: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node_type in self.node_types:
            self._check_node_type(check_type_name("node type", node_type))
        for edge_type in self.edge_types:
            self._check_edge_type(edge_type)
        if self.num_classes is not None and (not _is_count(self.num_classes) or self.num_classes > _LARGEST):
            raise ConfigError(f"num_classes {self.num_classes!r} is not a number of classes")
        self._check_names("classes", self.classes)
        self._check_names("columns", self.columns)

    def _check_node_type(self, node_type: str) -> None:
        count = self.node_counts.get(node_type)
        if not _is_count(count):
            raise ConfigError(f"node type {node_type!r}: {count!r} is not a number of vertices")
        if not _is_count(room := self.room.get(node_type, 0)) or room > self.node_counts[node_type]:
            raise ConfigError(f"node type {node_type!r}: {room!r} is no number of vertices that nobody uses")
        for table in self.node_tables.setdefault(node_type, {}):
            if check_name("table", table) in RESERVED or table.startswith("split_"):
                raise ConfigError(f"node type {node_type!r}: the table name {table!r} is reserved")
        for name, size in self.splits.setdefault(node_type, {}).items():
            check_name("split", name)
            if not _is_count(size) or size > self.node_counts[node_type]:
                raise ConfigError(f"split {name!r} of node type {node_type!r}: {size!r} is not its size")

    def _check_edge_type(self, edge_type: str) -> None:
        for node_type in self.endpoints(edge_type):
            known_name(f"node type in edge type {edge_type!r}:", node_type, self.node_types)
        if edge_type in self.node_types:  # arrays of batches are called by one or the other
            raise ConfigError(f"{edge_type!r} is a node type and an edge type: rename one of them")
        count = self.edge_counts.get(edge_type)
        if not _is_count(count):
            raise ConfigError(f"edge type {edge_type!r}: {count!r} is not a number of edges")
        for name, spec in self.edge_tables.setdefault(edge_type, {}).items():
            if check_name("table", name) in RESERVED:
                raise ConfigError(f"edge type {edge_type!r}: the table name {name!r} is reserved")
            if name in ("weight", "time") and spec.row_shape:
                raise ConfigError(f"edge type {edge_type!r}: {name!r} must have one number per edge")

    def _check_names(self, what: str, of_types: dict[str, dict[str, list[str]]]) -> None:
        for type_, tables in of_types.items():
            known = self.node_tables.get(type_, {}).keys() | self.edge_tables.get(type_, {}).keys()
            for name, names in tables.items():
                if name.split("/")[0] not in known:
                    raise ConfigError(f"{what} of {type_!r}: there is no table {name.split('/')[0]!r}")
                if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                    raise ConfigError(f"{what} of {type_!r}: those of {name!r} are not a list of names")

    def _repr_html_(self) -> str:
        rows = []
        for counts, of_types in ((self.node_counts, self.node_tables), (self.edge_counts, self.edge_tables)):
            for name, count in counts.items():
                tables = (f"{t} {s.dtype[1:]}{list(s.row_shape) or ''}" for t, s in of_types[name].items())
                splits = (f"{split} {size:,}" for split, size in self.splits.get(name, {}).items())
                rows.append((name, count, ", ".join(tables), ", ".join(splits)))
        return html.table("Schema", rows, ("type", "count", "tables", "splits"))

    @property
    def sizes(self) -> str:
        """Numbers of vertices and edges, for people."""
        vertices, edges = (sum(counts.values()) for counts in (self.node_counts, self.edge_counts))
        return f"{counted(vertices, 'vertex', 'vertices')}, {counted(edges, 'edge')}"

    @property
    def typed(self) -> bool:
        """Whether types have names of their own; else ``node`` is the only node type, ``node__to__node`` the only edge type."""
        return self.node_types != (NODE_TYPE,) or self.edge_types != (EDGE_TYPE,)

    def endpoints(self, edge_type: str) -> tuple[str, str]:
        """Return the source and the destination node type of ``edge_type``."""
        return _endpoints(edge_type)

    def in_use(self, node_type: str) -> int:
        """Number of vertices of a type, without its room."""
        return self.node_counts[node_type] - self.room.get(node_type, 0)

    def check_node_type(self, node_type: str) -> str:
        """Return ``node_type`` if it exists, otherwise raise UnknownNameError."""
        return known_name("node type", node_type, self.node_counts)

    def check_edge_type(self, edge_type: str) -> str:
        """Return ``edge_type`` if it exists, otherwise raise UnknownNameError."""
        return known_name("edge type", edge_type, self.edge_counts)

    def find_edge_type(self, given: str | Sequence[str], among: Sequence[str] | None = None) -> str:
        """Return the edge type of a triple of names, or of a text as people write it: ``"src__rel__dst"``, in which
        "__" and "%" within a name may stand as they are. ``among``: these edge types, of which the relation's name is
        enough. Raises UnknownNameError, or ConfigError if several edge types are written so."""
        if not isinstance(given, str):
            return self.check_edge_type(join_edge_type(*given))
        known = self.edge_types if among is None else among
        if given in known:
            return given
        triples = {e: split_edge_type(e) for e in known}
        found = [e for e, triple in triples.items() if given == "__".join(triple) or (among and given == triple[1])]
        if len(found) > 1:
            raise ConfigError(f"edge type {given!r} may be {' or '.join(found)}")
        if not found:
            raise UnknownNameError.of("edge type", given, known)
        return found[0]

    def table(self, node_type: str, name: str) -> TableSpec:
        """Return the spec of a node table; raises UnknownNameError."""
        tables = self.node_tables[self.check_node_type(node_type)]
        return tables[known_name(f"table of node type {node_type!r}:", name, tables)]

    def timed(self, node_type: str) -> bool:
        """Whether the vertices of a type have times: a table ``time`` with one whole number for each."""
        spec = self.node_tables[self.check_node_type(node_type)].get("time")
        return spec is not None and np.dtype(spec.dtype).kind in "iu" and not spec.row_shape

    def check_times(self) -> None:
        """Raise ConfigError if a node table ``time`` cannot be the times of vertices."""
        for node_type, tables in self.node_tables.items():
            if "time" in tables and not self.timed(node_type):
                spec = tables["time"]
                raise ConfigError(
                    f"node table 'time' of {node_type!r} is {spec.dtype}{list(spec.row_shape)}: times of vertices are "
                    "one whole number each; give a table of something else another name"
                )

    def check_split(self, node_type: str, name: str) -> str:
        """Return ``name`` if it is a split of ``node_type``, otherwise raise UnknownNameError."""
        splits = self.splits[self.check_node_type(node_type)]
        if not splits:
            raise UnknownNameError(f"unknown split {name!r}: {node_type!r} has none; tables get some by schema.json")
        return known_name(f"split of node type {node_type!r}:", name, splits)

    def split_size(self, node_type: str, name: str) -> int:
        """Return the number of vertices of a split, at least 1. Raises UnknownNameError if there is no such split,
        ConfigError if it has no vertices."""
        size = self.splits[node_type][self.check_split(node_type, name)]
        if not size:
            sizes = ", ".join(f"{split} {count:,}" for split, count in self.splits[node_type].items())
            raise ConfigError(f"the split {name!r} of {node_type!r} has no vertices; its splits: {sizes}")
        return size

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, the inverse of ``from_json``."""
        return {
            "node_types": {
                t: {
                    "count": self.node_counts[t],
                    "tables": {name: spec.to_json() for name, spec in self.node_tables[t].items()},
                    "splits": dict(self.splits[t]),
                }
                for t in self.node_types
            },
            "edge_types": {
                e: {
                    "count": self.edge_counts[e],
                    "tables": {name: spec.to_json() for name, spec in self.edge_tables[e].items()},
                }
                for e in self.edge_types
            },
            "num_classes": self.num_classes,
            **({"classes": self.classes} if self.classes else {}),
            **({"columns": self.columns} if self.columns else {}),
            **({"room": self.room} if self.room else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Schema:
        """Read what ``to_json`` wrote; raises ConfigError naming what is wrong."""
        nodes, edges = _mapping(value, "schema", "node_types"), _mapping(value, "schema", "edge_types")
        return cls(
            node_types=tuple(sorted(nodes)),
            edge_types=tuple(sorted(edges)),
            node_counts={t: _count(v, t) for t, v in nodes.items()},
            edge_counts={e: _count(v, e) for e, v in edges.items()},
            node_tables={t: _tables(v, t) for t, v in nodes.items()},
            edge_tables={e: _tables(v, e) for e, v in edges.items()},
            splits={t: dict(_mapping(v, t, "splits")) for t, v in nodes.items()},
            num_classes=value.get("num_classes"),
            classes=_names(value, "classes"),
            columns=_names(value, "columns"),
            room=dict(_mapping({"room": {}, **value}, "schema", "room")),
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mapping(value: Any, where: str, key: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}: {key!r} is missing or not a mapping")
    return found


def _count(value: Any, where: str) -> int:
    found = value.get("count") if isinstance(value, Mapping) else None
    if not isinstance(found, int) or not _is_count(found):
        raise ConfigError(f"{where}: {found!r} is not a count")
    return found


def _names(value: Mapping[str, Any], what: str) -> dict[str, dict[str, list[str]]]:
    found = _mapping({what: {}, **value}, "schema", what)
    return {type_: dict(_mapping(found, what, type_)) for type_ in found}


def _tables(value: Any, where: str) -> dict[str, TableSpec]:
    out: dict[str, TableSpec] = {}
    for name, spec in _mapping(value, where, "tables").items():
        try:
            out[name] = TableSpec(str(spec["dtype"]), tuple(spec["row_shape"]))
        except (KeyError, TypeError):
            raise ConfigError(f"{where}: the table {name!r} is malformed") from None
    return out
