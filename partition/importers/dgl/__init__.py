"""A file of one graph that ``dgl.save_graphs`` wrote, the ``NAME.json`` of DistDGL's partitions, the ``metadata.json``
of a graph in chunks (``chunks.py``), or the ``meta.yaml`` of a ``CSVDataset`` (``csv_set.py``).

Tensors ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits. Other tensors become tables of their own
name. ``ndata["_ID"]`` has the user ids if its numbers are distinct.
"""

from __future__ import annotations

from pathlib import Path

from atta.observe.extras import need
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.chunks import CHUNKS, describes_chunks, read_chunks
from atta.partition.importers.dgl.file import read_file
from atta.partition.importers.dgl.parts import read_parts
from atta.partition.importers.reading.options import ImportOptions

__all__ = ["read", "recognises"]

_GRAPHS = 0xDD2E4FF046B4A13F.to_bytes(8, "little")
"""What files of ``dgl.save_graphs`` begin with."""
_LOOKED_AT = 4 << 20
"""How much of a file is looked at to find out what it is."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file or folder of one graph."""
    if source.is_dir() and (source / CHUNKS).is_file():
        source = source / CHUNKS
    if source.is_file() and describes_chunks(_beginning(source)):
        read_chunks(source, out, options)
        return
    need("importing DGL's graphs", "dgl", "torch")
    if source.suffix == ".bin" or _beginning(source).startswith(_GRAPHS):
        read_file(source, out, options)
    else:
        read_parts(source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``dgl.save_graphs``, or the description of DistDGL's partitions or of chunks."""
    if path.is_dir():
        return (path / CHUNKS).is_file() and describes_chunks(_beginning(path / CHUNKS))
    parts = all(key in head for key in (b'"part_method"', b'"part-0"'))
    return head.startswith(_GRAPHS) or parts or describes_chunks(head)


def _beginning(source: Path) -> bytes:
    with open_regular(source) as file:
        return file.read(_LOOKED_AT)
