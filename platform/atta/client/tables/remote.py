"""A mutable table from the client's side: rows go to and come from their owners, several owners at once.

Requests and answers travel in pieces of a few megabytes, within the deadline of the connection.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from atta.client.tables.pushes import SentPush, StepNumber, TableShard, Ticket
from atta.errors import ConfigError, RemoteError, UnavailableError
from atta.kvstore import codecs
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from atta.wire import rpc
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES, ROWS_VALUES, ROWS_VERSIONS

__all__ = ["RemoteTable"]

PIECE_BYTES = 4 << 20
PIECE_ROWS = 1 << 19


class RemoteTable:
    """One mutable table of the cluster. Safe to use from many threads; not across a fork."""

    def __init__(
        self, spec: MutableSpec, shards: Sequence[TableShard], dataset_id: str, *, table_id: int, infos: Sequence[Any]
    ) -> None:
        """``infos``: what the shards' owners say of it (``TableInfo``)."""
        self.spec, self.table_id = spec, table_id
        self.step = max(info.step for info in infos)
        """Steps of the optimiser so far, as far as this client knows; a snapshot that is loaded sets it back."""
        self._shards, self._dataset_id = list(shards), dataset_id
        self._loads = {info.load_id for info in infos}
        self._counting = threading.Lock()

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(shard.rows for shard in self._shards)

    def noticed(self, load_id: int, step: int) -> None:
        """An owner has the table from this load, which left it at this step."""
        with self._counting:
            if load_id not in self._loads:
                self._loads.add(load_id)
                self.step = step

    def again(self, number: StepNumber) -> StepNumber:
        """The number of a step that is sent again: a new one if the table has been loaded since."""
        with self._counting:
            if len(self._loads) == number.loads:
                return number
            self.step += 1
            return StepNumber(self.step, len(self._loads))

    def refresh(self) -> None:
        """Learn of snapshots that have been loaded since, and of the step that they have left the table at.

        Raises:
            UnknownNameError: an owner does not have the table any more.
        """
        request = table_pb2.DescribeTableRequest(name=self.spec.name)
        infos = [shard.connection.call("TableService.Describe", request) for shard in self._shards]
        for shard, info in zip(self._shards, infos, strict=True):
            if shard.registration.load_id != info.load_id:
                shard.registration.renew(shard.registration.client)
        step = max(info.step for info in infos)
        for info in infos:
            self.noticed(info.load_id, step)

    def locate(self, ids: np.ndarray) -> np.ndarray:
        """int64: the rows of the users' ``ids`` of vertices or edges; of a ``range`` table they are the same.

        Raises:
            ConfigError: an unknown vertex or edge.
        """
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        kind = self.spec.policy.partition(":")[0]
        if kind == "range":
            return ids
        if kind == "nodes":
            return self._ask_where(self._shards[0], ids)
        rows = np.full(len(ids), -1, dtype=np.int64)
        for shard in self._shards:
            rows = np.maximum(rows, self._ask_where(shard, ids))
        if len(rows) and rows.min() < 0:
            raise ConfigError(f"table {self.spec.name}: {ids[rows < 0][0]} is no edge of {self.spec.policy}")
        return rows

    def _ask_where(self, shard: TableShard, ids: np.ndarray) -> np.ndarray:
        found = []
        for first in range(0, len(ids), PIECE_ROWS):
            piece = ids[first : first + PIECE_ROWS]
            request = table_pb2.LocateRequest(dataset_id=self._dataset_id, policy=self.spec.policy, ids=piece.tobytes())
            found.append(np.frombuffer(shard.connection.call("TableService.Locate", request).rows, dtype=np.int64))
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def pull(self, rows: np.ndarray, *, codec: str = "", versions: bool = False) -> Pulled:
        """Values [n, *row shape] of global ``rows`` (int64 [n], may repeat) and, if asked for, their versions int64 [n].

        Raises:
            ConfigError: a row that does not exist; an unknown codec.
            UnknownNameError: an owner does not have the table any more, or one that was created anew.
            RemoteError: an owner does not answer.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.empty((len(rows), *self.spec.row_shape), dtype=self.spec.dtype)
        found = np.full(len(rows), -1, dtype=np.int64) if versions else None
        calls = []
        for shard, at in self._by_owner(rows):
            for first in range(0, len(at), PIECE_ROWS):
                piece = at[first : first + PIECE_ROWS]
                request = table_pb2.PullRowsRequest(
                    name=self.spec.name, table_id=self.table_id, rows=rows[piece].tobytes(), codec=codec
                )
                calls.append((shard, piece, request, shard.connection.start("TableService.Pull", request)))
        for shard, piece, request, call in calls:
            patience = shard.connection.patience()
            while True:
                try:
                    self._receive(call, piece, codec, values, found)
                    break
                except grpc.RpcError as failure:
                    error = rpc.error_from(shard.connection.address, failure)
                    if not isinstance(error, UnavailableError) or not patience.lasts():
                        raise error from failure
                call = shard.connection.start("TableService.Pull", request)  # noqa: PLW2901 - the same once more
        return Pulled(values, found)

    def _receive(
        self, call: Any, piece: np.ndarray, codec: str, values: np.ndarray, versions: np.ndarray | None
    ) -> None:
        done = 0
        for bulk in call:
            where = piece[bulk.message.first_row : bulk.message.first_row + bulk.message.rows]
            self._place(bulk, codec, values, where)
            if versions is not None and ROWS_VERSIONS in bulk.payloads:
                versions[where] = np.frombuffer(bulk.payloads[ROWS_VERSIONS], dtype=np.int64)
            done += len(where)
        if done != len(piece):
            raise RemoteError(f"table {self.spec.name}", f"{done} rows of {len(piece)} are answered")

    def _place(self, bulk: rpc.Bulk, codec: str, values: np.ndarray, where: np.ndarray) -> None:
        raw = np.frombuffer(bulk.payloads.get(ROWS_VALUES, b""), dtype=np.uint8)
        if codec:
            flat = values.reshape(len(values), -1)
            codecs.decode(codec, raw.reshape(len(where), -1), flat, positions=where)
        else:
            values[where] = raw.view(self.spec.dtype).reshape(len(where), *self.spec.row_shape)

    def push(
        self,
        rows: np.ndarray,
        values: np.ndarray,
        op: str = "write",
        *,
        version: int | None = None,
        step: int | None = 0,
        codec: str = "",
    ) -> Ticket:
        """Begin to change rows (see ``MutableTable.push``); the returned ticket's ``wait`` ends when all owners have.

        ``step``: the number of the optimiser's step that this is, from 1; 0: the table counts its pushes; None: one more than
        ``self.step``, which it increases.

        Raises:
            ConfigError: a row that does not exist; an unknown codec.
            UnknownNameError: an owner does not have the table any more, or one that was created anew.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.ascontiguousarray(values, dtype=self.spec.dtype).reshape(len(rows), *self.spec.row_shape)
        if op == "step":
            # Gradients of one row that came in two pieces would be two steps.
            rows, values = _summed(rows, values)
        pieces = list(self._pieces(rows))
        for shard in {id(shard): shard for shard, _ in pieces}.values():
            shard.registration.ensure()
            self.noticed(shard.registration.load_id, shard.registration.step)
        number = self._numbered(step)
        sent = []
        for shard, piece in pieces:
            taken = shard.registration.take()
            message = table_pb2.PushRowsRequest(
                name=self.spec.name,
                table_id=self.table_id,
                op=op,
                client=taken.client,
                sequence=taken.sequence,
                settled=taken.settled,
                versioned=version is not None,
                version=version or 0,
                step=number.step,
                codec=codec,
            )
            data = values[piece].reshape(len(piece), -1)
            encoded = codecs.encode(codec, data) if codec else data.view(np.uint8)
            bulk = rpc.Bulk(message, {PUSH_ROWS: rows[piece], PUSH_VALUES: encoded})
            sent.append(SentPush(shard, bulk, shard.connection.begin("TableService.Push", bulk)))
        return Ticket(sent, self, number)

    def _numbered(self, step: int | None) -> StepNumber:
        with self._counting:
            if step is None:
                self.step += 1
            return StepNumber(self.step if step is None else step, len(self._loads))

    def grow(self, rows: int) -> None:
        """Let the whole table have ``rows`` rows; raises ConfigError if it may not, QuotaExceededError without room."""
        last = self._shards[-1]
        request = table_pb2.GrowTableRequest(name=self.spec.name, table_id=self.table_id, rows=rows)
        last.rows = last.connection.call("TableService.Grow", request).rows

    def _pieces(self, rows: np.ndarray) -> Iterator[tuple[TableShard, np.ndarray]]:
        """Owners with the positions of as many of their rows as one push takes."""
        per_piece = max(1, PIECE_BYTES // max(1, self.spec.row_bytes))
        for shard, at in self._by_owner(rows):
            for first in range(0, len(at), per_piece):
                yield shard, at[first : first + per_piece]

    def _by_owner(self, rows: np.ndarray) -> Iterator[tuple[TableShard, np.ndarray]]:
        """Owners with the positions of their rows."""
        if len(rows) and (rows.min() < 0 or rows.max() >= self.rows):
            bad = rows[(rows < 0) | (rows >= self.rows)][0]
            raise ConfigError(f"table {self.spec.name}: row {bad} is outside the rows 0..{self.rows - 1}")
        firsts = np.array([shard.first_row for shard in self._shards], dtype=np.int64)
        owners = np.searchsorted(firsts, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(self._shards) + 1))
        for shard, lo, hi in zip(self._shards, bounds[:-1], bounds[1:], strict=True):
            if hi > lo:
                yield shard, order[lo:hi]


def _summed(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows and the sums of their values, added in the order in which they stand."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    if len(distinct) == len(rows):
        return rows, values
    sums = np.zeros((len(distinct), *values.shape[1:]), dtype=values.dtype)
    np.add.at(sums, inverse, values)
    return distinct, sums
