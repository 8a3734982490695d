"""Graphs of networkx: objects in memory (``atta.from_networkx``), and files that become one: GraphML (``*.graphml``,
``*.xml``), GML (``*.gml``), Pajek (``*.net``) and node-link JSON (``*.json``), compressed with gzip or not.

Labels of vertices become the users' ids or the table ``name``, attributes tables, as ``docs/guide/importing.md`` says. Edges keep
their order. Reverses of edges without direction follow in the same order, but for self-loops.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.errors import DataError
from atta.observe.progress import Progress, shown
from atta.partition.deploy import written_graph
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.graph.strings import NAME
from atta.partition.importers.reading.filling import add_edges, add_node_array, name_bytes
from atta.partition.importers.reading.network_files import read_gml, read_graphml, read_pajek
from atta.partition.importers.reading.source import Array, ImportOptions, open_content, state_classes

if TYPE_CHECKING:
    import networkx as nx


_MISSING = object()
_KINDS = {".graphml": "graphml", ".xml": "graphml", ".gml": "gml", ".net": "pajek", ".json": "json"}


def from_networkx(
    graph: nx.Graph[Any],
    dst: str | Path,
    *,
    undirected: bool = False,
    reverse: bool = False,
    normalize_features: bool = False,
    drop: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a networkx graph of any class as the graph folder ``dst``.

    Args:
        graph: integer labels become user ids, strings become the table ``name``; attributes become tables.
        dst: graph folder to write, complete or not at all; or a URL of object storage to write to, the manifest last.
        undirected: add the missing reverses to a directed graph; an undirected one is stored in both directions anyway.
        reverse, normalize_features, drop, rename, overwrite, progress: as for ``import_graph``.

    Raises:
        ConfigError: ``dst`` may not be written, a name in ``drop`` is not refused, or one in ``rename`` is not there.
        DataError: a label or an attribute cannot be imported; the message names it.
    """
    options = ImportOptions(
        undirected, reverse, normalize_features, shown(progress), frozenset(drop), dict(rename or {})
    )
    provenance = {"command": "from_networkx", "dropped": sorted(options.drop), "renamed": dict(options.rename)}
    with written_graph(
        dst, overwrite=overwrite, provenance=provenance, rename=options.rename, progress=progress
    ) as out:
        _write(graph, "networkx graph", out, options)
        options.check_dropped()
        out.check_renamed()


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the GraphML, GML, Pajek or node-link JSON file ``source``."""
    kind = _kind(source)
    if kind is None:
        raise DataError(source, f"wanted is a file named {', '.join('*' + s for s in _KINDS)}, or that and .gz")
    if kind == "json":
        graph = _node_link(source)
    elif kind == "graphml":
        graph = read_graphml(source, options)
        if list(graph) == [f"n{place}" for place in range(len(graph))]:  # igraph and graph-tool only count with them
            graph = _named(graph, ("name",), options)
        graph = _numbered(graph)
    else:
        graph = read_gml(source) if kind == "gml" else read_pajek(source, options)
        graph = _numbered(_named(graph, ("label", "name"), options))
    _write(graph, source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of GraphML, GML or Pajek, or JSON that has the keys of node-link data."""
    kind, begin = _kind(path), head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if kind == "json":
        return begin[:1] == b"{" and b'"nodes"' in head and b'"multigraph"' in head
    if kind == "gml":
        return re.search(rb"\bgraph\s*\[", head) is not None
    if kind == "pajek":
        return re.search(rb"(^|[\r\n])\s*\*vertices\b", begin, re.IGNORECASE) is not None
    return kind == "graphml" and re.search(rb"<(\w+:)?graphml\b", head) is not None


def _kind(path: Path) -> str | None:
    return _KINDS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def _named(graph: nx.Graph[Any], attributes: Sequence[str], options: ImportOptions) -> nx.Graph[Any]:
    """``graph`` with the first of the attributes as labels that has another string or integer for each vertex."""
    import networkx as nx

    for attribute in attributes:
        values = [data.get(attribute) for _, data in graph.nodes(data=True)]
        alike = any(all(type(value) is kind for value in values) for kind in (str, int))
        if alike and len(set(values)) == len(values) and attribute not in options.drop:
            for _, data in graph.nodes(data=True):
                del data[attribute]
            return nx.relabel_nodes(graph, dict(zip(graph, values, strict=True)))
    return graph


def _numbered(graph: nx.Graph[Any]) -> nx.Graph[Any]:
    import networkx as nx

    try:
        numbers = {label: int(label) for label in graph}
    except ValueError:
        return graph
    if any(str(number) != str(label) for label, number in numbers.items()):
        return graph
    return nx.relabel_nodes(graph, numbers)


def _node_link(source: Path) -> nx.Graph[Any]:
    import networkx as nx

    try:
        with open_content(source) as file:
            value = json.loads(file.read())
        if "edges" in value:  # newer releases write "edges" instead of "links"
            value = {**{k: v for k, v in value.items() if k != "edges"}, "links": value["edges"]}
        newer = {"edges": "links"} if "edges" in inspect.signature(nx.node_link_graph).parameters else {}
        graph: nx.Graph[Any] = nx.node_link_graph(value, **newer)
        named = [tuple(n["id"]) if isinstance(n["id"], list) else n["id"] for n in value["nodes"]]
    except Exception as error:  # networkx does not check what it looks up
        raise DataError(source, f"not readable as node-link JSON: {type(error).__name__}: {error}") from None
    if len(set(named)) != len(named):
        raise DataError(source, "a vertex occurs twice under 'nodes'")
    if strange := list(graph.nodes - set(named)):
        raise DataError(source, f"an edge names the vertex {strange[0]!r}, which is not under 'nodes'")
    return graph


def _write(graph: nx.Graph[Any], where: str | Path, out: GraphWriter, options: ImportOptions) -> None:
    whole = {name: value for name, value in graph.graph.items() if name not in ("node_default", "edge_default")}
    labels = list(graph)
    ids, names = _labels(where, labels)
    out.add_nodes(NODE_TYPE, len(labels), ids=ids)
    if names is not None:
        out.add_table(NAME, name_bytes(where, names))
    if isinstance(whole.get("name"), str):
        out.provenance["name"] = whole.pop("name")
    columns = _Columns(where, options, "vertex", dict(graph.graph.get("node_default") or {}))
    for name, rows in columns.read(labels, [graph.nodes[label] for label in labels]).items():
        add_node_array(out, NODE_TYPE, name, rows, options, where=where)
    state_classes(out, where, whole.pop("num_classes", None))
    for name in whole:
        options.refuse(where, name, "it is an attribute of the whole graph")
    _write_edges(graph, where, out, options, {label: row for row, label in enumerate(labels)})


def _write_edges(
    graph: nx.Graph[Any], where: str | Path, out: GraphWriter, options: ImportOptions, row_of: Mapping[Any, int]
) -> None:
    edges = list(graph.edges(data=True))
    if graph.is_multigraph() and not _keys_are_numbers(graph):
        options.refuse(where, "keys", "edges are identified by their positions; make the keys an attribute of edges")
    ends = np.array([(row_of[u], row_of[v]) for u, v, _ in edges], np.int64).reshape(-1, 2)
    columns = _Columns(where, options, "edge", dict(graph.graph.get("edge_default") or {}))
    tables = columns.read([(u, v) for u, v, _ in edges], [attributes for _, _, attributes in edges])
    if not graph.is_directed():
        back = np.flatnonzero(ends[:, 0] != ends[:, 1])
        ends = np.concatenate([ends, ends[back, ::-1]])
        tables = {name: np.concatenate([rows, rows[back]]) for name, rows in tables.items()}
    add_edges(out, EDGE_TYPE, (ends[:, 0], ends[:, 1]), options, tables)


def _keys_are_numbers(graph: Any) -> bool:
    seen: dict[Any, int] = {}
    for u, v, key in graph.edges(keys=True):
        pair = (u, v) if graph.is_directed() else frozenset((u, v))
        if key != seen.get(pair, 0):
            return False
        seen[pair] = seen.get(pair, 0) + 1
    return True


def _labels(where: str | Path, labels: Sequence[Any]) -> tuple[Array | None, list[str] | None]:
    if labels and all(isinstance(label, str) for label in labels):
        return None, list(labels)
    for place, label in enumerate(labels):
        if isinstance(label, bool | np.bool_) or not isinstance(label, int | np.integer):
            raise DataError(
                where,
                f"the vertex {label!r} at position {place} is a {type(label).__name__}: labels are all integers or all strings"
                " (networkx.convert_node_labels_to_integers numbers others)",
            )
        if not -(2**63) <= int(label) < 2**63:
            raise DataError(where, f"the vertex {label} at position {place} does not fit into int64")
    return np.array([int(label) for label in labels], np.int64), None


class _Columns:
    """Turns the attributes of vertices or edges into tables. Refuses attributes that cannot be tables."""

    def __init__(self, where: str | Path, options: ImportOptions, what: str, default: Mapping[str, Any]) -> None:
        self._where, self._options, self._what, self._default = where, options, what, default

    def read(self, owners: Sequence[Any], attributes: Sequence[Mapping[Any, Any]]) -> dict[str, Array]:
        """Tables by name. ``owners``: the vertices or edges with the attributes, for messages."""
        found = {}
        for name in dict.fromkeys(name for entry in attributes for name in entry):
            values = [entry.get(name, self._default.get(name, _MISSING)) for entry in attributes]
            try:
                found[str(name)] = self._column(name, owners, values)
            except ValueError as error:
                self._options.refuse(self._where, name, str(error))
        return found

    def _column(self, name: Any, owners: Sequence[Any], values: Sequence[Any]) -> Array:
        """The rows of an attribute; raises ValueError with the reason if it cannot be a table."""
        if not self._options.is_table_name(name):
            raise ValueError("tables cannot have this name")
        if any(value is _MISSING for value in values):
            lacking = owners[next(i for i, value in enumerate(values) if value is _MISSING)]
            raise ValueError(f"the {self._what} {lacking!r} has no such attribute")
        try:
            rows = np.asarray(values)
        except (ValueError, OverflowError):
            raise ValueError(f"not every {self._what} has equally many numbers") from None
        if rows.dtype.kind not in "biuf":
            kinds = sorted({type(value).__name__ for value in values})
            raise ValueError(f"it holds {', '.join(kinds)}, wanted are numbers that fit into 64 bits")
        if rows.dtype.kind == "f" and rows.ndim == 1 and all(isinstance(value, int) for value in values):
            raise ValueError("its numbers do not fit into 64 bits together")
        if self._what == "edge" and name in ("weight", "time") and rows.ndim > 1:
            raise ValueError("it must be one number for each edge")
        return rows
