"""Interactions with times as CSV: JODIE's files, what TGN and its successors make of them, and TGB's edge lists.

NAME.csv           JODIE's: ``user_id,item_id,timestamp,state_label,comma_separated_list_of_features``. Users and items are
                   numbered apart. Headings with ``source`` or ``src`` are of one node type
ml_NAME.csv        ``,u,i,ts,label,idx`` with the features of edges in ``ml_NAME.npy`` (row ``idx``) and of vertices in
                   ``ml_NAME_node.npy`` (row ``u`` or ``i``) beside it. If all sources have smaller numbers than all
                   destinations, they are users and items
*_edgelist*.csv    TGB's: read as ``edges`` are; its names of columns are known
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atta.errors import ConfigError, DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers import edges
from atta.partition.importers.reading.edge_dialect import known_role, look_at_edges
from atta.partition.importers.reading.filling import EdgeStream, add_features
from atta.partition.importers.reading.rows import FileRows, csv_rows, load_array
from atta.partition.importers.reading.source import Array, Ids, ImportOptions, head_of
from atta.partition.schema import TableSpec

_JODIE = ("user_id", "item_id", "timestamp", "state_label")
_PROCESSED = ("u", "i", "ts", "label", "idx")
_ONE_TYPE = {"source", "src", "u"}
"""Names of the first column of JODIE's layout where vertices are of one type."""
_LARGEST = 2**53
"""Up to here float64 has all whole numbers."""
_TGB = {
    "src": {"user_id", "user", "nation"},
    "dst": {"item_id", "item", "genre", "subreddit", "trading nation"},
    "relation": {"relation_type", "edge_type"},
    "time": {"day", "year", "date"},
}
"""TGB's names of columns, beside those that ``edges`` knows."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of JODIE, TGN or TGB."""
    names = _heading(head)
    if names[3:4] == ["state_label"] or names[1:6] == list(_PROCESSED):
        return True
    return "_edgelist" in path.name and path.name.endswith((".csv", ".csv.gz")) and len(names) > 2


def _heading(head: bytes) -> list[str]:
    return [name.strip() for name in head.split(b"\n", 1)[0].decode("utf-8", "replace").split(",")]


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file ``source``."""
    names = _heading(head_of(source))
    lists = names[3:4] != ["state_label"] and names[1:6] != list(_PROCESSED)
    if not lists and (options.columns or options.string_ids or options.bipartite or options.more):
        raise ConfigError(
            f"{source}: its columns are known; only edge lists take several files, other columns and --bipartite"
        )
    if names[3:4] == ["state_label"]:
        _add(_jodie(source, names), out, options)
    elif names[1:6] == list(_PROCESSED):
        _add(_processed(source), out, options)
    else:
        _read_edge_list(source, names, out, options)


def _read_edge_list(source: Path, names: list[str], out: GraphWriter, options: ImportOptions) -> None:
    stem = source.name.split("_edgelist")[0]
    for path in sorted(source.parent.glob(f"{stem}_nodetype*.csv")):
        options.refuse(source.parent, path.name, "vertices of an edge list are of one type")
    said, rows = dict(options.columns), look_at_edges(source, options.columns).rows
    roles = {known_role(name) for name in names} | set(said)
    for place, name in enumerate(names):
        if known_role(name) is not None or name in said.values():
            continue
        role = next((role for role, known in _TGB.items() if role not in roles and name.lower() in known), None)
        if role is None and all(row[place].replace(".", "", 1).lstrip("-").isdecimal() for row in rows):
            role = name
        if role is not None:
            said[role] = name
    edges.read(source, out, dataclasses.replace(options, columns=said))


@dataclass(frozen=True)
class _Interactions:
    """Edges with times. ``places``: the columns of source, destination, time and state. ``one_type``: None: if the
    numbers of both ends overlap. ``features``: those of the edges [k, columns], [k, width]. ``of_vertices``: file and
    features of vertices by their numbers."""

    rows: FileRows
    places: list[int]
    one_type: bool | None
    width: int
    features: Callable[[Array], Array]
    of_vertices: tuple[Path, Array] | None = None


def _jodie(source: Path, names: list[str]) -> _Interactions:
    rows, own = csv_rows(source, np.float64, skip=1), len(_JODIE)
    if (columns := rows.row_shape[0]) < own:
        raise DataError(source, f"{columns} columns; wanted are {', '.join(_JODIE)} and features")
    return _Interactions(rows, [0, 1, 2, 3], names[0] in _ONE_TYPE, columns - own, lambda piece: piece[:, own:])


def _processed(source: Path) -> _Interactions:
    rows = csv_rows(source, np.float64, skip=1)
    if rows.row_shape != (1 + len(_PROCESSED),):
        raise DataError(source, f"{rows.row_shape[0]} columns; wanted are a number, {', '.join(_PROCESSED)}")
    stem = source.name.split(".")[0]
    beside, vertices = source.with_name(f"{stem}.npy"), source.with_name(f"{stem}_node.npy")
    found = (vertices, load_array(vertices)) if vertices.exists() else None
    table = load_array(beside) if beside.exists() else None
    if table is not None and table.ndim != 2:
        raise DataError(beside, f"{list(table.shape)} is not a row for each edge")

    def features(piece: Array) -> Array:
        return piece[:, :0] if table is None else _rows_at(beside, table, piece[:, 5])

    return _Interactions(rows, [1, 2, 3, 4], None, 0 if table is None else table.shape[1], features, found)


def _rows_at(path: Path, table: Array, numbers: Array) -> Array:
    rows = _integers(path, "rows", numbers)
    if len(rows) and (rows.min() < 0 or rows.max() >= len(table)):
        raise DataError(path, f"has {len(table)} rows, and none for the number {rows.max()}")
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return table[rows[0] : rows[0] + len(rows)]  # memory-mapped still
    return table[rows]


def _integers(path: Path, what: str, values: Array) -> Ids:
    bad = ~((np.abs(values) <= _LARGEST) & (values % 1 == 0))
    if bad.any():
        raise DataError(path, f"{what} are whole numbers up to 2**53, not {values[bad][0]}")
    return values.astype(np.int64)


def _add(found: _Interactions, out: GraphWriter, options: ImportOptions) -> None:
    path, ids = found.rows.path, [np.empty(0, np.int64), np.empty(0, np.int64)]
    whole = [True, True]  # times and states
    options.progress.stage(f"vertices in {path.name}", None)
    for piece in found.rows.pieces():
        columns = piece[:, found.places].T
        for side in (0, 1):
            ids[side] = np.union1d(ids[side], _integers(path, "vertices", columns[side]))
        for place in (0, 1):
            whole[place] = whole[place] and bool((columns[2 + place] % 1 == 0).all())
    one_type = found.one_type
    if one_type is None:
        one_type = not (len(ids[0]) and len(ids[1]) and ids[0][-1] < ids[1][0])
    types = [NODE_TYPE, NODE_TYPE] if one_type else ["user", "item"]
    ids = [np.union1d(*ids)] * 2 if one_type else ids
    for node_type, known in dict(zip(types, ids, strict=True)).items():
        out.add_nodes(node_type, len(known), ids=known)
        if found.of_vertices is not None:
            file, table = found.of_vertices
            add_features(out, _rows_at(file, table, known.astype(np.float64)), node_type, options)
    dtypes = [np.dtype(np.int64 if each else np.float64) for each in whole]
    specs = {"time": TableSpec(dtypes[0].str), "state_label": TableSpec(dtypes[1].str)}
    if found.width:
        specs["edge_attr"] = TableSpec("<f4", (found.width,))
    edge_type = EDGE_TYPE if one_type else "user__to__item"
    with EdgeStream(out, edge_type, options, specs) as stream:
        for piece in found.rows.pieces():
            src, dst, time, state = piece[:, found.places].T
            tables = {"time": time.astype(dtypes[0]), "state_label": state.astype(dtypes[1])}
            if found.width:
                tables["edge_attr"] = found.features(piece).astype(np.float32)
            stream.append(np.searchsorted(ids[0], src), np.searchsorted(ids[1], dst), tables)
