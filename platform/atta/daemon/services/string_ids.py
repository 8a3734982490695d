"""Answers which vertices of this daemon have which string ids: ``IdService``.

The strings are rows of the table ``name``, which lies with the vertices' owners. So no daemon needs all of them.
"""

from __future__ import annotations

import threading

import numpy as np

from atta.daemon.peers.peers import CHUNK_BYTES
from atta.daemon.services.data import DataService, TurnPool
from atta.daemon.services.handling import Context, Handler
from atta.daemon.services.rooms import AnswerRoom
from atta.errors import ConfigError, DataError
from atta.kvstore.store import Store
from atta.kvstore.strings import StringIndex
from atta.partition.dataset import Dataset
from atta.partition.graph.strings import NAME, string_width, to_strings
from atta.protos.v1 import ids_pb2
from atta.wire.messages.bulk import as_array
from atta.wire.messages.fields import ARRAYS_BYTES

__all__ = ["IdService"]

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

    def methods(self) -> dict[str, Handler]:
        """The handlers by their names in ``ids.proto``."""
        return {"Numbers": self.numbers, "Strings": self.strings}

    async def numbers(self, request: ids_pb2.NumbersRequest, context: Context) -> ids_pb2.NumbersReply:
        """``IdService.Numbers``."""
        self._width(request.node_type)
        if not 1 <= request.width <= MAX_WIDTH or len(request.strings) % request.width:
            raise ConfigError(
                f"{len(request.strings)} bytes are not strings of {request.width} bytes, 1 to {MAX_WIDTH}"
            )
        wanted = np.frombuffer(request.strings, np.uint8).reshape(-1, request.width)
        at, numbers = await self.run(CHUNK_BYTES, self._found, request.node_type, wanted)
        return ids_pb2.NumbersReply(at=at.tobytes(), numbers=numbers.tobytes())

    async def strings(self, request: ids_pb2.StringsRequest, context: Context) -> ids_pb2.StringsReply:
        """``IdService.Strings``."""
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
