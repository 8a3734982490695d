"""Tasks that move edges to the owners of their destinations, and write the partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.observe.progress import Silent
from atta.partition import dataset as layout
from atta.partition.cutting.numbering import Numbering
from atta.partition.cutting.part_writer import PartWriter
from atta.partition.cutting.quality import Counts
from atta.partition.disk.files import FileRecord, chunks, describe_file, map_array, write_array
from atta.partition.distributed.shuffled import BucketReader, BucketWriter
from atta.partition.distributed.task_work import EdgeSlice, TaskWork
from atta.partition.graph import Graph, index_dtype
from atta.partition.names import file_name

__all__ = ["keep_numbering", "split_by_part", "written_part"]

_FIELDS = ("offsets", "row_of", "internal_of", "rank_of", "ids")

Array = npt.NDArray[Any]


def keep_numbering(work: TaskWork, numbering: Mapping[str, Numbering]) -> None:
    """Write down how vertices are numbered, for all tasks to map."""
    for node_type, numbers in numbering.items():
        for name in _FIELDS:
            write_array(work.folder / "numbering" / file_name(node_type) / f"{name}.npy", getattr(numbers, name))


def _numbering(work: TaskWork, graph: Graph) -> dict[str, Numbering]:
    folder = work.folder / "numbering"
    return {
        t: Numbering(*(map_array(folder / file_name(t) / f"{name}.npy") for name in _FIELDS))
        for t in graph.schema.node_types
    }


def split_by_part(work: TaskWork, part: EdgeSlice, parts: int) -> Path:
    """Sort edges by the owner of their destination. Returns the folder of buckets: edge ``ids`` and ``heads``, the
    internal ids of the destinations."""
    graph = work.graph()
    target = graph.schema.endpoints(part.edge_type)[1]
    numbers, dst = _numbering(work, graph)[target], graph.edges(part.edge_type).dst
    index = index_dtype(graph.schema.edge_counts[part.edge_type])
    folder = work.own_folder("moved")
    with BucketWriter(folder, parts, {"ids": index, "heads": numbers.internal_of.dtype}) as out:
        for first, last in chunks(part.hi - part.lo, work.sizes.chunk_edges):
            lo, hi = part.lo + first, part.lo + last
            heads = numbers.internal_of[dst[lo:hi]]
            owners = np.searchsorted(numbers.offsets, heads, side="right") - 1
            out.add(owners, ids=np.arange(lo, hi, dtype=index), heads=heads)
    return folder


class _MovedEdges:
    """The edges that ``split_by_part`` moved; see ``EdgeSource``."""

    def __init__(self, moved: Mapping[str, Sequence[Path]], graph: Graph, numbering: Mapping[str, Numbering]) -> None:
        self._readers = {e: BucketReader(folders, ("ids", "heads")) for e, folders in moved.items()}
        self._offsets = {e: numbering[graph.schema.endpoints(e)[1]].offsets for e in moved}

    def degrees(self, edge_type: str, part: int) -> npt.NDArray[np.int64]:
        lo, hi = (int(x) for x in self._offsets[edge_type][part : part + 2])
        counts = np.zeros(hi - lo, np.int64)
        for _, heads in self._readers[edge_type].bucket(part):
            counts += np.bincount(heads - lo, minlength=hi - lo)
        return counts

    def into(self, edge_type: str, part: int, lo: int, hi: int) -> Iterator[tuple[Array, Array]]:
        for ids, heads in self._readers[edge_type].bucket(part):
            chosen = (heads >= lo) & (heads < hi)
            yield ids[chosen], heads[chosen]


def written_part(
    work: TaskWork, moved: Mapping[str, Sequence[Path]], part: int, parts: int
) -> tuple[Path, Counts, dict[str, FileRecord]]:
    """Write one partition. Returns a folder that holds the partition's, its figures, and the records of its files."""
    graph = work.graph()
    numbering, counts = _numbering(work, graph), Counts.zero(graph.schema, parts)
    source, folder = _MovedEdges(moved, graph, numbering), work.own_folder("part")
    bucket = work.sizes.bucket_edges
    writer = PartWriter(graph, folder, numbering, source, counts=counts, progress=Silent(), bucket_edges=bucket)
    for node_type in graph.schema.node_types:
        for name in graph.schema.node_tables[node_type]:
            writer.table(node_type, name, part)
    writer.edges(part)
    files = sorted((folder / layout.part_folder(part)).rglob("*.npy"))
    return folder, counts, {path.relative_to(folder).as_posix(): describe_file(path) for path in files}
