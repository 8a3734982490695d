"""A file of one graph that ``dgl.save_graphs`` wrote, the ``NAME.json`` of DistDGL's partitions, the ``metadata.json``
of a graph in chunks (``chunks.py``), the ``meta.yaml`` of a ``CSVDataset`` (``csv_set.py``), or the ``metadata.yaml`` of
GraphBolt's data sets (``graphbolt.py``); of the latter three also their folder.

Tensors ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits. Other tensors become tables of their own
name. ``ndata["_ID"]`` has the user ids if its numbers are distinct.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atta.observe.extras import need
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.chunks import describes_chunks, read_chunks
from atta.partition.importers.dgl.csv_set import describes_csv_set, read_csv_set
from atta.partition.importers.dgl.file import read_file
from atta.partition.importers.dgl.graphbolt import describes_graphbolt, read_graphbolt
from atta.partition.importers.dgl.parts import read_parts
from atta.partition.importers.reading.options import ImportOptions

__all__ = ["read", "recognises"]

_GRAPHS = 0xDD2E4FF046B4A13F.to_bytes(8, "little")
"""What files of ``dgl.save_graphs`` begin with."""
_DESCRIBED: dict[Callable[[Path, GraphWriter, ImportOptions], None], Callable[[Path], bool]] = {
    read_chunks: describes_chunks,
    read_csv_set: describes_csv_set,
    read_graphbolt: describes_graphbolt,
}
"""Who reads descriptions of graphs, and whether one is of its kind. None of them needs DGL."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file or folder of one graph."""
    for reader, recognised in _DESCRIBED.items():
        if recognised(source):
            reader(source, out, options)
            return
    need("importing DGL's graphs", "dgl", "torch")
    if source.suffix == ".bin" or _beginning(source).startswith(_GRAPHS):
        read_file(source, out, options)
    else:
        read_parts(source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``dgl.save_graphs``, or the description of DistDGL's partitions or of a data set."""
    parts = all(key in head for key in (b'"part_method"', b'"part-0"'))
    return head.startswith(_GRAPHS) or parts or any(recognised(path) for recognised in _DESCRIBED.values())


def _beginning(source: Path) -> bytes:
    with open_regular(source) as file:
        return file.read(len(_GRAPHS))
