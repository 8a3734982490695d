"""Exporters: one file per format, found by name; each writes what the importer of the same name reads. User ids are kept, and
edges keep their order, which is their edge id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from atta.errors import ConfigError, UnknownNameError
from atta.observe.progress import Progress, shown
from atta.partition import dataset
from atta.partition.dataset import Dataset
from atta.partition.disk.staging import StagedFile, Staging
from atta.partition.disk.store import path_here
from atta.partition.exporters import dgl, npz, ogb, pyg, pyg_parts, table
from atta.partition.graph import MANIFEST, Graph

__all__ = ["EXPORTERS", "PARTITIONED", "Exporter", "export_graph"]


class Exporter(Protocol):
    """Writes one format. ``MARKER``: a file that every folder of this format has; None: the format is a single file."""

    MARKER: str | None

    def lost(self, graph: Graph) -> list[str]:
        """Name everything in ``graph`` that the format cannot hold; raises ConfigError when a library is missing."""

    def write(self, graph: Graph, dst: Path, progress: Progress) -> None:
        """Write ``graph`` into the empty folder (or as the file) ``dst``."""


EXPORTERS: dict[str, Exporter] = {"dgl": dgl, "npz": npz, "ogb": ogb, "pyg": pyg, "table": table}
PARTITIONED = {"pyg-parts": pyg_parts}
"""Formats that are made from a partitioned dataset."""


def export_graph(
    fmt: str, src: str | Path, dst: str | Path, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Write the graph folder or partitioned dataset ``src`` to ``dst`` in the format ``fmt``.

    Args:
        fmt: name of the format: a key of EXPORTERS or PARTITIONED.
        src: a partitioned dataset for the formats in PARTITIONED, otherwise a graph folder.
        dst: folder (npz, ogb, table, pyg-parts) or file (pyg, dgl) to write, complete or not at all.
        overwrite: replace an earlier export.
        progress: receives the stages.

    Raises:
        ConfigError: unknown format, the format cannot hold the whole graph, a place is a URL, or ``dst`` may not be
            written.
        DataError: ``src`` is missing or damaged; the message names the file.
    """
    source, dst = path_here(src, "export"), path_here(dst, "export")
    if fmt not in EXPORTERS and fmt not in PARTITIONED:
        raise UnknownNameError.of("format", fmt, [*EXPORTERS, *PARTITIONED])
    is_graph, exporter = (source / MANIFEST).is_file(), EXPORTERS.get(fmt) or PARTITIONED[fmt]
    if fmt in PARTITIONED and is_graph:
        raise ConfigError(f"{source}: a graph folder; {fmt!r} is made from a partitioned dataset (atta partition)")
    if fmt in EXPORTERS and not is_graph and (source / dataset.MANIFEST).is_file():
        raise ConfigError(f"{source}: a partitioned dataset; export the graph folder that it was made from")
    graph: Any = Dataset.open(source) if fmt in PARTITIONED else Graph.open(source)
    if lost := exporter.lost(graph):
        raise ConfigError(f"{source}: the format {fmt!r} cannot hold {', '.join(lost)}")
    if exporter.MARKER is None:
        with StagedFile(dst, overwrite=overwrite) as path:
            exporter.write(graph, path, shown(progress))
    else:
        with Staging(dst, exporter.MARKER, overwrite=overwrite) as staging:
            exporter.write(graph, staging.path, shown(progress))
