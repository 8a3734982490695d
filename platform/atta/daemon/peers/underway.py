"""Rows that a batch has asked a peer for, and that the next batch wants too, cross the network once.

Batches in flight overlap: on a power-law graph half of a batch's remote rows may be in the batch before it as well. Whoever wants a
row that is still under way leaves it out of its own request and is handed a copy when it has come: from the memory of the earlier
batch, before that batch goes to its consumer, who may write into it. Nothing is kept for this, so it is no cache; it does most
where a cache is small and where everybody waits for the link, for then pulls overlap.

A pull waits only for pulls that began before it, so never in a circle. Where one fails, the others ask for themselves. All of this
runs on the event loop; only rows are copied by threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from atta.samplers import kernels

__all__ = ["Part", "Pull", "PullsUnderWay"]

LEAST_ROWS = 256
"""Fewer rows are asked for again: waiting for another batch costs more than they do."""
MOST_ROWS = 1 << 20
"""Rows remembered for each owner and choice of tables; beyond that, those asked for so far are forgotten, 20 bytes each."""

Key = tuple[int, str, tuple[str, ...], str]
"""Owner, node type, tables, codec: pulls of different keys have nothing in common."""


@dataclass(eq=False, slots=True)
class Part:
    """Rows that an earlier pull is going to hand to a later one.

    Attributes:
        chosen: int64 [n], which of the rows that were wanted.
        sources: int64 [n], where they lie in the earlier batch; ``positions``: where ``outs``, arrays of the tables, want them.
        came: True once they are there, False if the earlier pull failed.
    """

    chosen: np.ndarray
    sources: np.ndarray
    positions: np.ndarray
    outs: Sequence[np.ndarray]
    came: asyncio.Future[bool]


@dataclass(eq=False, slots=True)
class Pull:
    """Rows of one owner that a batch waits for, in part perhaps from earlier pulls; ``outs``: its arrays of the tables."""

    key: Key
    number: int
    outs: Sequence[np.ndarray]
    parts: list[Part] = field(default_factory=list)
    promised: list[Part] = field(default_factory=list)


class _Wanted:
    """Who asked last for each row of an owner, and where in its batch the row is going to lie."""

    def __init__(self) -> None:
        self.open: dict[int, Pull] = {}
        self._index = kernels.Compactor()
        self._pull = np.empty(0, dtype=np.int64)
        self._position = np.empty(0, dtype=np.int64)

    def replace(self, rows: np.ndarray, number: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Who asked for ``rows`` before (-1: nobody), and the positions there; from now on it is pull ``number``."""
        if self._index.size > MOST_ROWS:
            self._index.reset()
            self._pull.fill(-1)
        local = self._index.insert(rows)
        if (more := self._index.size - len(self._pull)) > 0:
            more = max(more, len(self._pull))
            self._pull = np.concatenate([self._pull, np.full(more, -1)])
            self._position = np.concatenate([self._position, np.zeros(more, dtype=np.int64)])
        before = self._pull[local], self._position[local]
        self._pull[local], self._position[local] = number, positions
        return before


class PullsUnderWay:
    """The pulls of all batches of a daemon that are under way."""

    def __init__(self, pool: Executor) -> None:
        """``pool`` copies rows."""
        self._pool = pool
        self._wanted: dict[Key, _Wanted] = {}
        self._count = 0

    def begin(self, key: Key, rows: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> Pull:
        """A batch wants ``rows`` (int64 [n], of the owner) at ``positions`` of ``outs``; ``end`` must follow.

        What earlier pulls are going to bring is in the ``parts`` of the result, which are disjoint: await each, and ask the owner
        for the rest, and for those that did not come.
        """
        self._count += 1
        pull = Pull(key, self._count, outs)
        if len(rows) < LEAST_ROWS:
            return pull
        wanted = self._wanted.setdefault(key, _Wanted())
        askers, sources = wanted.replace(rows, pull.number, positions)
        for number, earlier in wanted.open.items():
            chosen = np.flatnonzero(askers == number)
            if len(chosen) >= LEAST_ROWS:
                came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                part = Part(chosen, sources[chosen], positions[chosen], outs, came)
                earlier.promised.append(part)
                pull.parts.append(part)
        wanted.open[pull.number] = pull
        return pull

    async def end(self, pull: Pull, *, came: bool) -> None:
        """All rows of ``pull`` have come, or (``came`` False) will not: hand out what was promised, and promise no more."""
        wanted = self._wanted.get(pull.key)
        if wanted is not None and wanted.open.pop(pull.number, None) is not None and not wanted.open:
            del self._wanted[pull.key]
        handed = [False] * len(pull.promised)
        try:
            if came:
                run: Callable[..., asyncio.Future[None]] = asyncio.get_running_loop().run_in_executor
                copies = (run(self._pool, _copy, pull.outs, part) for part in pull.promised)
                # All of them, also where one fails: they read memory that is another batch's soon.
                handed = [failure is None for failure in await asyncio.gather(*copies, return_exceptions=True)]
        finally:
            for part, done in zip(pull.promised, handed, strict=True):
                if not part.came.done():
                    part.came.set_result(done)


def _copy(outs: Sequence[np.ndarray], part: Part) -> None:
    for source, target in zip(outs, part.outs, strict=True):
        kernels.gather_rows(source, part.sources, target, positions=part.positions)
