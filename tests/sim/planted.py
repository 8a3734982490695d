"""Bugs that are planted to see whether the simulation finds them. Each changes one decision of the shipped code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from atta.client.sessions.keeper import Renewals
from atta.client.sessions.resuming import ResumingStream
from atta.client.tables.remote import RemoteTable
from atta.daemon.durable import backup as candidate
from atta.daemon.durable.backup import BackupService
from atta.daemon.durable.journal import Journal
from atta.daemon.services.opening import shown_name
from atta.daemon.services.sessions import SessionService
from atta.kvstore.durable import frames
from atta.kvstore.durable.backup import EPOCH_FILE, BackupFolder, VoteBook
from atta.kvstore.durable.logfile import LogFile
from atta.kvstore.durable.store import TableStore
from atta.kvstore.mutable.sequences import Sequences, _ClientPushes
from atta.kvstore.mutable.table import MutableTable
from atta.kvstore.parameter_jobs import ArrivalJob
from tests.sim.simulation import Outcome, simulate


@dataclass(frozen=True)
class Planted:
    """A bug: ``make(original)`` stands for ``owner.name`` in ``scenario``."""

    scenario: str
    owner: Any
    name: str
    make: Callable[[Any], Any]


def found(bug: str, seeds: int) -> Outcome | None:
    """The first of ``seeds`` seeds that finds a planted bug."""
    planted = PLANTED[bug]
    simulate(planted.scenario, 0)  # what is expected is made before
    original = vars(planted.owner)[planted.name]
    with patch.object(planted.owner, planted.name, planted.make(original)):
        for seed in range(seeds):
            outcome = simulate(planted.scenario, seed)
            if outcome.error:
                return outcome
    return None


def _moved(by: int) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def reopened(self: Any, lost: Any) -> Any:
            self.place.batch = max(0, self.place.batch + by)
            return original(self, lost)

        return reopened

    return make


def _other_owner(original: Any) -> Any:
    def by_owner(self: Any, rows: Any) -> Any:
        found = list(original(self, rows))
        wrong = [shard for shard in self._shards if shard is not found[0][0]] if len(found) == 1 else []
        return [(wrong[0], found[0][1])] if wrong else found

    return by_owner


def _opened_again(original: Any) -> Any:
    async def opened(self: Any, request: Any, context: Any) -> Any:
        self._sessions.pop(shown_name(request.session), None)
        return await original(self, request, context)

    return opened


def _too_early(original: Any) -> Any:
    async def push(self: Any, *args: Any) -> bool:
        asyncio.ensure_future(original(self, *args)).add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )
        return True

    return push


def _next_one(original: Any) -> Any:
    async def following(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        asked = self.__dict__.setdefault("_asked", set())
        key = request.session, request.sequence
        if key in asked:
            request.sequence += 1
        asked.add(key)
        async for reply in original(self, request, context):
            yield reply

    return following


def _unchecked(_: Any) -> Any:
    def following(self: Any) -> tuple[str, int]:
        head = frames._header_at(self._data, self.end)
        if head is None:
            return "the header of a record is altered", -1
        size, lsn, _, chain = head
        if self.end + frames.RECORD_HEADER_BYTES + size > len(self._data):
            return "torn", size
        self.position = frames.LogPosition(lsn, chain)
        return "", size

    return following


def _pretended(original: Any) -> Any:
    def append(self: Any, bodies: Any) -> Any:
        try:
            return original(self, bodies)
        except OSError:
            return self.position

    return append


def _never_forced(original: Any) -> Any:
    def begin(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self._forced = False

    return begin


def _twice(original: Any) -> Any:
    def push(self: Any, number: int, life: int, step: int, gradient: Any, now: float) -> Any:
        if step < self._members[number].finished:
            self.weights.update(gradient)
        return original(self, number, life, step, gradient, now)

    return push


def _unheeded(original: Any) -> Any:
    def due(self: Any, now: float) -> list[Any]:
        original(self, now)
        return []

    return due


def _not_settled(original: Any) -> Any:
    def settle(self: Any, path: Any, log: Any, *, last: bool) -> None:
        if log.torn_bytes:
            original(self, path, log, last=last)

    return settle


def _forced_alone(original: Any) -> Any:
    return lambda self, path, log, last: original(self, path, log, last=last and bool(log.torn_bytes))


def _not_awaited(original: Any) -> Any:
    async def is_copied(self: Any, *args: Any) -> bool:
        asyncio.ensure_future(original(self, *args)).add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )
        return True

    return is_copied


def _whole_at_once(original: Any) -> Any:
    return lambda self, store, about, reach=0: original(self, store, about)


def _epoch_forgotten(original: Any) -> Any:
    return lambda self, name, form: 0 if name == EPOCH_FILE else original(self, name, form)


def _nothing(value: Any = None) -> Callable[[Any], Any]:
    return lambda _: lambda *_, **__: value


PLANTED = {
    "leases of sessions are not renewed": Planted("sessions", Renewals, "due", _unheeded),
    "a batch is delivered twice": Planted("sessions", ResumingStream, "_reopened", _moved(-1)),
    "the cursor is off by one": Planted("sessions", ResumingStream, "_reopened", _moved(1)),
    "a request that is repeated gets another batch": Planted("sessions", SessionService, "next", _next_one),
    "a retry opens a second session": Planted("sessions", SessionService, "open", _opened_again),
    "rows go to the wrong part": Planted("tables", RemoteTable, "_by_owner", _other_owner),
    "a push is acknowledged before it is written": Planted("tables", Journal, "push", _too_early),
    "numbers of pushes are forgotten": Planted("tables", _ClientPushes, "has", _nothing(False)),
    "a restart forgets the numbers of pushes": Planted("tables", Sequences, "replay", _nothing()),
    "records have no checksum": Planted("tables", frames.LogReader, "_next", _unchecked),
    "a full disk counts as written": Planted("tables", LogFile, "append", _pretended),
    "nothing is forced to the disk": Planted("tables", LogFile, "__init__", _never_forced),
    "what a killed daemon has left is not forced": Planted("tables", TableStore, "_settle", _not_settled),
    "what could not be forced is forced again alone": Planted("tables", TableStore, "_settle", _forced_alone),
    "a primary does not wait for its backup": Planted("promotion", Journal, "_is_copied", _not_awaited),
    "a promoted backup follows its former primary": Planted("promotion", BackupService, "_refuse_stale", _nothing()),
    "a copy takes over before it is whole": Planted("promotion", BackupFolder, "follow", _whole_at_once),
    "a copy forgets its epoch": Planted("promotion", BackupFolder, "_number", _epoch_forgotten),
    "a voter votes twice": Planted("promotion", VoteBook, "give", _nothing("")),
    "a backup takes over without a majority": Planted("promotion", candidate, "is_majority", _nothing(True)),
    "a repeated gradient counts again": Planted("weights", ArrivalJob, "push", _twice),
    "leases of tables are not renewed": Planted("leases", MutableTable, "renew_lease", _nothing()),
}
"""By what is wrong."""
