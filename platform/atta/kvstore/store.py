"""Tables of one partition. Rows are gathered by their positions, which are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

import numpy as np

from atta.errors import ConfigError, UnknownNameError, blaming
from atta.kvstore import codecs
from atta.kvstore.disk import NOTHING_ON_DISK, DiskTable
from atta.kvstore.live.book import Rows
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.kernels.sums import largest, pack_sums


def known_codec(codec: str) -> str:
    """``codec`` if rows can travel in it (empty: as they are); raises UnknownNameError."""
    if codec and codec not in codecs.CODECS:
        raise UnknownNameError.of("codec", codec, codecs.CODECS)
    return codec


def wire_bytes(row: np.ndarray, codec: str) -> int:
    """Bytes of one row on the wire. ``row``: an array of its dtype and size. Codecs change only float32 rows."""
    return codecs.encoded_bytes(codec, row.size) if codec and row.dtype == np.float32 else row.nbytes


@dataclass(frozen=True, slots=True)
class Table:
    """A named table's rows on this partition: ``data`` [core rows, *row_shape], read-only. ``disk`` reads many of them
    faster than ``data``, which is a mapped file then."""

    node_type: str
    name: str
    data: np.ndarray
    disk: DiskTable | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.data.dtype.itemsize * prod(self.data.shape[1:])


class Store:
    """This daemon's shard of every table."""

    def __init__(
        self,
        dataset: Dataset,
        part: int,
        *,
        threads: int = 1,
        resident: bool = False,
        disk: Mapping[tuple[str, str], DiskTable] = NOTHING_ON_DISK,
    ) -> None:
        """Map the tables of partition ``part``; ``resident``: load them into memory, but for those of ``disk``."""
        self.part = part
        self.threads = threads
        shard = dataset.part(part)
        self._tables: dict[tuple[str, str], Table] = {}
        for node_type, tables in dataset.schema.node_tables.items():
            for name in tables:
                data, reader = shard.table(node_type, name), disk.get((node_type, name))
                held = kernels.resident(data) if resident and reader is None else np.asarray(data)
                self._tables[node_type, name] = Table(node_type, name, held, reader)
        self._live: dict[Rows, Table] = {}
        self._largest: dict[Rows, np.ndarray] = {}

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def table(self, node_type: str, name: str, source: int = 0) -> Table:
        """The table ``name`` with the rows that version ``source`` brought (``atta.kvstore.live.book``); 0: the
        dataset's own. Raises UnknownNameError with the nearest name that exists."""
        found = self._tables.get((node_type, name)) if not source else self._live.get((node_type, name, source))
        if found is None and source:
            held = sorted(number for t, n, number in [*self._live] if (t, n) == (node_type, name))
            raise UnknownNameError.of(f"version of {node_type}/{name}", source, [0, *held])
        if found is None:
            raise UnknownNameError.of("table", f"{node_type}/{name}", (f"{t}/{n}" for t, n in self._tables))
        return found

    # -- versions: changed on the event loop, read by any thread -------------------------------------------------------

    @property
    def live(self) -> frozenset[Rows]:
        """Which rows of later versions are here."""
        return frozenset(self._live)

    @property
    def live_bytes(self) -> int:
        """Bytes of these."""
        return sum(table.data.nbytes for table in self._live.values())

    def add(self, rows: Rows, data: np.ndarray) -> None:
        """Hold rows [core, *row_shape] of a later version."""
        self._live[rows] = Table(rows[0], rows[1], data)

    def drop(self, rows: Rows) -> None:
        """Let go of them. Who reads them right now keeps them until it has done."""
        self._live.pop(rows, None)
        self._largest.pop(rows, None)

    def gather_to(
        self,
        node_type: str,
        name: str,
        rows: np.ndarray,
        out: np.ndarray,
        positions: np.ndarray,
        *,
        source: int = 0,
        beside: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
        turn: int = -1,
    ) -> None:
        """``out[positions[i]] = table[rows[i]]``, because rows of several owners interleave in a batch.

        ``rows`` (int32|int64) are positions in this partition's range; ``source``: see ``table``. ``beside``: another
        table, its rows and their positions, which are written together with these. ``turn``: of the batch, where rows are
        on the disk. Raises ConfigError: a row outside the partition; DataError: the file cannot be read."""
        table = self.table(node_type, name, source)
        with self._blaming(table):
            if table.disk is not None:
                table.disk.gather(rows, out, positions, turn)
                if beside is not None:
                    kernels.gather_rows(beside[0], beside[1], out, positions=beside[2])
            elif beside is None:
                kernels.gather_rows(table.data, rows, out, positions=positions, threads=self.threads)
            else:
                kernels.gather_merged([(table.data, rows, positions), beside], out)

    def pack(self, tables: Sequence[Table], rows: np.ndarray, prefix: bytes, codec: str = "") -> bytes:
        """A message: ``prefix``, then the bytes of ``rows`` of each table. Without a codec it is made with one copy.
        Raises ConfigError: a row outside the partition."""
        if codec:
            return prefix + self._encoded(tables, rows, codec)
        if any(table.disk is not None for table in tables):
            return prefix + b"".join(self._taken(table, rows).tobytes() for table in tables)
        with self._blaming(tables[0]):
            return kernels.pack_rows(prefix, [table.data for table in tables], rows)

    def pack_sums(
        self, table: Table, rows: np.ndarray, counts: np.ndarray, weights: np.ndarray | None, prefix: bytes, *,
        shifts: np.ndarray, width: int,
    ) -> bytes:  # fmt: skip
        """A message: ``prefix``, then sums of rows, see ``kernels.sums.pack_sums``. Raises ConfigError: a row outside the
        partition, or sums that cannot be made."""
        held = table.data
        if table.disk is not None:
            held, rows = self._taken(table, rows), np.arange(len(rows))
        with self._blaming(table):
            return pack_sums(prefix, [held], rows, counts, weights, shifts=shifts, width=width)

    def largest(self, table: Table, source: int = 0) -> np.ndarray:
        """The largest absolute values of a table's columns, see ``kernels.sums.largest``; ``source``: see ``table``."""
        key = table.node_type, table.name, source
        if (found := self._largest.get(key)) is None:
            found = largest(table.data)
            if not source or key in self._live:
                self._largest[key] = found
        return found

    def _encoded(self, tables: Sequence[Table], rows: np.ndarray, codec: str) -> bytes:
        blocks = []
        for table in tables:
            found = self._taken(table, rows)
            plain = table.data.dtype != np.float32
            blocks.append(found.tobytes() if plain else codecs.encode(codec, found.reshape(len(rows), -1)).tobytes())
        return b"".join(blocks)

    def _taken(self, table: Table, rows: np.ndarray) -> np.ndarray:
        with self._blaming(table):
            return kernels.taken(table.data, rows) if table.disk is None else table.disk.taken(rows, table.data)

    def _blaming(self, table: Table) -> AbstractContextManager[None]:
        return blaming(ConfigError, f"part {self.part}, table {table.node_type}/{table.name}", of=ValueError)
