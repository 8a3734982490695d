"""Importers: one module per format, found by name or by what a file or folder looks like.

An importer has a function ``read(source, out, options)`` that fills an open ``GraphWriter``, and a function
``recognises(path, head)`` that says whether a file or folder is of its format. ``called(path)``, if it has one, says for
people what a file or folder is, or None."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from atta.errors import AttaError, ConfigError, DataError, PluginError, near_path
from atta.observe.plugins import OpenRegistry
from atta.observe.progress import Progress, shown
from atta.partition.deploy import written_graph
from atta.partition.disk.files import check_tree
from atta.partition.disk.store import path_here
from atta.partition.graph import MANIFEST as GRAPH_MANIFEST
from atta.partition.graph import GraphWriter
from atta.partition.importers import (
    dgl,
    dorylus,
    edges,
    matrix,
    networkx,
    npz,
    ogb,
    planetoid,
    pyg,
    pyg_parts,
    table,
    tgb,
)
from atta.partition.importers.reading.source import ImportOptions, head_of
from atta.partition.importers.table.schema import kind_of
from atta.partition.names import lonely
from atta.partition.schema import Schema

__all__ = ["IMPORTERS", "Format", "ImportOptions", "Importer", "called", "guess", "import_graph", "refuse_unimported"]


class Importer(Protocol):
    """Reads one format."""

    def read(self, source: Path, out: GraphWriter, options: ImportOptions) -> None:
        """Fill ``out`` from ``source``; raises DataError naming the file that is wrong."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether ``path`` is of this format. ``head``: its first 64 KiB, decompressed; ``b""`` for a folder."""


class Format(NamedTuple):
    """A format that can be imported: the module that reads it, and by what it is recognised, for people."""

    importer: Importer
    sign: str


IMPORTERS: OpenRegistry[Format] = OpenRegistry(
    "format",
    "atta.importers",
    {
        "pyg-parts": Format(pyg_parts, "a folder with META.json and part_0"),
        "planetoid": Format(planetoid, "it has ind.NAME.graph"),
        "ogb": Format(ogb, "a folder with raw/ of OGB: edge.csv.gz, data.npz, ..."),
        "table": Format(table, "it has schema.json"),
        "dorylus": Format(dorylus, "it has graph.bsnap"),
        "npz": Format(npz, "it has edge_index in graph.npz or as .npy, or CSR arrays adj_indptr, ..."),
        "dgl": Format(
            dgl, "a file of dgl.save_graphs, or it describes DistDGL's partitions or another data set of DGL"
        ),
        "pyg": Format(pyg, "an archive of torch.save that names classes of PyG"),
        "matrix": Format(matrix, "MatrixMarket, or *.graph with the first line of METIS"),
        "networkx": Format(networkx, "GraphML, GML, Pajek, or JSON with nodes and multigraph"),
        "tgb": Format(tgb, "CSV with the heading of JODIE, TGN (ml_NAME.csv) or TGB (NAME_edgelist.csv)"),
        "edges": Format(edges, "lines with the same number of columns, two or more"),
    },
    "a Format",
    lambda part: isinstance(part, Format),
)
"""The formats by name, in the order in which they are asked whether a file is theirs: those with a clear mark first."""


def guess(path: str | Path) -> str:
    """The name of the format of a file or folder, by what it holds. Raises DataError: it does not exist, cannot be
    read, or is of no format that Atta knows."""
    source = _source(path)
    head = head_of(source)
    for name, fmt in IMPORTERS.items():
        if fmt.importer.recognises(source, head):
            return name
    for name in IMPORTERS.plugins():
        with contextlib.suppress(PluginError):  # whoever wants it names it, and is told
            if IMPORTERS[name].importer.recognises(source, head):
                return name
    if source.is_dir() and any(map(kind_of, source.iterdir())):
        command = f"atta schema {shlex.quote(str(path))}"
        raise DataError(source, f"has tables without schema.json; {command} writes a first one")
    raise DataError(source, f"not recognised; --format names what it is: {', '.join(sorted(IMPORTERS))}")


def called(path: str | Path, fmt: str) -> str:
    """What a file or folder of the format is, for people."""
    say = getattr(IMPORTERS[fmt].importer, "called", lambda _: None)
    return say(Path(path)) or IMPORTERS[fmt].sign


def refuse_unimported(path: str | Path) -> None:
    """Raise DataError if ``path`` holds a graph of another format, which has to be imported first."""
    if Path(path, GRAPH_MANIFEST).exists():
        return
    try:
        fmt = guess(path)
        what = called(path, fmt)
    except AttaError:
        return
    command = shlex.join(("atta", "import", fmt, str(path), f"{path}-graph"))
    raise DataError(path, f"taken for {fmt} ({what}), which is not imported yet: run {command}")


def _source(path: str | Path) -> Path:
    source = path_here(path, "import")
    if not source.exists():
        raise DataError(source, f"no such file or folder{near_path(source)}")
    check_tree(source)
    return source


def import_graph(
    fmt: str,
    src: str | Path | Sequence[str | Path],
    dst: str | Path,
    *,
    undirected: bool = False,
    reverse: bool = False,
    normalize_features: bool = False,
    columns: Mapping[str, str] | None = None,
    string_ids: bool = False,
    bipartite: bool = False,
    drop: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    contents: Callable[[Schema], None] | None = None,
) -> list[str]:
    """Read ``src`` in the format ``fmt`` (a name in IMPORTERS) and write the graph folder ``dst``.

    Data that a graph folder cannot hold is refused by name, never left out silently. ``docs/guide/importing.md`` lists the
    data of each format.

    Args:
        fmt: name of the format.
        src: file or folder to read; of ``edges`` also several files, which are read in this order.
        dst: graph folder to write, complete or not at all; or a URL of object storage to write to, the manifest last.
        undirected: add the missing reverse edges, once each (a reverse relation between different node types). An edge
            with a time has a reverse if one of the same time is stored; otherwise it gets one of its time.
        reverse: add the reverses of every edge type as a type of their own, ``rev_<relation>``. Sampling
            out-neighbours needs them.
        normalize_features: divide each row of ``x`` by the sum of its absolute values.
        columns: what is which column of ``edges`` (``src``, ``dst``, ``relation``, or the name of an edge table): the
            column's name in the heading, or its number from 1.
        string_ids: take the ids of ``edges`` as strings although they look like numbers.
        bipartite: take sources and destinations of ``edges`` as the node types ``left`` and ``right``.
        drop: names of data to leave out instead of refusing it.
        rename: new names by old ones. An old name is that of a node type, a relation or a table, wherever it occurs;
            ``SRC__REL__DST`` is one edge type's relation, and ``TYPE/TABLE`` one type's table.
        overwrite: replace an existing graph folder.
        progress: receives the stages.
        contents: is called with the schema of the graph folder when it is complete.

    Returns:
        Sentences about the import that the user should read; usually none.

    Raises:
        ConfigError: unknown format, a package that is not installed, a name in ``drop`` that is not refused, a name in
            ``rename`` that is not there or that two things would get, or ``dst`` may not be written.
        DataError: ``src`` is missing, malformed or holds data that cannot be imported; the message names the file and
            the data.
    """
    importer = IMPORTERS[fmt].importer
    files = [_source(path) for path in ([src] if isinstance(src, str | Path) else src)]
    if fmt not in ("edges", "tgb") and (columns or string_ids or bipartite or len(files) > 1):
        raise ConfigError(f"{fmt}: only the format edges has several files, --columns, --string-ids and --bipartite")
    source = files[0]
    options = ImportOptions(
        undirected,
        reverse,
        normalize_features,
        shown(progress),
        frozenset(drop),
        dict(rename or {}),
        more=tuple(files[1:]),
        columns=dict(columns or {}),
        string_ids=string_ids,
        bipartite=bipartite,
    )
    provenance = {
        "command": f"import {fmt}",
        "source": ", ".join(file.name for file in files),
        "options": {"undirected": undirected, "reverse": reverse, "normalize_features": normalize_features},
        "dropped": sorted(options.drop),
        "renamed": dict(options.rename),
        "notes": options.notes,
    }
    with written_graph(
        dst, overwrite=overwrite, provenance=provenance, rename=options.rename, progress=progress
    ) as out:
        importer.read(source, out, options)
        options.check_dropped()
        out.check_renamed()
    if out.schema is not None:
        options.notes.extend(lonely(out.schema.node_types, out.schema.edge_types))
        if contents is not None:
            contents(out.schema)
    return options.notes
