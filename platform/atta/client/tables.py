"""Mutable tables from the client's side: rows go to and come from their owners, several owners at once.

One push to each owner at a time is numbered and may be sent again: owners apply it once. Requests and answers travel in pieces of a
few megabytes, within the deadline of the connection.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from atta import rpc
from atta.client.control import Connection
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, UnavailableError
from atta.kvstore import codecs
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2

__all__ = ["RemoteTable", "Tables", "Ticket"]

PIECE_BYTES = 4 << 20
PIECE_ROWS = 1 << 19
_ATTEMPTS = 3


class Tables:
    """The mutable tables of a cluster."""

    def __init__(self, connections: Sequence[Connection], dataset_id: str) -> None:
        self._connections, self._dataset_id = connections, dataset_id
        self.client = secrets.randbits(64)
        self._numbers: dict[str, list[_Numbers]] = {}

    def create(self, spec: MutableSpec) -> RemoteTable:
        """Create the table on all daemons, or open it if it is there already just so.

        Raises:
            ConfigError: it exists otherwise, or its policy does not fit the dataset.
            QuotaExceededError: a daemon has no room for it.
        """
        request = table_pb2.CreateTableRequest(dataset_id=self._dataset_id, spec=json.dumps(spec.to_dict()))
        return self._opened(spec, [c.call("TableService.Create", request) for c in self._connections])

    def open(self, name: str) -> RemoteTable:
        """A table that exists; raises UnknownNameError."""
        for spec, infos in self._listed():
            if spec.name == name and len(infos) == len(self._connections):
                return self._opened(spec, infos)
        # Not there: let a daemon say so, with the nearest name.
        self._connections[0].call("TableService.Grow", table_pb2.GrowTableRequest(name=name, rows=0))
        raise RemoteError(self._connections[0].address, f"table {name} is not on all daemons")

    def specs(self) -> dict[str, MutableSpec]:
        """Specifications of the tables, by name."""
        return {spec.name: spec for spec, _ in self._listed()}

    def delete(self, name: str) -> bool:
        """Drop a table; False: there was none."""
        request = table_pb2.DeleteTableRequest(name=name)
        existed = [c.call("TableService.Delete", request).existed for c in self._connections]
        return any(existed)

    def save(self, name: str) -> list[str]:
        """Have every daemon write all its tables into its snapshot ``name``; returns the tables' names."""
        return self._snapshot("TableService.Save", name)

    def load(self, name: str) -> list[str]:
        """Have every daemon hold the tables of its snapshot ``name`` instead of the present ones."""
        return self._snapshot("TableService.Load", name)

    def close(self) -> None:
        """Tell the daemons that this client will not push again."""
        if not self._numbers:
            return
        for connection in self._connections:
            try:
                connection.call("TableService.Forget", table_pb2.ForgetClientRequest(client=self.client), timeout=1.0)
            except AttaError:  # gone, or it will forget by itself
                continue

    def _listed(self) -> list[tuple[MutableSpec, list[Any]]]:
        by_name: dict[str, list[Any]] = {}
        for connection in self._connections:
            for info in connection.call("TableService.List", table_pb2.ListMutableRequest()).tables:
                by_name.setdefault(json.loads(info.spec)["name"], []).append(info)
        return [(MutableSpec.from_dict(json.loads(infos[0].spec)), infos) for infos in by_name.values()]

    def _opened(self, spec: MutableSpec, infos: Sequence[Any]) -> RemoteTable:
        # However often a table is opened, and even if it is created anew, its pushes are numbered in one row.
        numbers = self._numbers.setdefault(spec.name, [_Numbers() for _ in self._connections])
        shards = [_Shard(c, i.first_row, i.rows, n) for c, i, n in zip(self._connections, infos, numbers, strict=True)]
        return RemoteTable(spec, shards, self.client, self._dataset_id, step=max(i.step for i in infos))

    def _snapshot(self, method: str, name: str) -> list[str]:
        request = table_pb2.SnapshotRequest(name=name)
        replies = [c.call(method, request, timeout=10 * c.deadline_s) for c in self._connections]
        return sorted(replies[0].tables)


class _Numbers:
    """The numbers of a client's pushes to one table of one owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[int] = set()

    def take(self) -> tuple[int, int]:
        """The number of the next push, and the lowest of all those that are under way."""
        with self._lock:
            self._open.add(self._next)
            self._next += 1
            return self._next - 1, min(self._open)

    def settle(self, number: int) -> None:
        """The push of this number is done with, applied or not: it will not be sent again."""
        with self._lock:
            self._open.discard(number)


@dataclass(eq=False)
class _Shard:
    """The rows of one owner."""

    connection: Connection
    first_row: int
    rows: int
    numbers: _Numbers


class Ticket:
    """Pushes that are under way."""

    def __init__(self, sent: list[tuple[_Shard, Any, Any]]) -> None:
        self._sent = sent

    def wait(self) -> None:
        """Until all owners have applied them; they are sent again where an answer is lost.

        Raises:
            ConfigError, QuotaExceededError, RemoteError: what the first owner to refuse says.
        """
        errors = []
        for shard, bulk, future in self._sent:
            try:
                _outcome(shard, bulk, future)
            except AttaError as error:
                errors.append(error)
            finally:
                shard.numbers.settle(bulk.message.sequence)
        self._sent = []
        if errors:
            raise errors[0]


def _outcome(shard: _Shard, bulk: rpc.Bulk, future: Any) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            future.result()
            return
        except grpc.RpcError as failure:
            error = rpc.error_from(shard.connection.address, failure)
            if attempt == _ATTEMPTS - 1 or not isinstance(error, UnavailableError | DeadlineError):
                raise error from failure
        future = shard.connection.begin("TableService.Push", bulk)


class RemoteTable:
    """One mutable table of the cluster. Safe to use from many threads; not across a fork."""

    def __init__(self, spec: MutableSpec, shards: Sequence[_Shard], client: int, dataset_id: str, *, step: int) -> None:
        self.spec, self.step = spec, step
        self._shards, self._client, self._dataset_id = list(shards), client, dataset_id

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return sum(shard.rows for shard in self._shards)

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

    def _ask_where(self, shard: _Shard, ids: np.ndarray) -> np.ndarray:
        found = []
        for first in range(0, len(ids), PIECE_ROWS):
            piece = ids[first : first + PIECE_ROWS]
            request = table_pb2.LocateRequest(dataset_id=self._dataset_id, policy=self.spec.policy, ids=piece.tobytes())
            found.append(np.frombuffer(shard.connection.call("TableService.Locate", request).rows, dtype=np.int64))
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def pull(
        self, rows: np.ndarray, *, codec: str = "", versions: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Values [n, *row shape] of global ``rows`` (int64 [n], may repeat) and, if asked for, their versions int64 [n].

        Raises:
            ConfigError: a row that does not exist; an unknown codec.
            RemoteError: an owner does not answer.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.empty((len(rows), *self.spec.row_shape), dtype=self.spec.dtype)
        found = np.full(len(rows), -1, dtype=np.int64) if versions else None
        calls = []
        for shard, at in self._by_owner(rows):
            for first in range(0, len(at), PIECE_ROWS):
                piece = at[first : first + PIECE_ROWS]
                request = table_pb2.PullRowsRequest(name=self.spec.name, rows=rows[piece].tobytes(), codec=codec)
                calls.append((shard, piece, request, shard.connection.start("TableService.Pull", request)))
        for shard, piece, request, call in calls:
            for attempt in range(_ATTEMPTS):
                try:
                    self._receive(call, piece, codec, values, found)
                    break
                except grpc.RpcError as failure:
                    error = rpc.error_from(shard.connection.address, failure)
                    if attempt == _ATTEMPTS - 1 or not isinstance(error, UnavailableError):
                        raise error from failure
                time.sleep(0.1 * 3**attempt)
                call = shard.connection.start("TableService.Pull", request)  # noqa: PLW2901 - the same once more
        return values, found

    def _receive(
        self, call: Any, piece: np.ndarray, codec: str, values: np.ndarray, versions: np.ndarray | None
    ) -> None:
        done = 0
        for bulk in call:
            where = piece[bulk.message.first_row : bulk.message.first_row + bulk.message.rows]
            self._place(bulk, codec, values, where)
            if versions is not None and 3 in bulk.payloads:
                versions[where] = np.frombuffer(bulk.payloads[3], dtype=np.int64)
            done += len(where)
        if done != len(piece):
            raise RemoteError(f"table {self.spec.name}", f"{done} rows of {len(piece)} are answered")

    def _place(self, bulk: rpc.Bulk, codec: str, values: np.ndarray, where: np.ndarray) -> None:
        raw = np.frombuffer(bulk.payloads.get(4, b""), dtype=np.uint8)
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
        step: int = 0,
        codec: str = "",
    ) -> Ticket:
        """Begin to change rows (see ``MutableTable.push``); the returned ticket's ``wait`` ends when all owners have.

        ``step``: the number of the optimiser's step that this is, from 1; 0: the table counts its pushes.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.ascontiguousarray(values, dtype=self.spec.dtype).reshape(len(rows), *self.spec.row_shape)
        if op == "step":
            # Gradients of one row that came in two pieces would be two steps.
            rows, values = _summed(rows, values)
        per_piece = max(1, PIECE_BYTES // max(1, self.spec.row_bytes))
        sent = []
        for shard, at in self._by_owner(rows):
            for first in range(0, len(at), per_piece):
                piece = at[first : first + per_piece]
                sequence, settled = shard.numbers.take()
                message = table_pb2.PushRowsRequest(
                    name=self.spec.name,
                    op=op,
                    client=self._client,
                    sequence=sequence,
                    settled=settled,
                    versioned=version is not None,
                    version=version or 0,
                    step=step,
                    codec=codec,
                )
                data = values[piece].reshape(len(piece), -1)
                encoded = codecs.encode(codec, data) if codec else data.view(np.uint8)
                bulk = rpc.Bulk(message, {2: rows[piece], 10: encoded})
                sent.append((shard, bulk, shard.connection.begin("TableService.Push", bulk)))
        return Ticket(sent)

    def grow(self, rows: int) -> None:
        """Let the whole table have ``rows`` rows; raises ConfigError if it may not, QuotaExceededError without room."""
        last = self._shards[-1]
        request = table_pb2.GrowTableRequest(name=self.spec.name, rows=max(0, rows - last.first_row))
        last.rows = last.connection.call("TableService.Grow", request).rows

    def _by_owner(self, rows: np.ndarray) -> Iterator[tuple[_Shard, np.ndarray]]:
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
