"""The primary's end: what a daemon writes into the log of its tables goes to its backup before it is acknowledged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import structlog

from atta.daemon.peers.connection import Channel
from atta.errors import AttaError, DataError, NotAuthenticatedError, RestartedError, StalePrimaryError, UnavailableError
from atta.kvstore.durable.frames import Buffer, LogPosition
from atta.kvstore.durable.store import TableStore
from atta.observe.machine.threads import aside
from atta.protos.v1 import backup_pb2
from atta.wire.credentials import Credentials
from atta.wire.identity import Identity

DEADLINE_S = 10.0
"""How long the backup may take for one answer."""
AGAIN_S = (0.1, 2.0)
"""Shortest and longest wait before the backup is asked again."""
MESSAGE_BYTES = 4 << 20
"""Records travel in messages of about this size; a larger record is divided."""
MOST_RECORDS = 1024
"""Most records in a message: fields of requests are bounded."""
log = structlog.get_logger("atta.backup")


class Shipping:
    """Keeps the copy of ``store`` at the daemon ``address`` as long as the store. All of it runs on the event loop. The
    copy is brought up to date from the files of the store whenever the backup was away."""

    def __init__(self, store: TableStore, address: str, meant: Identity, credentials: Credentials | None) -> None:
        """Connect later. ``meant``: who serves the same partition there."""
        self._store, self.address = store, address
        self._connect: Callable[[], Channel] = lambda: Channel(address, meant, credentials)
        self._link: Channel | None = None
        self._at: LogPosition | None = None
        self._new_file, self._sending = False, asyncio.Lock()
        self.away = False
        """Whether the backup does not answer now."""

    @property
    def lag(self) -> int:
        """Number of records that the backup is not known to have."""
        return self._store.position.lsn - (0 if self._at is None else self._at.lsn)

    async def reach(self, bodies: Sequence[Sequence[Buffer]], before: LogPosition) -> None:
        """Return when the backup has all that the store has. ``bodies``: the records behind ``before``, the last ones.
        It waits for a backup that is away. Raises StalePrimaryError: the backup was promoted, or knows a later primary.
        """
        after = self._store.position

        async def there() -> bool:
            if self._at is None:
                await self._follow()
            if self._at == before and before != after:
                await self._send([_joined(parts) for parts in bodies], after, self._store.epoch, self._new_file)
                self._new_file = False
            return self._at == after

        await self._until(there)

    async def reach_checkpoint(self) -> None:
        """Return when the backup has the newest checkpoint; see ``reach``."""

        async def there() -> bool:
            if self._at is None:
                await self._follow()
            if (found := await aside(self._store.newest_checkpoint)) is not None:
                await self._send_checkpoint(*found)
            return True

        await self._until(there)

    async def _until(self, there: Callable[[], Awaitable[bool]]) -> None:
        wait_s = AGAIN_S[0]
        while True:
            try:
                if await there():
                    self._say(None)
                    return
            except StalePrimaryError:
                raise
            except AttaError as error:  # it may come back, and a full disk may get room again
                self._say(error)
            self._at = None
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_S[1])

    def rotated(self) -> None:
        """The store has begun a new file of its log."""
        self._new_file = True

    async def checkpointed(self) -> None:
        """Send the newest checkpoint, so that the backup may remove what is older. Errors wait for the next one."""
        try:
            found = await aside(self._store.newest_checkpoint)
            if found is not None and self._at is not None:
                await self._send_checkpoint(*found)
        except AttaError as error:
            log.info("checkpoint not sent", backup=self.address, error=str(error))

    async def close(self) -> None:
        if self._link is not None:
            await self._link.channel.close(grace=None)
            self._link = None

    # -- catching up ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        request = backup_pb2.FollowRequest(
            store=self._name(), about=json.dumps(self._store.about), reach=place_of(self._store.position)
        )
        reply = await self._ask("Follow", request)
        at = self._at = LogPosition(reply.at.lsn, reply.at.chain)
        if at.lsn > self._store.position.lsn:
            raise StalePrimaryError(
                self.address,
                f"has {at.lsn - self._store.position.lsn} later records than {self._store.folder}: they were acknowledged "
                "and are lost here; promote the backup",
            )
        behind = await aside(self._store.logs_behind, at)
        if behind is None:
            found = await aside(self._store.newest_checkpoint)
            if found is None or found[1].lsn < at.lsn:
                raise StalePrimaryError(self.address, f"has other records than {self._store.folder}")
            await self._send_checkpoint(*found)
            at = self._at = found[1]
            behind = await aside(self._store.logs_behind, at) or []
        for read in behind:
            new_file = read.header.before == at
            for bodies, after in _batches(iter(read), at, lambda r=read: r.position):  # type: ignore[misc]
                await self._send(bodies, after, read.header.epoch, new_file)
                new_file, at = False, after
        self._new_file = at == self._store.position and self._store.begins_file

    async def _send(self, bodies: Sequence[bytes], after: LogPosition, epoch: int, new_file: bool) -> None:
        assert self._at is not None
        data, first = b"".join(bodies), 0
        while len(data) - first > MESSAGE_BYTES:
            part = backup_pb2.AppendRequest(store=self._name(), bodies=data[first : first + MESSAGE_BYTES], more=True)
            part.before.CopyFrom(place_of(self._at))
            await self._ask("Append", part)
            first += MESSAGE_BYTES
        request = backup_pb2.AppendRequest(
            store=self._name(),
            before=place_of(self._at),
            after=place_of(after),
            file_epoch=epoch,
            new_file=new_file,
            sizes=[len(body) for body in bodies],
            bodies=data[first:],
        )
        reply = await self._ask("Append", request)
        self._at = LogPosition(reply.lsn, reply.chain)

    async def _send_checkpoint(self, folder: Path, at: LogPosition) -> None:
        async with self._sending:
            pieces, place = _pieces(folder), place_of(at)
            while (piece := await aside(next, pieces, None)) is not None:
                path, offset, data = piece
                request = backup_pb2.PieceRequest(store=self._name(), at=place, path=path, offset=offset, data=data)
                await self._ask("Piece", request)
            await self._ask("Piece", backup_pb2.PieceRequest(store=self._name(), at=place, complete=True))

    async def _ask(self, method: str, request: Any) -> Any:
        if self._link is None:
            self._link = self._connect()
        link = self._link
        try:
            return await link.answer(f"BackupService.{method}", request, DEADLINE_S)
        except AttaError as error:
            if isinstance(error, NotAuthenticatedError | UnavailableError) and self._link is link:
                self._link = None  # the next one brings what the files of the credentials hold then
                await link.channel.close(grace=DEADLINE_S)
            if isinstance(error, RestartedError):
                raise StalePrimaryError(self.address, error.cause) from error
            raise

    def _name(self) -> backup_pb2.StoreName:
        return backup_pb2.StoreName(id=self._store.store_id, epoch=self._store.epoch)

    def _say(self, error: AttaError | None) -> None:
        if (error is not None) != self.away:
            self.away = error is not None
            if error is not None:
                log.warning("backup of tables lost: pushes wait for it", backup=self.address, error=str(error))
            else:
                log.warning("backup of tables is back", backup=self.address)


def place_of(at: LogPosition) -> backup_pb2.LogPlace:
    """A position as messages have it."""
    return backup_pb2.LogPlace(lsn=at.lsn, chain=at.chain)


def _joined(parts: Iterable[Buffer]) -> bytes:
    return b"".join(memoryview(part).cast("B") for part in parts)


def _batches(
    records: Iterator[Any], at: LogPosition, position: Callable[[], LogPosition]
) -> Iterator[tuple[list[bytes], LogPosition]]:
    """The records behind ``at``, in groups that fit a message, and where each group ends."""
    bodies: list[bytes] = []
    size, after = 0, at
    for record in records:
        if record.lsn <= at.lsn:
            continue
        bodies.append(bytes(record.body))
        size, after = size + len(record.body), position()
        if size >= MESSAGE_BYTES or len(bodies) == MOST_RECORDS:
            yield bodies, after
            bodies, size = [], 0
    if bodies:
        yield bodies, after


def _pieces(folder: Path) -> Iterator[tuple[str, int, bytes]]:
    """The files of a checkpoint, piece by piece; raises DataError."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            with path.open("rb") as file:
                offset = 0
                while data := file.read(MESSAGE_BYTES):
                    yield str(path.relative_to(folder)), offset, data
                    offset += len(data)
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}") from None
