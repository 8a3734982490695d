"""The binary files of Dorylus (paper, appendix A.3.3), all little endian.

graph.bsnap        int32 bytes per vertex number (4), uint32 vertices, uint64 edges; then pairs of uint32
                   (source, destination)
features.bsnap     uint32 features per vertex; then float32 rows                                  [optional]
labels.bsnap       uint32 number of classes; then one uint32 per vertex                           [optional]
[parts_N/]graph.bsnap.parts   text, the partition of each vertex, one per line; becomes the node table ``part``, which
                   ``atta partition --method given:table=part`` uses                           [optional]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from atta.errors import DataError, blaming
from atta.partition.disk.files import chunks
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers.reading.filling import EdgeStream, add_features
from atta.partition.importers.reading.source import Array, ImportOptions, state_classes

_HEADER = np.dtype([("vertex_bytes", "<i4"), ("vertices", "<u4"), ("edges", "<u8")])
_EDGE = np.dtype(("<u4", (2,)))
_CHUNK = 4 << 20


def read(source: Path, out: GraphWriter, options: ImportOptions) -> None:
    """Import the folder ``source`` (or its ``graph.bsnap``)."""
    path = source if source.is_file() else source / "graph.bsnap"
    header = _map(path, _HEADER, 0, 1)[0]
    if header["vertex_bytes"] != 4:
        raise DataError(path, f"vertex numbers of {header['vertex_bytes']} bytes; only 4 are read")
    vertices = int(header["vertices"])
    edges = _map(path, _EDGE, _HEADER.itemsize, int(header["edges"]), whole=True)
    options.refuse_others(path.parent, "*.bsnap", ("graph.bsnap", "features.bsnap", "labels.bsnap"))
    out.add_nodes(NODE_TYPE, vertices)
    _add_tables(path.parent, out, options, vertices)
    with EdgeStream(out, EDGE_TYPE, options, total=len(edges)) as stream:
        for lo, hi in chunks(len(edges), _CHUNK):
            pairs = edges[lo:hi].astype(np.int64)
            if len(pairs) and pairs.max() >= vertices:
                raise DataError(path, f"an edge has the end point {pairs.max()}, but there are {vertices} vertices")
            stream.append(pairs[:, 0], pairs[:, 1])


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is a folder with ``graph.bsnap``, or that file."""
    return path.name == "graph.bsnap" if head else (path / "graph.bsnap").is_file()


def _add_tables(folder: Path, out: GraphWriter, options: ImportOptions, vertices: int) -> None:
    if (path := folder / "features.bsnap").exists():
        width = int(_map(path, np.dtype("<u4"), 0, 1)[0])
        values = _map(path, np.dtype("<f4"), 4, vertices * width, whole=True)
        add_features(out, values.reshape(vertices, width), NODE_TYPE, options)
    if (path := folder / "labels.bsnap").exists():
        out.add_labels(_map(path, np.dtype("<u4"), 4, vertices, whole=True).astype(np.int64))
        stated = int(_map(path, np.dtype("<u4"), 0, 1)[0])
        if (out.num_classes or 0) > stated:
            raise DataError(path, f"has the label {(out.num_classes or 0) - 1}, but its heading says {stated} classes")
        state_classes(out, path, stated)
    found = sorted(folder.glob("graph.bsnap.parts")) + sorted(folder.glob("parts_*/graph.bsnap.parts"))
    if len(found) > 1:
        raise DataError(folder, f"holds {len(found)} assignments of partitions; leave one graph.bsnap.parts")
    for path in found:
        out.add_table("part", _parts(path, vertices))


def _parts(path: Path, vertices: int) -> Array:
    with blaming(DataError, path, "not a list of partitions", of=(OSError, ValueError), say=str):
        parts = np.loadtxt(path, dtype=np.int32, ndmin=1, comments=None)
    if parts.shape != (vertices,) or (parts < 0).any():
        raise DataError(path, f"wanted is one partition per line for each of the {vertices} vertices")
    return parts


def _map(path: Path, dtype: np.dtype[Any], offset: int, count: int, *, whole: bool = False) -> Array:
    """Memory-map ``count`` items; ``whole``: nothing may follow them."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError(path, "the file is missing") from None
    end = offset + count * dtype.itemsize
    if size < end or (whole and size != end):
        raise DataError(path, f"{size} bytes, but its heading says {end}")
    if not count:
        return np.empty((0, *dtype.shape), dtype.base)
    return np.asarray(np.memmap(path, dtype, "r", offset=offset, shape=(count,)))
