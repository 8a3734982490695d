"""An importer: adjacency lists, a line for each vertex with the vertex and those that its edges lead to, by number. ``#``
begins a comment. ``networkx.write_adjlist`` writes such files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from atta.errors import DataError
from atta.partition.graph import EDGE_TYPE, NODE_TYPE, GraphWriter
from atta.partition.importers import Format, ImportOptions
from atta.partition.importers.reading.filling import EdgeStream


class AdjacencyLists:
    """Reads the format."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the first 64 KiB of a file are numbers; the last line may be cut off."""
        return bool(head) and all(word.isdigit() for line in _lines(head) for word in line)

    def read(self, source: Path, out: GraphWriter, options: ImportOptions) -> None:
        """Fill the graph; raises DataError for what is no number."""
        lines = [line for line in _lines(source.read_bytes()) if line]
        try:
            numbers = np.array([word for line in lines for word in line], dtype=np.int64)
        except (ValueError, OverflowError) as error:
            raise DataError(source, f"not adjacency lists: {error}") from None
        ids, rows = np.unique(numbers, return_inverse=True)
        lengths = np.array([len(line) for line in lines], dtype=np.int64)
        begin = np.cumsum(lengths) - lengths
        out.add_nodes(NODE_TYPE, len(ids), ids=ids)
        with EdgeStream(out, EDGE_TYPE, options, total=len(rows) - len(lines)) as stream:
            stream.append(np.repeat(rows[begin], lengths - 1), np.delete(rows, begin))


def _lines(data: bytes) -> list[list[bytes]]:
    return [line.partition(b"#")[0].split() for line in data.splitlines()]


adjlist = Format(AdjacencyLists(), "lines of a vertex and those that its edges lead to")
