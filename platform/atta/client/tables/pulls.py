"""One pull of rows from their owners: what was asked of whom, and the answers put into place. Large answers of owners
on this machine come by memory that this process lends, unless the owner prefers messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import grpc
import numpy as np

from atta.client.control import drain
from atta.client.tables.lending import LEAST_LENT_BYTES, Lender, Loan
from atta.client.tables.pushes import TableShard
from atta.errors import RemoteError, StaleRowError, UnavailableError
from atta.kvstore import codecs
from atta.kvstore.mutable.requests import LentLayout, Pulled
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import table_pb2
from atta.samplers import kernels
from atta.wire import rpc
from atta.wire.bulk import ROWS_VALUES, ROWS_VERSIONS

PIECE_ROWS = 1 << 19
"""Most rows in one request."""
LENT_PIECE_BYTES = 32 << 20
"""Most bytes of an answer by memory."""


@dataclass(slots=True)
class _Asked:
    """A request under way. ``places``: of its rows among those of the pull, int64 [n] ascending."""

    shard: TableShard
    places: np.ndarray
    request: table_pb2.PullRowsRequest
    layout: LentLayout
    loan: Loan | None
    call: Any

    def end(self, *, over: bool) -> None:
        """Take back what is lent, if anything is."""
        if self.loan is not None:
            self.loan.end(over=over)
            self.loan = None


class RowsPull:
    """Asks owners for rows and gathers the answers in ``found``. It belongs to one thread."""

    def __init__(self, spec: MutableSpec, like: table_pb2.PullRowsRequest, found: Pulled, lender: Lender) -> None:
        """``like``: the requests, but for their rows."""
        self.found = found
        self._spec, self._like, self._lender = spec, like, lender
        self._codec = like.codec
        self._lendable = not self._codec or (self._codec in codecs.CODECS and spec.dtype == "<f4")
        self._flat = found.values.reshape(len(found.values), prod(spec.row_shape))
        self._asked: deque[_Asked] = deque()

    def begin(self, questions: Iterator[tuple[TableShard, np.ndarray]], rows: np.ndarray) -> None:
        """Ask all owners for the ``rows`` (int64 [n]) at their places. Raises the errors of ``RemoteTable.pull``."""
        try:
            for shard, places in questions:
                step = self._piece_rows(shard)
                for first in range(0, len(places), step):
                    self._ask(shard, places[first : first + step], rows)
        except BaseException:
            self.abandon()
            raise

    def wait(self) -> Pulled:
        """The rows. Raises the errors of ``RemoteTable.pull``."""
        try:
            while self._asked:
                self._finish()
        finally:
            self.abandon()  # what an error has left
        return self.found

    def abandon(self) -> None:
        """Give up what has not been answered. Who does not wait must do it: gRPC keeps calls that are not read."""
        while self._asked:
            asked = self._asked.popleft()
            drain(asked.call)
            asked.end(over=False)

    def _piece_rows(self, shard: TableShard) -> int:
        if not (shard.connection.takes_lent and self._lendable):
            return PIECE_ROWS
        return min(PIECE_ROWS, max(1, LENT_PIECE_BYTES // max(1, self._spec.row_bytes)))

    def _ask(self, shard: TableShard, places: np.ndarray, rows: np.ndarray) -> None:
        request, chosen = table_pb2.PullRowsRequest(), rows[places]
        request.CopyFrom(self._like)
        request.narrow_rows = int(chosen.max()) < 1 << 31
        request.rows = (chosen.astype(np.int32) if request.narrow_rows else chosen).tobytes()
        layout, loan = self._lend(shard, len(places))
        if loan is not None:
            request.memory.CopyFrom(loan.message)
        call = shard.connection.start("TableService.Pull", request)
        self._asked.append(_Asked(shard, places, request, layout, loan, call))

    def _lend(self, shard: TableShard, count: int) -> tuple[LentLayout, Loan | None]:
        versioned = not self._like.HasField("version") and not self._like.array
        layout = LentLayout.of(self._spec, count, self._codec if self._lendable else "", versioned=versioned)
        if not (shard.connection.takes_lent and self._lendable) or layout.nbytes < LEAST_LENT_BYTES:
            return layout, None
        while (loan := self._lender.lend(layout.nbytes)) is None and any(asked.loan for asked in self._asked):
            self._finish()  # this pull itself has lent it all
        return layout, loan

    def _finish(self) -> None:
        """Wait for the answer to the oldest request. If nobody answers, ask again for a while."""
        asked = self._asked[0]
        connection, patience = asked.shard.connection, asked.shard.connection.patience()
        while True:
            try:
                with rpc.understanding(connection.address):
                    self._receive(asked)
                break
            except grpc.RpcError as failure:
                error = connection.error_from(failure)
                # An owner that says so writes no more. One that does not answer may still be writing.
                asked.end(over=isinstance(error, StaleRowError))
                if not isinstance(error, UnavailableError) or not patience.lasts():
                    raise error from failure
            asked.request.ClearField("memory")
            asked.call = connection.start("TableService.Pull", asked.request)
        asked.end(over=True)
        self._asked.popleft()

    def _receive(self, asked: _Asked) -> None:
        done = 0
        for bulk in asked.call:
            message = bulk.message
            if message.unusable:
                asked.shard.connection.takes_lent = False
                continue
            where = asked.places[message.first_row : message.first_row + message.rows]
            if message.lent:
                values, versions = self._lent(asked, message)
            else:
                values = np.frombuffer(bulk.payloads.get(ROWS_VALUES, b""), dtype=np.uint8)
                raw = bulk.payloads.get(ROWS_VERSIONS)
                versions = None if raw is None else np.frombuffer(raw, dtype=np.int64)
            self._place(values.reshape(len(where), -1), where)
            if self.found.versions is not None and versions is not None:
                self.found.versions[where] = versions
            done += len(where)
        if done != len(asked.places):
            raise RemoteError(f"table {self._spec.name}", f"{done} rows of {len(asked.places)} are answered")

    @staticmethod
    def _lent(asked: _Asked, message: table_pb2.RowsChunk) -> tuple[np.ndarray, np.ndarray | None]:
        if asked.loan is None:
            raise ValueError("rows are said to lie in memory that was not lent")
        memory, layout = asked.loan.memory, asked.layout
        first, count = int(message.first_row), int(message.rows)
        return layout.values(memory, first, count), layout.versions(memory, first, count)

    def _place(self, block: np.ndarray, where: np.ndarray) -> None:
        """Put rows, uint8 [n, row bytes], where they belong."""
        if self._codec:
            codecs.decode(self._codec, block, self._flat, positions=where)
            return
        flat = self._flat.view(np.uint8)
        if block.shape[1:] != flat.shape[1:]:
            raise ValueError(f"rows of {block.shape[1:]} bytes")
        kernels.scatter_rows(block, where, flat)
