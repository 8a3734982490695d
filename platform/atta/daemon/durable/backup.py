"""The backup's end: writes down what its primary sends, and takes over when an operator says so, or a majority of the
other daemons."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from atta.daemon.durable.shipping import place_of
from atta.daemon.peers.connection import Channel
from atta.daemon.services.handling import Context
from atta.errors import AttaError, ConfigError, StalePrimaryError
from atta.kvstore.durable.backup import BackupFolder, Ballot, StoreName, VoteBook, is_majority
from atta.kvstore.durable.frames import LogPosition
from atta.observe.machine.threads import named_threads
from atta.protos.v1 import backup_pb2, control_pb2
from atta.wire.credentials import Credentials
from atta.wire.identity import Identity
from atta.wire.parts import Addresses, groups_of, replicas_of

ANSWER_S = 2.0
"""How long a daemon may take to say whether it holds tables."""


class Neighbours:
    """All daemons of the cluster file, as this one reaches them."""

    def __init__(
        self, peers: Mapping[int, Addresses], dataset_id: str, own: str, credentials: Credentials | None
    ) -> None:
        self._parts = {a: parts for parts, at in groups_of(peers).items() for a in replicas_of(at)}
        self._dataset_id, self._own, self._credentials = dataset_id, own, credentials

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def others(self) -> list[str]:
        """Addresses of all but this one."""
        return [address for address in self._parts if address != self._own]

    async def hold_tables(self, part: int, *, but: str) -> bool:
        """Whether one of the daemons of a partition, but one, answers and holds tables. This daemon is not asked."""
        asked = [address for address in self.others if part in self._parts[address] and address != but]
        return any(await asyncio.gather(*map(self._epoch, asked)))

    async def _epoch(self, address: str) -> int:
        try:
            reply = await self.ask(address, "ControlService.Describe", control_pb2.DescribeRequest(), ANSWER_S)
        except AttaError:
            return 0
        return int(reply.tables_epoch)

    async def ask(self, address: str, method: str, request: Any, timeout: float) -> Any:
        """A daemon's answer. Raises AttaError: it does not answer, or refuses."""
        link = Channel(address, Identity(self._parts[address].start, self._dataset_id), self._credentials)
        try:
            return await link.answer(method, request, timeout)
        finally:
            await link.channel.close(grace=None)


T = TypeVar("T")
MOST_BYTES = 512 << 20
"""Largest group of records in one request, in all its parts."""
MOST_NUMBER = 1 << 60
"""Epochs, records and places in files are smaller."""
MOST_ABOUT = 4096
MOST_ADDRESS = 300
log = structlog.get_logger("atta.backup")


@dataclass(frozen=True)
class Holder:
    """Where a backup becomes the holder of tables: the folder of those that this daemon holds itself, whose they are, their
    store (empty: it keeps none), what raises ConfigError if some would be lost, and what opens the folder."""

    folder: Path
    about: dict[str, Any]
    store_id: Callable[[], bytes]
    check_free: Callable[[], None]
    take_over: Callable[[], Awaitable[int]]


class BackupService:
    """``BackupService`` of a daemon. Requests are served one after another."""

    def __init__(self, holder: Holder, address: str, *, keeps: bool, neighbours: Neighbours, votes: VoteBook) -> None:
        """``keeps``: whether this daemon may be a backup. ``votes``: that it has given others."""
        self._neighbours, self._votes = neighbours, votes
        self._holder, self._address, self._keeps = holder, address, keeps
        self._copy = BackupFolder(holder.folder.with_name(f"{holder.folder.name}.backup"), address)
        self._turn = asyncio.Lock()
        self._disk = named_threads(1, "atta-backup")
        self._parts: list[bytes] = []
        self._records = 0
        self._taking: asyncio.Task[tuple[LogPosition, int]] | None = None

    def stats(self) -> dict[str, float]:
        return {"backup_records": float(self._records)}

    async def follow(self, request: backup_pb2.FollowRequest, context: Context) -> backup_pb2.FollowReply:
        if not self._keeps:
            raise ConfigError(f"{self._address}: keeps no backups; start it with --keep-backup")
        self._refuse_stale(request.store)
        if len(request.store.id) != 16 or request.store.epoch >= MOST_NUMBER:
            raise ConfigError(f"no store has an id of {len(request.store.id)} bytes and epoch {request.store.epoch}")
        if (about := _about(request.about)) != self._holder.about:
            raise ConfigError(f"{self._address}: serves {self._holder.about}, and keeps no tables of {about}")
        if request.reach.lsn >= MOST_NUMBER:
            raise ConfigError(f"record {request.reach.lsn}: there are never so many")

        def begin() -> LogPosition:
            self._refuse_stale(request.store)  # it may have been promoted while this request waited
            return self._copy.follow(_name(request.store), about, request.reach.lsn)

        self._parts = []
        at = await self._on_disk(begin)
        log.info("follows", peer=context.peer(), record=at.lsn, epoch=request.store.epoch)
        return backup_pb2.FollowReply(at=place_of(at))

    async def append(self, request: backup_pb2.AppendRequest, context: Context) -> backup_pb2.LogPlace:
        self._refuse_stale(request.store)
        if any(size % 8 for size in request.sizes) or request.file_epoch >= MOST_NUMBER:
            raise ConfigError("bodies of records have a multiple of 8 bytes, and epochs are small")
        if sum(map(len, self._parts)) + len(request.bodies) > MOST_BYTES:
            self._parts = []
            raise ConfigError(f"records of more than {MOST_BYTES} bytes in one request")
        if request.more:
            self._parts.append(request.bodies)
            return request.before
        data, self._parts = memoryview(b"".join([*self._parts, request.bodies])), []
        if sum(request.sizes) != len(data):
            raise ConfigError(f"records of {sum(request.sizes)} bytes came with {len(data)} bytes")
        bodies, first = [], 0
        for size in request.sizes:
            bodies.append(data[first : first + size])
            first += size

        def write() -> LogPosition:
            return self._copy.append(
                _name(request.store),
                _position(request.before),
                _position(request.after),
                bodies,
                file_epoch=request.file_epoch,
                new_file=request.new_file,
            )

        at = await self._on_disk(write)
        self._records += len(bodies)
        return place_of(at)

    async def piece(self, request: backup_pb2.PieceRequest, context: Context) -> backup_pb2.PieceReply:
        self._refuse_stale(request.store)
        store, at = _name(request.store), _position(request.at)
        if at.lsn >= MOST_NUMBER or request.offset >= MOST_NUMBER:
            raise ConfigError(f"record {at.lsn}, byte {request.offset}: there are never so many")
        if request.complete:
            await self._on_disk(self._copy.complete, store, at)
        else:
            await self._on_disk(self._copy.piece, store, at, request.path, request.offset, request.data)
        return backup_pb2.PieceReply()

    async def promote(self, request: backup_pb2.PromoteRequest, context: Context) -> backup_pb2.PromoteReply:
        at, tables = await self.take_over()
        return backup_pb2.PromoteReply(lsn=at.lsn, tables=tables)

    async def vote(self, request: backup_pb2.VoteRequest, context: Context) -> backup_pb2.VoteReply:
        store = request.store
        if len(store.id) != 16 or store.epoch >= MOST_NUMBER or not 0 < len(request.candidate) <= MOST_ADDRESS:
            raise ConfigError("a vote is about a store of tables, its epoch, and the address of a candidate")
        if store.id == self._holder.store_id():
            return backup_pb2.VoteReply(refused="holds these tables itself")
        if await self._neighbours.hold_tables(request.part, but=request.candidate):
            return backup_pb2.VoteReply(refused="the primary answers")
        return backup_pb2.VoteReply(refused=await self.give(Ballot(store.id, store.epoch, request.candidate)))

    async def give(self, ballot: Ballot) -> str:
        """This daemon's vote: "" or why it is refused. Raises DataError if it cannot be written."""
        return await self._on_disk(self._votes.give, ballot)

    async def copied(self) -> StoreName | None:
        """The store of which all is copied here, and its epoch; None: none is. Raises DataError: the copy is damaged."""
        return await self._on_disk(self._copy.store)

    async def take_over(self, voted: StoreName | None = None) -> tuple[LogPosition, int]:
        """Hold the tables of the copy. Returns its last record, and the number of tables. ``voted``: the store and the
        epoch that others have voted on; None: an operator wants it. Raises ConfigError: there is no copy, this daemon
        holds tables already, or the primary came back after the vote. DataError: the copy is damaged."""
        # Whoever asks may give up meanwhile. What was begun is ended: half of it would be tables without a log.
        self._taking = asyncio.create_task(self._take_over(voted), name="take over")
        return await asyncio.shield(self._taking)

    async def _take_over(self, voted: StoreName | None) -> tuple[LogPosition, int]:
        loop = asyncio.get_running_loop()
        async with self._turn:
            self._holder.check_free()
            if voted is not None and await loop.run_in_executor(self._disk, self._copy.store) != voted:
                raise ConfigError(f"{self._address}: the primary of its copy was started again after the vote")
            at = await loop.run_in_executor(self._disk, self._copy.promote, self._holder.folder)
            try:
                tables = await self._holder.take_over()
            except (Exception, asyncio.CancelledError):
                self._copy.take_back(self._holder.folder)
                raise
        log.warning("holds the tables from now on", record=at.lsn, tables=tables)
        return at, tables

    def close(self) -> None:
        self._disk.shutdown(wait=True)
        self._copy.close()

    def _refuse_stale(self, store: backup_pb2.StoreName) -> None:
        if store.id and store.id == self._holder.store_id():
            raise StalePrimaryError(self._address, "holds these tables itself since it was promoted")

    async def _on_disk(self, function: Callable[..., T], *arguments: object) -> T:
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._disk, function, *arguments)


def _about(text: str) -> dict[str, Any]:
    """Whose tables they are; raises ConfigError."""
    try:
        about = json.loads(text) if len(text) < MOST_ABOUT else None
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise ConfigError("a store of tables says whose they are by a short JSON object")
    return about


def _name(store: backup_pb2.StoreName) -> StoreName:
    return store.id, store.epoch


def _position(place: backup_pb2.LogPlace) -> LogPosition:
    return LogPosition(place.lsn, place.chain)


VOTE_S = 5.0
"""How long a vote may take: the voter asks the primary first."""
LOOK_S = 1.0
"""How often a backup asks its primary whether it is there."""


class Candidate:
    """Watches the primary of this daemon's copy, until it holds the tables itself."""

    def __init__(
        self,
        backup: BackupService,
        neighbours: Neighbours,
        own: str,
        part: int,
        after_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``own``: its address as the cluster file has it; ``after_s``: how long the primary may be silent."""
        self._backup, self._neighbours, self._own, self._part = backup, neighbours, own, part
        self._after_s, self._clock = after_s, clock
        self._heard = clock()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except (AttaError, OSError) as error:  # a disk may get room again
                log.warning("cannot take over", error=str(error))

    async def _look(self) -> None:
        copied = await self._backup.copied()
        if copied is None or await self._neighbours.hold_tables(self._part, but=self._own):
            self._heard = self._clock()
            return
        if self._clock() - self._heard < self._after_s:
            return
        refusals = await self._refusals(Ballot(*copied, self._own))
        votes = refusals.count("")
        log.warning("asks to take over the tables", part=self._part, votes=votes, daemons=len(self._neighbours))
        if is_majority(votes, len(self._neighbours)):
            await self._backup.take_over(copied)
        else:
            log.warning("does not take over", reasons=[reason for reason in refusals if reason])

    async def _refusals(self, ballot: Ballot) -> list[str]:
        """What each daemon answers, this one first: "" is a vote."""
        own = await self._backup.give(ballot)
        if own:
            return [own]
        request = backup_pb2.VoteRequest(part=self._part, candidate=ballot.candidate)
        request.store.CopyFrom(backup_pb2.StoreName(id=ballot.store, epoch=ballot.epoch))

        async def ask(address: str) -> str:
            try:
                reply = await self._neighbours.ask(address, "BackupService.Vote", request, VOTE_S)
            except AttaError as error:
                return str(error)
            return f"{address}: {reply.refused}" if reply.refused else ""

        return [own, *await asyncio.gather(*map(ask, self._neighbours.others))]
