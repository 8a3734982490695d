"""What a daemon reads from the disk while it serves: table rows and in-edges of a partition that is larger than its memory.
Reads of a request are sorted, merged and under way together, and they pass the page cache by. A bounded number of rows stay
in memory: those that batches of the window will ask for next, then those that were asked for most often lately."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from atta import _native
from atta.errors import DataError
from atta.partition.dataset import Dataset
from atta.partition.disk.files import array_start
from atta.partition.graph.needs import EDGE_BLOCK, DiskPlan, edge_file, node_file
from atta.samplers.kernels.arrays import as_bytes, ids_of
from atta.samplers.shard import EdgesElsewhere

MOST_HALF_LIFE = 1 << 22
"""Number of rows after which a request counts half as much, at most: counting takes four bytes for each."""


class DiskTable:
    """The rows of one table. Safe to use from many threads."""

    def __init__(self, path: Path, rows: int, row_bytes: int, slots: int) -> None:
        """``slots``: number of rows that stay in memory. Raises DataError: the file cannot be opened."""
        with _blaming():
            half_life = min(MOST_HALF_LIFE, max(rows, 1))
            self.native = _native.DiskRows(str(path), array_start(path), rows, row_bytes, slots, half_life, True, True)

    def gather(self, rows: np.ndarray, out: np.ndarray, positions: np.ndarray | None = None, turn: int = -1) -> None:
        """``out[positions[i]] = table[rows[i]]``, or ``out[i]``. ``turn``: of the batch that asks, see ``DiskData.expect``.
        Raises ValueError: a row that does not exist; DataError: the file cannot be read."""
        at = None if positions is None else ids_of(positions)
        with _blaming():
            self.native.gather(ids_of(rows), as_bytes(out), at, turn)

    def taken(self, rows: np.ndarray, like: np.ndarray, turn: int = -1) -> np.ndarray:
        """The rows [m, *row_shape], of the dtype and shape of ``like``'s. Errors as for ``gather``."""
        out = np.empty((len(rows), *like.shape[1:]), like.dtype)
        self.gather(rows, out, turn=turn)
        return out


class DiskEdges(EdgesElsewhere):
    """Sources and ids of the in-edges of one type, by their positions."""

    def __init__(self, sources: Path, edge_ids: Path, slots: tuple[int, int]) -> None:
        """``slots``: number of blocks of each file that stay in memory. Raises DataError: a file cannot be opened."""
        self.starts = array_start(sources), array_start(edge_ids)
        with _blaming():
            self.natives = _blocks(sources, slots[0]), _blocks(edge_ids, slots[1])

    def read(self, positions: np.ndarray, *types: np.dtype) -> tuple[np.ndarray, ...]:
        """Sources and ids of the edges at ``positions``, int64 [m], or sources alone. Raises DataError: a file cannot be
        read."""
        found = tuple(np.empty(len(positions), dtype) for dtype in types)
        with _blaming():
            for native, start, out in zip(self.natives, self.starts, found, strict=False):
                native.values(start, positions, out)
        return found


class DiskData:
    """All that is read from the disk, by node type and table, and by edge type."""

    def __init__(self, dataset: Dataset, part: int, plan: DiskPlan) -> None:
        """Open the files that ``plan`` names. Raises DataError: one of them cannot be opened."""
        of_part, slots = dataset.part(part), plan.slots
        part = of_part.index  # of the partition, where other daemons serve several
        self.tables: dict[tuple[str, str], DiskTable] = {}
        self.edges: dict[str, DiskEdges] = {}
        for node_type, tables in dataset.schema.node_tables.items():
            rows = of_part.num_core(node_type)
            for name, spec in tables.items():
                if (kept := slots.get(file := node_file(part, node_type, name))) and rows:
                    self.tables[node_type, name] = DiskTable(dataset.path / file, rows, spec.row_bytes, kept)
        for edge_type in dataset.schema.edge_types:
            files = edge_file(part, edge_type, "indices"), edge_file(part, edge_type, "edge_ids")
            if all(file in slots for file in files) and dataset.files[files[0]].shape[0]:
                paths = dataset.path / files[0], dataset.path / files[1]
                self.edges[edge_type] = DiskEdges(*paths, (slots[files[0]], slots[files[1]]))

    def expect(self, turn: int, node_type: str, tables: Sequence[str], rows: np.ndarray) -> None:
        """A batch that has been sampled will ask for ``rows``, int64 [m]; batches with lower turns ask earlier."""
        for name in tables:
            if (table := self.tables.get((node_type, name))) is not None:
                table.native.expect(turn, np.ascontiguousarray(rows, dtype=np.int64))

    def close(self, turn: int) -> None:
        """The batch will ask for nothing any more."""
        for table in self.tables.values():
            table.native.close(turn)

    def stats(self) -> dict[str, float]:
        """What has been read, summed over all files."""
        natives = [table.native for table in self.tables.values()]
        natives += [native for edges in self.edges.values() for native in edges.natives]
        found = Counter[str]()
        for native in natives:
            found.update(native.figures())
        return dict(found)


NOTHING_ON_DISK: Mapping[tuple[str, str], DiskTable] = {}


def _blocks(path: Path, slots: int) -> _native.DiskRows:
    count = -(-path.stat().st_size // EDGE_BLOCK)
    return _native.DiskRows(str(path), 0, count, EDGE_BLOCK, slots, min(MOST_HALF_LIFE, count), True, True)


@contextlib.contextmanager
def _blaming() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cut = error.errno == errno.ENODATA
        why = "truncated: shorter than when it was opened" if cut else error.strerror or str(error)
        raise DataError(error.filename, why) from None
