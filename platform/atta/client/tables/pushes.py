"""Pushes to the owners of mutable tables: they are numbered, repeated when an answer is lost, and applied once.

An owner that does not know the client refuses the push. If the client has sent it only once, or a snapshot was loaded
since it registered, then it registers again and sends the push as a new one: had it been applied, the owner would know
the client. Otherwise nobody can tell whether it was applied, so the caller gets an error.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import numpy as np

from atta.client.control import Connection
from atta.client.tables.lending import Loan
from atta.errors import AttaError, DeadlineError, RemoteError, UnavailableError, UnknownClientError
from atta.protos.v1 import table_pb2
from atta.wire import rpc
from atta.wire.bulk import PUSH_ROWS

_ATTEMPTS = 3
"""How often a push is sent before a missed deadline is an error."""
_RENEWALS = 8
"""How often a push may be sent as a new one."""
_MOST_STEPS = 1 << 63


def check_step(address: str, info: table_pb2.TableInfo) -> None:
    """Raise RemoteError if the owner at ``address`` says of a table that it has seen more steps than there can be."""
    if info.step >= _MOST_STEPS:
        raise RemoteError(address, f"says that a table is at step {info.step}")


@dataclass(frozen=True, slots=True)
class StepNumber:
    """The number of an optimiser's step, and how many loads of the table were known when it was given."""

    step: int
    loads: int


class Registration:
    """This client's registration with one table of one owner, and the numbers of its pushes. Threads may share it."""

    def __init__(self, connection: Connection, name: str, table_id: int) -> None:
        self.table_id = table_id
        self.load_id, self.step = 0, 0
        """What the owner said of the table when this client last registered."""
        self._connection, self._name = connection, name
        self._lock = threading.Lock()
        self.client: int | None = None
        """The number that the owner knows this client by; None: not registered."""
        self._next = 0
        self._open: set[int] = set()

    def ensure(self) -> None:
        """Register, unless that is done. Raises UnknownNameError: the owner does not have the table any more, or
        another one; QuotaExceededError: it knows too many clients."""
        with self._lock:
            self._register()

    def number(self, push: table_pb2.PushRowsRequest) -> None:
        """Number a push, as the owner tells pushes apart; registers first, unless that is done."""
        with self._lock:
            push.client, push.sequence = self._register(), self._next
            self._open.add(self._next)
            self._next += 1
            push.settled = min(self._open)

    def settle(self, push: table_pb2.PushRowsRequest) -> None:
        """A push has ended, applied or not. It will not be sent again."""
        with self._lock:
            if push.client == self.client:
                self._open.discard(push.sequence)

    def renew(self, client: int | None) -> None:
        """The owner takes no new pushes of ``client``: the next push registers again."""
        with self._lock:
            if client == self.client:
                self.client = None

    def _register(self) -> int:
        if self.client is None:
            request = table_pb2.RegisterRequest(name=self._name, table_id=self.table_id)
            reply = self._connection.call("TableService.Register", request)
            check_step(self._connection.address, reply.table)
            self.client, self._next, self._open = reply.client, 0, set()
            self.load_id, self.step = reply.table.load_id, reply.table.step
        return self.client


@dataclass(eq=False)
class TableShard:
    """The rows of a table that one owner has."""

    connection: Connection
    first_row: int
    rows: int
    registration: Registration


@dataclass(frozen=True, slots=True)
class SentPush:
    """A push on its way to one owner: what is sent again if need be, and the call that ends with the answer. ``lent``:
    whether the owner reads the values in memory of this process."""

    shard: TableShard
    bulk: rpc.Bulk
    future: Any
    lent: bool

    @classmethod
    def begin(cls, shard: TableShard, bulk: rpc.Bulk, loan: Loan | None) -> SentPush:
        """Send a push. ``loan``: the memory that has its values, if the owner reads them there."""
        if loan is None:
            return cls(shard, bulk, shard.connection.begin("TableService.Push", bulk), lent=False)
        message = table_pb2.PushRowsRequest()
        message.CopyFrom(bulk.message)
        message.memory.CopyFrom(loan.message)
        rows = {PUSH_ROWS: bulk.payloads[PUSH_ROWS]}
        try:
            future = shard.connection.begin("TableService.Push", rpc.Bulk(message, rows))
        except BaseException:  # a closed channel, or Ctrl-C: who knows whether it was sent
            loan.end(over=False)
            raise
        # The values are needed again if this call does not end well, so then the memory is not lent again.
        future.add_done_callback(lambda done: loan.end(over=_is_read(done)))
        return cls(shard, bulk, future, lent=True)


def _is_read(call: Any) -> bool:
    """Whether a call that has ended says that the owner has read the push, and needs its values no more."""
    try:
        reply = call.result()
    except (grpc.RpcError, grpc.FutureCancelledError):
        return False
    return reply is not None and not reply.unread


class PushedTable(Protocol):
    """The table that is pushed to. It knows its rows, and numbers the steps of an optimiser."""

    def noticed(self, load_id: int, step: int) -> None:
        """An owner has the table from this load, which left it at this step."""

    def again(self, number: StepNumber) -> StepNumber:
        """The number of a step that is sent again: a new one if the table has been loaded since."""

    def check(self, rows: np.ndarray) -> None:
        """Raise ConfigError unless the table has these rows (int64 [n])."""


class Ticket:
    """Pushes that are under way; ``wait`` ends when all owners have applied them."""

    def __init__(self, sent: list[SentPush], table: PushedTable, number: StepNumber) -> None:
        """``number``: of the step that all of them are part of; of pushes that are not steps it does not count."""
        self._sent, self._table, self._number = sent, table, number
        self._sent_to = {id(push.shard): push.shard.registration.load_id for push in sent}

    def wait(self) -> None:
        """Wait until all owners have applied them. A push whose answer is lost is sent again.

        Raises:
            ConfigError, QuotaExceededError, RemoteError: an owner refuses a push, or does not answer.
            UnknownNameError: an owner does not have the table any more.
            UnknownClientError: an owner has forgotten this client, so nobody knows whether a push was applied.
        """
        errors = []
        try:
            for push in self._sent:
                try:
                    self._outcome(push)
                except AttaError as error:
                    errors.append(error)
        finally:
            for push in self._sent:  # after Ctrl-C those that nobody waits for any more
                push.shard.registration.settle(push.bulk.message)
            self._sent = []
        if errors:
            raise errors[0]

    def _outcome(self, push: SentPush) -> None:
        shard, bulk, future, lent = push.shard, push.bulk, push.future, push.lent
        lost, renewals, patience = 0, 0, shard.connection.patience()
        try:
            while True:
                try:
                    if not self._is_unread(shard, future.result(), lent=lent):
                        return
                except grpc.RpcError as failure:
                    error = shard.connection.error_from(failure)
                    if isinstance(error, UnknownClientError):
                        shard.registration.renew(bulk.message.client)
                        shard.registration.ensure()
                        if lost and shard.registration.load_id == self._sent_to[id(shard)]:
                            raise UnknownClientError(_doubt(shard, bulk, error)) from failure
                        if renewals == _RENEWALS:
                            raise error from failure
                        bulk, lost, renewals = self._as_new(shard, bulk), 0, renewals + 1
                        for piece in self._sent:  # if one will be refused, so are all, before they change anything
                            self._table.check(piece.bulk.payloads[PUSH_ROWS])
                    elif isinstance(error, UnavailableError) and patience.lasts():
                        lost += 1  # the push may have arrived all the same
                    elif isinstance(error, DeadlineError) and lost < _ATTEMPTS - 1:
                        lost += 1
                    else:
                        raise error from failure
                future, lent = shard.connection.begin("TableService.Push", bulk), False
        finally:
            shard.registration.settle(bulk.message)

    @staticmethod
    def _is_unread(shard: TableShard, reply: Any, *, lent: bool) -> bool:
        """Whether the owner wants the push in a message: it has not read what was lent, and nothing has changed."""
        connection = shard.connection
        if not rpc.answered(connection.address, reply).unread:
            return False
        if not lent:
            raise RemoteError(connection.address, "wants values in a message that were in the message")
        connection.reads_lent &= not reply.unusable
        return True

    def _as_new(self, shard: TableShard, bulk: rpc.Bulk) -> rpc.Bulk:
        """The same push under a new registration; a step is counted from where a load has left the table."""
        registration = shard.registration
        message = table_pb2.PushRowsRequest()
        message.CopyFrom(bulk.message)
        registration.number(message)
        self._sent_to[id(shard)] = registration.load_id
        self._table.noticed(registration.load_id, registration.step)
        if message.step:
            self._number = self._table.again(self._number)
            message.step = self._number.step
        return rpc.Bulk(message, bulk.payloads)


def _doubt(shard: TableShard, bulk: rpc.Bulk, error: AttaError) -> str:
    return (
        f"{shard.connection.address}: table {bulk.message.name}: the answer to a push was lost, and by now {error}: "
        "it may have been applied or not"
    )
