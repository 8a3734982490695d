"""A backup that takes over by itself, when its primary does not answer and a majority of the daemons agrees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from atta.daemon.durable.backup import BackupService
from atta.daemon.durable.neighbours import Neighbours
from atta.errors import AttaError
from atta.kvstore.durable.votes import Ballot, is_majority
from atta.protos.v1 import backup_pb2

__all__ = ["Candidate"]

VOTE_S = 5.0
"""How long a vote may take: the voter asks the primary first."""
LOOK_S = 1.0
"""How often a backup asks its primary whether it is there."""
log = structlog.get_logger("atta.backup")


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
        ballot = Ballot(*copied, self._own)
        refusals = await self._refusals(ballot)
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
