"""A ``.bin`` file of one graph that ``dgl.save_graphs`` wrote, or the ``NAME.json`` of DistDGL's partitions.

Tensors ``feat``, ``label`` and ``NAME_mask`` become ``x``, ``y`` and splits. Other tensors become tables of their own
name. ``ndata["_ID"]`` has the user ids if its numbers are distinct.
"""

from __future__ import annotations

from pathlib import Path

from atta.partition.graph import GraphWriter
from atta.partition.importers.dgl.file import read_file
from atta.partition.importers.dgl.parts import read_parts
from atta.partition.importers.dgl.tensors import require_dgl
from atta.partition.importers.reading.options import ImportOptions

__all__ = ["read"]


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the file of one graph (``.bin``) or the partition configuration ``source``."""
    dgl = require_dgl("importing DGL's graphs")
    if source.suffix == ".bin":
        read_file(dgl, source, out, options)
    else:
        read_parts(source, out, options)
