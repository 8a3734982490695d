"""What daemons that keep tables together must never do, watched while they run.

- An epoch of a store has one primary.
- After a promotion, a primary of an earlier epoch acknowledges nothing that the promoted copy lacks.
- A daemon votes for one candidate in each epoch, also after it was killed.
- A backup takes over by itself only with the votes of more than half of all daemons.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from atta.daemon.durable.backup import BackupService
from atta.daemon.durable.journal import Journal
from tests.sim.loop import NODE
from tests.sim.world import World

DAEMONS = 3


class Rules:
    """Look at ``kept`` daemons; what breaks a rule is a failure of the simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._primaries: dict[tuple[bytes, int], str] = {}
        self._made: dict[tuple[bytes, int], int] = {}
        """The last record that a primary has made, by store and epoch."""
        self._promoted: list[tuple[bytes, int, int]] = []
        """Store, the new epoch, and the last record of the copy."""
        self._votes: dict[tuple[str, bytes, int], str] = {}
        self._by_hand = Counter[str]()

    def forget(self, node: str) -> None:
        """The machine is gone, with the votes that it had written down."""
        for key in [key for key in self._votes if key[0] == node]:
            del self._votes[key]

    def _broken(self, text: str) -> None:
        self._world.event(text)
        self._world.loop.failures.append(text)

    @contextlib.contextmanager
    def kept(self) -> Iterator[Rules]:
        begin, make = Journal.__init__, Journal._make
        give, promote, take_over = BackupService.give, BackupService.promote, BackupService.take_over
        rules = self

        def begun(self: Journal, *args: Any, **settings: Any) -> None:
            begin(self, *args, **settings)
            rules._begins(self.store_id, self._store.epoch)

        async def made(self: Journal, group: Any, first: int, **settings: Any) -> None:
            rules._makes(self.store_id, self._store.epoch, first + len(group) - 1)
            await make(self, group, first, **settings)

        async def given(self: BackupService, ballot: Any) -> str:
            refused = await give(self, ballot)
            if not refused:
                rules._votes_for((_node(), ballot.store, ballot.epoch), ballot.candidate)
            return refused

        async def by_hand(self: BackupService, *args: Any) -> Any:
            rules._by_hand[_node()] += 1
            try:
                return await promote(self, *args)
            finally:
                rules._by_hand[_node()] -= 1

        async def taken_over(self: BackupService, *voted: Any) -> Any:
            at, tables = await take_over(self, *voted)
            store, epoch = voted[0] if voted else (self._copy._store_id, self._copy._epoch)
            rules._takes_over(store, epoch, at.lsn, self._address)
            return at, tables

        with contextlib.ExitStack() as stack:
            for owner, name, instead in (
                (Journal, "__init__", begun),
                (Journal, "_make", made),
                (BackupService, "give", given),
                (BackupService, "promote", by_hand),
                (BackupService, "take_over", taken_over),
            ):
                stack.enter_context(patch.object(owner, name, instead))
            yield self

    def _begins(self, store: bytes, epoch: int) -> None:
        key = store, epoch
        if key in self._primaries:
            self._broken(f"epoch {epoch} has two primaries: {self._primaries[key]} and {_node()}")
        self._primaries[key] = _node()

    def _makes(self, store: bytes, epoch: int, last: int) -> None:
        self._made[store, epoch] = last
        for promoted, later, at in self._promoted:
            if promoted == store and later > epoch and last > at:
                self._broken(f"{_node()}: epoch {epoch} acknowledges record {last} after epoch {later} began at {at}")

    def _votes_for(self, vote: tuple[str, bytes, int], candidate: str) -> None:
        if self._votes.setdefault(vote, candidate) != candidate:
            self._broken(f"{vote[0]} votes for {candidate}, and has voted for {self._votes[vote]} in epoch {vote[2]}")

    def _takes_over(self, store: bytes, epoch: int, at: int, candidate: str) -> None:
        for (made, earlier), last in self._made.items():
            if made == store and earlier <= epoch and last > at:
                self._broken(f"{candidate} takes over at record {at}, and epoch {earlier} has acknowledged {last}")
        self._promoted.append((store, max(e for s, e in self._primaries if s == store), at))
        votes = [key[0] for key, chosen in self._votes.items() if key[1:] == (store, epoch) and chosen == candidate]
        if not self._by_hand[_node()] and 2 * len(votes) <= DAEMONS:
            self._broken(f"{candidate} takes over epoch {epoch} with the votes of {votes} alone")


def _node() -> str:
    node = NODE.get()
    return node.name if node is not None else ""
