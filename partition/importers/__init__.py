"""Importers: one file per format, found by name.

An importer is a function ``read(source, out, options)`` that fills an open ``GraphWriter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from atta.errors import DataError, UnknownNameError
from atta.observe.progress import Progress, Silent
from atta.partition.disk.files import check_tree
from atta.partition.disk.store import path_here
from atta.partition.graph import GraphWriter
from atta.partition.importers import dgl, dorylus, networkx, npz, ogb, planetoid, pyg, pyg_parts, table
from atta.partition.importers.reading.options import ImportOptions
from atta.partition.parts.remote import written_graph

__all__ = ["IMPORTERS", "ImportOptions", "Importer", "import_graph"]


class Importer(Protocol):
    """Reads one format."""

    def __call__(self, source: Path, out: GraphWriter, options: ImportOptions) -> None:
        """Fill ``out`` from ``source``; raises DataError naming the file that is wrong."""


IMPORTERS: dict[str, Importer] = {
    "dgl": dgl.read,
    "dorylus": dorylus.read,
    "networkx": networkx.read,
    "npz": npz.read,
    "ogb": ogb.read,
    "planetoid": planetoid.read,
    "pyg": pyg.read,
    "pyg-parts": pyg_parts.read,
    "table": table.read,
}


def import_graph(
    fmt: str,
    src: str | Path,
    dst: str | Path,
    *,
    undirected: bool = False,
    reverse: bool = False,
    normalize_features: bool = False,
    drop: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Read ``src`` in the format ``fmt`` (a name in IMPORTERS) and write the graph folder ``dst``.

    Data that a graph folder cannot hold is refused by name, never left out silently. ``docs/importing.md`` lists the
    data of each format.

    Args:
        fmt: name of the format.
        src: file or folder to read.
        dst: graph folder to write, complete or not at all; or a URL of object storage to write to, the manifest last.
        undirected: add the missing reverse edges, once each (a reverse relation between different node types).
        reverse: add the reverses of every edge type as a type of their own, ``rev_<relation>``. Sampling
            out-neighbours needs them.
        normalize_features: divide each row of ``x`` by the sum of its absolute values.
        drop: names of data to leave out instead of refusing it.
        rename: new names by old ones. An old name is that of a node type, a relation or a table, wherever it occurs;
            ``SRC__REL__DST`` is one edge type's relation, and ``TYPE/TABLE`` one type's table.
        overwrite: replace an existing graph folder.
        progress: receives the stages.

    Returns:
        Sentences about the import that the user should read; usually none.

    Raises:
        ConfigError: unknown format, a package that is not installed, a name in ``drop`` that is not refused, a name in
            ``rename`` that is not there or that two things would get, or ``dst`` may not be written.
        DataError: ``src`` is missing, malformed or holds data that cannot be imported; the message names the file and
            the data.
    """
    if fmt not in IMPORTERS:
        raise UnknownNameError.of("format", fmt, IMPORTERS)
    source = path_here(src, "import")
    if not source.exists():
        raise DataError(source, "no such file or folder")
    check_tree(source)
    options = ImportOptions(
        undirected, reverse, normalize_features, progress or Silent(), frozenset(drop), dict(rename or {})
    )
    provenance = {
        "command": f"import {fmt}",
        "source": source.name,
        "options": {"undirected": undirected, "reverse": reverse, "normalize_features": normalize_features},
        "dropped": sorted(options.drop),
        "renamed": dict(options.rename),
        "notes": options.notes,
    }
    with written_graph(
        dst, overwrite=overwrite, provenance=provenance, rename=options.rename, progress=progress
    ) as out:
        IMPORTERS[fmt](source, out, options)
        options.check_dropped()
        out.check_renamed()
    return options.notes
