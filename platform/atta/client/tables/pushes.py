"""Pushes to owners of mutable tables: numbered, sent again where an answer is lost, applied once.

Before its first push to a table of an owner a client registers there. An owner that does not know the client refuses the push. If
it was sent only once it has not been applied: the client registers anew and sends it as a new one. So it does if a snapshot was
loaded since it registered: had the push been applied before that was saved, the owner would know. Otherwise, if the answer to an
earlier copy was lost, nobody can say: the caller is told.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from atta.client.control import Connection
from atta.errors import AttaError, DeadlineError, UnavailableError, UnknownClientError
from atta.protos.v1 import table_pb2
from atta.wire import rpc

__all__ = ["Registration", "Shard", "Steps", "Ticket"]

_ATTEMPTS = 3
_RENEWALS = 8
"""How often a push is sent as a new one at most."""


class Registration:
    """Who this client is to one table of one owner, and the numbers of its pushes. Safe to use from many threads."""

    def __init__(self, connection: Connection, name: str, table_id: int) -> None:
        self.table_id = table_id
        self.load_id, self.step = 0, 0
        """What the owner said of the table when this client last registered."""
        self._connection, self._name = connection, name
        self._lock = threading.Lock()
        self._client: int | None = None
        self._next = 0
        self._open: set[int] = set()

    @property
    def client(self) -> int | None:
        """The number that the owner knows this client by; None: not registered."""
        return self._client

    def ensure(self) -> None:
        """Register, unless that is done.

        Raises:
            UnknownNameError: the owner does not have the table any more, or another one.
            QuotaExceededError: it knows too many clients.
        """
        with self._lock:
            self._register()

    def take(self) -> tuple[int, int, int]:
        """Register unless that is done; the client, the number of its next push, and the lowest of those that are under way."""
        with self._lock:
            client = self._register()
            self._open.add(self._next)
            self._next += 1
            return client, self._next - 1, min(self._open)

    def settle(self, client: int, number: int) -> None:
        """The push of this number is done with, applied or not: it will not be sent again."""
        with self._lock:
            if client == self._client:
                self._open.discard(number)

    def renew(self, client: int | None) -> None:
        """The owner does not take new pushes of ``client`` any more: the next one registers."""
        with self._lock:
            if client == self._client:
                self._client = None

    def _register(self) -> int:
        if self._client is None:
            request = table_pb2.RegisterRequest(name=self._name, table_id=self.table_id)
            reply = self._connection.call("TableService.Register", request)
            self._client, self._next, self._open = reply.client, 0, set()
            self.load_id, self.step = reply.table.load_id, reply.table.step
        return self._client


@dataclass(eq=False)
class Shard:
    """The rows of one owner."""

    connection: Connection
    first_row: int
    rows: int
    registration: Registration


class Steps(Protocol):
    """Who numbers the steps of an optimiser."""

    def noticed(self, load_id: int, step: int) -> None:
        """An owner has the table from this load, which left it at this step."""

    def again(self, step: int, since: int) -> tuple[int, int]:
        """The number of a step that was numbered when ``since`` loads were known, and how many are known now."""


class Ticket:
    """Pushes that are under way."""

    def __init__(self, sent: list[tuple[Shard, rpc.Bulk, Any]], steps: Steps, loads: int) -> None:
        """``loads``: how many loads of the table were known when its step, if it is one, was numbered."""
        self._sent, self._steps, self._loads = sent, steps, loads
        self._step = sent[0][1].message.step if sent else 0
        self._sent_to = {id(shard): shard.registration.load_id for shard, _, _ in sent}

    def wait(self) -> None:
        """Until all owners have applied them; they are sent again where an answer is lost.

        Raises:
            ConfigError, QuotaExceededError, RemoteError: what the first owner to refuse says.
            UnknownNameError: an owner does not have the table any more.
            UnknownClientError: it is not known whether a push has been applied, as its owner has forgotten this client.
        """
        errors = []
        for shard, bulk, future in self._sent:
            try:
                self._outcome(shard, bulk, future)
            except AttaError as error:
                errors.append(error)
        self._sent = []
        if errors:
            raise errors[0]

    def _outcome(self, shard: Shard, bulk: rpc.Bulk, future: Any) -> None:
        lost, renewals, patience = 0, 0, shard.connection.patience()
        try:
            while True:
                try:
                    future.result()
                    return
                except grpc.RpcError as failure:
                    error = rpc.error_from(shard.connection.address, failure)
                    if isinstance(error, UnknownClientError):
                        shard.registration.renew(bulk.message.client)
                        shard.registration.ensure()
                        if lost and shard.registration.load_id == self._sent_to[id(shard)]:
                            raise UnknownClientError(_doubt(shard, bulk, error)) from failure
                        if renewals == _RENEWALS:
                            raise error from failure
                        bulk, lost, renewals = self._as_new(shard, bulk), 0, renewals + 1
                    elif isinstance(error, UnavailableError) and patience.lasts():
                        lost += 1  # perhaps: what was sent may have arrived
                    elif isinstance(error, DeadlineError) and lost < _ATTEMPTS - 1:
                        lost += 1
                    else:
                        raise error from failure
                future = shard.connection.begin("TableService.Push", bulk)
        finally:
            shard.registration.settle(bulk.message.client, bulk.message.sequence)

    def _as_new(self, shard: Shard, bulk: rpc.Bulk) -> rpc.Bulk:
        """The same push under a new registration; a step is counted from where a load has left the table."""
        registration = shard.registration
        message = table_pb2.PushRowsRequest()
        message.CopyFrom(bulk.message)
        message.client, message.sequence, message.settled = registration.take()
        self._sent_to[id(shard)] = registration.load_id
        self._steps.noticed(registration.load_id, registration.step)
        if message.step:
            self._step, self._loads = self._steps.again(self._step, self._loads)
            message.step = self._step
        return rpc.Bulk(message, bulk.payloads)


def _doubt(shard: Shard, bulk: rpc.Bulk, error: AttaError) -> str:
    return (
        f"{shard.connection.address}: table {bulk.message.name}: the answer to a push was lost, and by now {error}: "
        "it may have been applied or not"
    )
