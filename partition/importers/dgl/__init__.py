"""A file of one graph that ``dgl.save_graphs`` wrote, or the ``NAME.json`` of DistDGL's partitions.

Tensors ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits. Other tensors become tables of their own
name. ``ndata["_ID"]`` has the user ids if its numbers are distinct.
"""

from __future__ import annotations

from pathlib import Path

from atta.observe.extras import need
from atta.partition.disk.files import open_regular
from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.file import read_file
from atta.partition.importers.dgl.parts import read_parts
from atta.partition.importers.reading.options import ImportOptions

__all__ = ["read", "recognises"]

_GRAPHS = 0xDD2E4FF046B4A13F.to_bytes(8, "little")
"""What files of ``dgl.save_graphs`` begin with."""


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph or the partition configuration ``source``."""
    need("importing DGL's graphs", "dgl", "torch")
    if source.suffix == ".bin" or _holds_graphs(source):
        read_file(source, out, options)
    else:
        read_parts(source, out, options)


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a file of ``dgl.save_graphs``, or the description of DistDGL's partitions."""
    return head.startswith(_GRAPHS) or all(key in head for key in (b'"part_method"', b'"part-0"'))


def _holds_graphs(source: Path) -> bool:
    with open_regular(source) as file:
        return file.read(len(_GRAPHS)) == _GRAPHS
