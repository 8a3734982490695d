"""A mutable table on the client: reads rows from their owners and sends changes to them, several owners at once, in
pieces of a few megabytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

import numpy as np

from atta.client.control import Connection
from atta.client.tables.lending import LEAST_LENT_BYTES, Lender, Loan
from atta.client.tables.pulls import RowsPull
from atta.client.tables.pushes import SentPush, StepNumber, TableShard, Ticket, check_step
from atta.errors import ConfigError, RemoteError, UnknownNameError
from atta.kvstore import codecs
from atta.kvstore.mutable.requests import Pulled
from atta.kvstore.spec import MAX_ROWS, MutableSpec
from atta.protos.v1 import table_pb2
from atta.samplers import kernels
from atta.samplers.arguments import whole
from atta.wire import rpc
from atta.wire.bulk import PUSH_ROWS, PUSH_VALUES

PIECE_BYTES = 4 << 20
"""Most bytes of values in one push."""
PIECE_ROWS = 1 << 19
"""Most rows in one request."""
MOST_VERSION = (1 << 63) - 1
"""Versions are int64."""


class PullOptions(TypedDict, total=False):
    """What is pulled of rows."""

    codec: str
    """In which values travel; "": as they are."""
    versions: bool
    """Whether the rows' versions are wanted, too."""
    version: int | None
    """That all rows must have. Then no versions travel, only the values."""
    array: str
    """Of the optimiser's state, to read instead of the values."""


class RemoteTable:
    """One mutable table of the cluster. Threads may share it; a forked process must not use it."""

    def __init__(
        self,
        spec: MutableSpec,
        shards: Sequence[TableShard],
        dataset_id: str,
        *,
        table_id: int,
        infos: Sequence[table_pb2.TableInfo],
        lender: Lender,
    ) -> None:
        """``infos``: what the owners say of it (``TableInfo``), in the order of ``shards``. ``lender``: of memory for
        what owners on this machine answer."""
        self.spec, self.table_id = spec, table_id
        self.step = max(info.step for info in infos)
        """Number of the optimiser's steps so far, as this client knows it. Loading a snapshot sets it back."""
        self._shards, self._dataset_id, self._lender = list(shards), dataset_id, lender
        self._loads = {info.load_id for info in infos}
        self._counted = len(self._loads)  # loads that were known when the rows were counted last
        self._counting = threading.Lock()

    @property
    def rows(self) -> int:
        """Rows of the whole table, as this client knows it; see ``count``."""
        return sum(shard.rows for shard in self._shards)

    @property
    def first_rows(self) -> np.ndarray:
        """int64 [daemons]: the first row of each owner."""
        return np.array([shard.first_row for shard in self._shards], dtype=np.int64)

    def count(self) -> int:
        """Rows of the whole table now: another client may have let it grow, and a snapshot may have set it back. Raises
        as ``refresh``."""
        if self._may_grow:
            self.refresh()
        return self.rows

    @property
    def _may_grow(self) -> bool:
        return self.spec.limit > self.spec.rows

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
        """Ask the owners whether a snapshot has been loaded since, at which step the table is, and how many rows it
        has. Raises UnknownNameError: an owner does not have the table any more, or one that was created anew."""
        loads = len(self._loads)
        request = table_pb2.DescribeTableRequest(name=self.spec.name)
        infos = [shard.connection.call("TableService.Describe", request) for shard in self._shards]
        for shard, info in zip(self._shards, infos, strict=True):
            check_step(shard.connection.address, info)
            if info.table_id != self.table_id and not info.load_id:
                raise UnknownNameError(
                    f"{shard.connection.address}: mutable table {self.spec.name!r} is not the one that was opened: it was "
                    "created anew since"
                )
            shard.rows = rows_told(self.spec, shard.connection.address, info)
            if shard.registration.load_id != info.load_id:
                shard.registration.renew(shard.registration.client)
        step = max(info.step for info in infos)
        for info in infos:
            self.noticed(info.load_id, step)
        self._counted = loads

    def locate(self, ids: np.ndarray) -> np.ndarray:
        """int64 [n]: the rows of users' ``ids`` of vertices or edges. In a ``range`` table ids are rows. Raises
        ConfigError: an unknown vertex or edge."""
        return located([shard.connection for shard in self._shards], self._dataset_id, self.spec.policy, ids)

    def pull(self, rows: np.ndarray, **options: Unpack[PullOptions]) -> Pulled:
        """Values [n, *row shape] of global ``rows`` (int64 [n], may repeat) and, if asked for, their versions int64 [n].

        Raises:
            StaleRowError: a row does not have the version that was asked for.
            ConfigError: a row that does not exist; an unknown codec.
            UnknownNameError: an owner does not have the table any more, or one that was created anew.
            RemoteError: an owner does not answer.
        """
        return self.begin_pull(rows, **options).wait()

    def begin_pull(self, rows: np.ndarray, **options: Unpack[PullOptions]) -> RowsPull:
        """Ask for rows as ``pull`` does. ``wait`` for them, or ``abandon`` them, on the same thread. Raises
        ConfigError: a row that does not exist; an unknown codec."""
        version = options.get("version")
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.empty((len(rows), *self.spec.row_shape), dtype=self.spec.dtype)
        found = (
            np.full(len(rows), -1 if version is None else version, dtype=np.int64) if options.get("versions") else None
        )
        like = table_pb2.PullRowsRequest(
            name=self.spec.name,
            table_id=self.table_id,
            codec=options.get("codec", ""),
            version=version,
            array=options.get("array", ""),
        )
        pull = RowsPull(self.spec, like, Pulled(values, found), self._lender)
        pull.begin(self._by_owner(rows), rows)
        return pull

    def push(
        self,
        rows: np.ndarray,
        values: np.ndarray,
        op: str = "write",
        *,
        version: int | None = None,
        step: int | None = 0,
        codec: str = "",
        array: str = "",
    ) -> Ticket:
        """Begin to change rows (see ``MutableTable.push``). ``wait`` of the ticket ends when all owners have done so.

        ``step``: the number of this optimiser's step, from 1. 0: the table counts its pushes. None: increase
        ``self.step`` by one and use that. ``array``: of the optimiser's state, which "write" changes instead. Raises
        ConfigError: a row that does not exist; a version that there cannot be; an unknown codec. Nothing is sent.
        UnknownNameError: an owner does not have the table any more, or one that was created anew."""
        codecs.check_codec(self.spec, codec)
        if version is not None:
            version = whole(f"table {self.spec.name}: version", version, 0, MOST_VERSION)
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        values = np.ascontiguousarray(values, dtype=self.spec.dtype).reshape(len(rows), *self.spec.row_shape)
        if op == "step":
            # Gradients of one row in two pieces would make two steps.
            rows, values = _summed(rows, values)
        pieces = list(self._pieces(rows))
        for shard in {id(shard): shard for shard, _ in pieces}.values():
            shard.registration.ensure()
            self.noticed(shard.registration.load_id, shard.registration.step)
        self.check(rows)  # a table that was loaded since may have fewer
        number, sent = self._numbered(step), []
        like = table_pb2.PushRowsRequest(
            name=self.spec.name, table_id=self.table_id, op=op, step=number.step, codec=codec, array=array
        )
        like.versioned, like.version = version is not None, version or 0
        with contextlib.ExitStack() as broken_off:  # then none is sent again, and no later push waits for their numbers
            for shard, piece in pieces:
                message = table_pb2.PushRowsRequest()
                message.CopyFrom(like)
                shard.registration.number(message)
                broken_off.callback(shard.registration.settle, message)
                loan, copied = self._copied(shard, values, piece, codec)
                bulk = rpc.Bulk(message, {PUSH_ROWS: rows[piece], PUSH_VALUES: copied})
                sent.append(SentPush.begin(shard, bulk, loan))
            broken_off.pop_all()
        return Ticket(sent, self, number)

    def _copied(
        self, shard: TableShard, values: np.ndarray, piece: np.ndarray, codec: str
    ) -> tuple[Loan | None, np.ndarray]:
        """A copy of the values of a piece as they travel, uint8 [n, bytes]: in memory that is lent, or of its own."""
        encoded = codecs.encode(codec, values[piece].reshape(len(piece), -1)) if codec else None
        nbytes = len(piece) * self.spec.row_bytes if encoded is None else encoded.nbytes
        loan = self._lender.lend(nbytes) if shard.connection.reads_lent and nbytes >= LEAST_LENT_BYTES else None
        if encoded is None:
            out = np.empty(nbytes, np.uint8) if loan is None else loan.memory
            out = out.reshape(len(piece), self.spec.row_bytes)
            kernels.gather_rows(values, piece, out)
            return loan, out
        if loan is not None:
            loan.memory[:] = encoded.reshape(-1)
            encoded = loan.memory
        return loan, encoded

    def _numbered(self, step: int | None) -> StepNumber:
        with self._counting:
            if step is None:
                self.step += 1
            return StepNumber(self.step if step is None else step, len(self._loads))

    def grow(self, rows: int) -> None:
        """Let the whole table have ``rows`` rows. Raises ConfigError: the table has more rows already, or may not
        become that large; QuotaExceededError: the owner has no room."""
        last, rows = self._shards[-1], whole(f"table {self.spec.name}: rows", rows, 0, MAX_ROWS)
        request = table_pb2.GrowTableRequest(name=self.spec.name, table_id=self.table_id, rows=rows)
        last.rows = rows_told(self.spec, last.connection.address, last.connection.call("TableService.Grow", request))

    def check(self, rows: np.ndarray) -> None:
        """Raise ConfigError unless the table has these rows (int64 [n]). Counts them anew first if that may help."""
        if not len(rows):
            return
        least, most = rows.min(), rows.max()
        if self._may_grow and (most >= self.rows or len(self._loads) > self._counted):
            self.refresh()
        if least < 0 or most >= self.rows:
            bad = rows[(rows < 0) | (rows >= self.rows)][0]
            raise ConfigError(f"table {self.spec.name}: row {bad} is outside the rows 0..{self.rows - 1}")

    def _pieces(self, rows: np.ndarray) -> Iterator[tuple[TableShard, np.ndarray]]:
        """Owners with the positions of their rows, in pieces for one push each."""
        per_piece = max(1, PIECE_BYTES // max(1, self.spec.row_bytes))
        for shard, at in self._by_owner(rows):
            for first in range(0, len(at), per_piece):
                yield shard, at[first : first + per_piece]

    def _by_owner(self, rows: np.ndarray) -> Iterator[tuple[TableShard, np.ndarray]]:
        self.check(rows)
        owners = np.searchsorted(self.first_rows, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(len(self._shards) + 1))
        for shard, lo, hi in zip(self._shards, bounds[:-1], bounds[1:], strict=True):
            if hi > lo:
                yield shard, order[lo:hi]


def rows_told(spec: MutableSpec, address: str, info: table_pb2.TableInfo) -> int:
    """How many rows the owner at ``address`` says that it has; RemoteError if there cannot be so many."""
    if (last := info.first_row + info.rows) > spec.limit:
        raise RemoteError(address, f"has table {spec.name} up to row {last} of at most {spec.limit}")
    return int(info.rows)


def _summed(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows and the sums of their values, added in their order."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    if len(distinct) == len(rows):
        return rows, values
    sums = np.zeros((len(distinct), *values.shape[1:]), dtype=values.dtype)
    np.add.at(sums, inverse, values)
    return distinct, sums


def located(connections: Sequence[Connection], dataset_id: str, policy: str, ids: np.ndarray) -> np.ndarray:
    """int64 [n]: where the rows of ``ids`` lie in a table of this policy, which need not exist; see ``locate``."""
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    kind = policy.partition(":")[0]
    if kind == "range":
        return ids
    if kind == "nodes":
        return _ask_where(connections[0], dataset_id, policy, ids)
    rows = np.full(len(ids), -1, dtype=np.int64)
    for connection in connections:
        rows = np.maximum(rows, _ask_where(connection, dataset_id, policy, ids))
    if len(rows) and rows.min() < 0:
        raise ConfigError(
            f"{ids[rows < 0][0]} is not an edge of {policy}: its rows are the edges of version 0 of the dataset"
        )
    return rows


def _ask_where(connection: Connection, dataset_id: str, policy: str, ids: np.ndarray) -> np.ndarray:
    found = []
    for first in range(0, len(ids), PIECE_ROWS):
        piece = ids[first : first + PIECE_ROWS]
        request = table_pb2.LocateRequest(dataset_id=dataset_id, policy=policy, ids=piece.tobytes())
        reply = connection.call("TableService.Locate", request)
        with rpc.understanding(connection.address):
            found.append(np.frombuffer(reply.rows, dtype=np.int64))
        if len(found[-1]) != len(piece):
            raise RemoteError(connection.address, f"locates {len(found[-1])} ids of {len(piece)}")
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
