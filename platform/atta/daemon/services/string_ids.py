"""Answers which vertices of this daemon have which string ids: ``IdService``.

The strings are rows of the table ``name``, which lies with the vertices' owners. So no daemon needs all of them.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.services.data import DataService, TurnPool
from atta.daemon.services.handling import Context
from atta.daemon.services.rooms import AnswerRoom
from atta.errors import ConfigError, DataError
from atta.kvstore.store import Store
from atta.partition.dataset import Dataset
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.protos.v1 import ids_pb2
from atta.wire.bulk import ARRAYS_BYTES, as_array

_CHUNK_ROWS = 1 << 18
_WORD = 8
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

Rows = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


class StringIndex:
    """Positions of rows by their content. It takes 16 bytes per row.

    Rows are sorted by a hash of 64 bits. A search compares the bytes, too, so equal hashes do no harm.
    """

    def __init__(self, rows: Rows) -> None:
        """``rows``: uint8 [n, w], kept and not copied."""
        self._rows = rows
        hashes = _hashes(rows)
        self._order = np.argsort(hashes, kind="stable").astype(np.int64)
        self._hashes = hashes[self._order]

    def twice(self) -> int | None:
        """The position of a row whose content another row has as well; None if there is none."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        first, second = self._order[same], self._order[same + 1]
        equal = first[(self._rows[first] == self._rows[second]).all(axis=1)]
        return int(equal[0]) if len(equal) else None

    def find(self, wanted: Rows) -> Places:
        """int64 [m]: the position of the first row with the content of each row of ``wanted`` [m, v]; -1: none has it.

        Rows of different widths are compared as if zeros filled the shorter one.
        """
        width = self._rows.shape[1]
        fits = ~wanted[:, width:].any(axis=1)
        asked = np.zeros((len(wanted), width), np.uint8)
        asked[:, : wanted.shape[1]] = wanted[:, :width]
        hashes, found = _hashes(asked), np.full(len(wanted), -1, np.int64)
        at = np.searchsorted(self._hashes, hashes)
        left = np.flatnonzero(fits)
        while len(left := self._equal_hashes(left, at, hashes)):
            row = self._order[at[left]]
            same = (self._rows[row] == asked[left]).all(axis=1)
            found[left[same]] = row[same]
            left = left[~same]
            at[left] += 1
        return found

    def _equal_hashes(self, left: Places, at: Places, hashes: npt.NDArray[np.uint64]) -> Places:
        """Those of ``left`` for which the place ``at`` has the hash that is searched."""
        left = left[at[left] < len(self._hashes)]
        equal: Places = left[self._hashes[at[left]] == hashes[left]]
        return equal


def _hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """uint64 [n]: a hash of each row, word by word (multiply and shift, as in Fibonacci hashing)."""
    n, width = rows.shape
    out = np.full(n, _ODD, np.uint64)
    words = np.zeros((min(n, _CHUNK_ROWS), -(-width // _WORD) * _WORD), np.uint8)
    for first in range(0, n, _CHUNK_ROWS):
        part = out[first : first + _CHUNK_ROWS]
        words[: len(part), :width] = rows[first : first + len(part)]
        for word in words[: len(part)].view("<u8").T:
            part ^= word
            part *= _ODD
            part ^= part >> _SHIFT
    return out


MAX_WIDTH = 4096
"""Longest string in a request, in bytes."""
_REPLY_BYTES = ARRAYS_BYTES - (1 << 16)


class IdService(DataService):
    """``IdService`` of a daemon."""

    def __init__(
        self, dataset: Dataset, part: int, store: Store, pool: TurnPool, address: str, *, answers: AnswerRoom
    ) -> None:
        """``part``: the owner, as in ``dataset.part``."""
        super().__init__(dataset.dataset_id, pool, address, answers=answers)
        self._dataset, self._part, self._store = dataset, part, store
        self._indexes: dict[str, StringIndex] = {}
        self._indexing = threading.Lock()

    async def numbers(self, request: ids_pb2.NumbersRequest, context: Context) -> ids_pb2.NumbersReply:
        self._width(request.node_type)
        if not 1 <= request.width <= MAX_WIDTH or len(request.strings) % request.width:
            raise ConfigError(
                f"{len(request.strings)} bytes are not strings of {request.width} bytes, 1 to {MAX_WIDTH}"
            )
        wanted = np.frombuffer(request.strings, np.uint8).reshape(-1, request.width)
        at, numbers = await self.run(CHUNK_BYTES, self._found, request.node_type, wanted)
        return ids_pb2.NumbersReply(at=at.tobytes(), numbers=numbers.tobytes())

    async def strings(self, request: ids_pb2.StringsRequest, context: Context) -> ids_pb2.StringsReply:
        width, numbers = self._width(request.node_type), as_array(request.numbers, wide=True)
        if len(numbers) * width > _REPLY_BYTES:
            raise ConfigError(f"{len(numbers)} strings of {width} bytes: at most {_REPLY_BYTES} bytes in one request")
        at, rows = await self.run(CHUNK_BYTES, self._named, request.node_type, numbers)
        return ids_pb2.StringsReply(width=width, at=at.tobytes(), strings=rows.tobytes())

    def _width(self, node_type: str) -> int:
        width = string_width(self._dataset.schema, node_type)
        if not width:
            raise ConfigError(f"the vertices of node type {node_type!r} have no string ids")
        return width

    def _found(self, node_type: str, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = self._index(node_type).find(wanted)
        at = np.flatnonzero(rows >= 0).astype(np.int32)
        lo, _ = self._dataset.book.range(node_type, self._part)
        return at, np.asarray(self._dataset.ids(node_type)[lo + rows[at]])

    def _named(self, node_type: str, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        internal = self._dataset.to_internal(node_type, numbers)
        lo, hi = self._dataset.book.range(node_type, self._part)
        at = np.flatnonzero((internal >= lo) & (internal < hi)).astype(np.int32)
        return at, self._store.table(node_type, NAME).data[internal[at] - lo]

    def _index(self, node_type: str) -> StringIndex:
        """The index of this daemon's strings. It is made when it is first used."""
        with self._indexing:
            if node_type not in self._indexes:
                rows = self._store.table(node_type, NAME).data
                index = StringIndex(rows)
                if (twice := index.twice()) is not None:
                    name = str(to_strings(rows[twice : twice + 1])[0])
                    raise DataError(
                        self._dataset.path, f"two vertices of node type {node_type!r} have the string id {name!r}"
                    )
                self._indexes[node_type] = index
        return self._indexes[node_type]
