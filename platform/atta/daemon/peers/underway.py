"""Rows that a batch has asked peers for, and that the next batch wants too, cross the network once: the next one gets a copy
from the memory of the earlier batch, before that goes to its consumer. Nothing is kept for this, so it is not a cache.

A pull waits only for pulls that began before it, so never in a circle. If one fails, the others ask for their rows
themselves. All of this runs on the event loop; threads only copy rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atta.samplers import kernels

LEAST_ROWS = 256
"""Least number of rows to share. Fewer are asked for again, as waiting for another batch costs more."""
MOST_ROWS = 1 << 22
"""Most rows remembered per choice of tables, 20 bytes each. Beyond that, all of them are forgotten."""
LOOKS, RESTS = 16, 112
"""Pulls that look for rows of others before it is decided anew, and pulls that do not look where it did not pay."""
LEAST_SHARE = 1 / 32
"""Least share of the rows that must come from other pulls. Looking costs about a tenth of what a row of 400 bytes takes
over a link, but it also spares the network."""

Key = tuple[str, tuple[str, ...], str, int]
"""Node type, tables, codec, version of the tables: pulls of different keys have nothing in common."""


@dataclass(eq=False, slots=True)
class SharedRows:
    """Rows that an earlier pull promises to a later one.

    Attributes:
        chosen: int64 [n], positions in the later pull's rows.
        sources: int64 [n], where the rows lie in the earlier batch's arrays.
        positions: int64 [n], where they belong in ``outs``.
        outs: the later batch's arrays of the tables.
        came: True once the rows are there, False if the earlier pull failed. Not done before that pull has ended.
    """

    chosen: np.ndarray = field(repr=False)
    sources: np.ndarray = field(repr=False)
    positions: np.ndarray = field(repr=False)
    outs: Sequence[np.ndarray] = field(repr=False)
    came: asyncio.Future[bool]


@dataclass(eq=False, slots=True)
class Pull:
    """Rows of peers that a batch waits for; ``outs``: its arrays of the tables.

    ``expected`` are disjoint parts of the rows that earlier pulls promised; ``promised`` is what this pull owes to
    later ones.
    """

    key: Key
    number: int
    outs: Sequence[np.ndarray] = field(repr=False)
    expected: list[SharedRows] = field(default_factory=list)
    promised: list[SharedRows] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Habit:
    """Whether pulls of a node type look for rows of others. It follows from what the last stretch of pulls has found.

    ``left`` pulls, at least one, follow in this stretch. ``rows`` were looked for, and ``shared`` of them found.
    """

    rests: bool = False
    left: int = field(default_factory=lambda: LOOKS)
    rows: int = 0
    shared: int = 0

    def rest(self) -> bool:
        """Whether the next pull does not look; else ``looked`` must follow."""
        if self.rests:
            self._passed(then_rests=False)
            return True
        return False

    def looked(self, rows: int, shared: int) -> None:
        """A pull of ``rows`` has found that others bring ``shared`` of them."""
        self.rows, self.shared = self.rows + rows, self.shared + shared
        self._passed(then_rests=self.shared < LEAST_SHARE * self.rows)

    def _passed(self, *, then_rests: bool) -> None:
        self.left -= 1
        if not self.left:
            self.rests, self.left, self.rows, self.shared = then_rests, RESTS if then_rests else LOOKS, 0, 0


class _LastPulls:
    """For each vertex the last pull that asked for its row, and where the row will lie in that pull's batch."""

    def __init__(self, num_ids: int) -> None:
        """``num_ids``: all ids are below this number (0 = unknown)."""
        self.open: dict[int, Pull] = {}  # by number, the earliest first
        self._index = kernels.Compactor(num_ids)
        self._pull = np.empty(0, dtype=np.int64)  # by row: a number, or -1; as long as ``_position``
        self._position = np.empty(0, dtype=np.int64)

    def replace(self, rows: np.ndarray, number: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pulls that asked for ``rows`` last (-1: none), and the positions there.

        From now on it is pull ``number``.
        """
        if self._index.size > MOST_ROWS:
            self.forget()
        local = self._index.insert(rows)
        if (more := self._index.size - len(self._pull)) > 0:
            more = max(more, len(self._pull))
            self._pull = np.concatenate([self._pull, np.full(more, -1)])
            self._position = np.concatenate([self._position, np.zeros(more, dtype=np.int64)])
        before = self._pull[local], self._position[local]
        self._pull[local], self._position[local] = number, positions
        return before

    def forget(self) -> None:
        """Forget all rows, but keep the memory."""
        self._pull[: self._index.size] = -1
        self._index.reset()


class PullsUnderWay:
    """The pulls of all batches of a daemon that are under way."""

    # Invariants: a key is kept only while a pull is open. Numbers ascend, and a pull expects rows only of earlier ones.

    def __init__(self, pool: Executor, node_counts: Mapping[str, int] | None = None) -> None:
        """``pool`` copies rows. ``node_counts``: vertices by node type, if known: small graphs need no hashing then."""
        self._pool, self._node_counts = pool, node_counts or {}
        self._last: dict[Key, _LastPulls] = {}
        self._spare: dict[str, _LastPulls] = {}  # by node type: the memory of a key that is not kept any more
        self._habits: dict[str, _Habit] = {}  # by node type
        self._count = 0

    def begin(self, key: Key, rows: np.ndarray, positions: np.ndarray, outs: Sequence[np.ndarray]) -> Pull:
        """A batch wants ``rows`` (int64 [n], internal ids) at ``positions`` of ``outs``; ``end`` must follow.

        The result's ``expected`` says what earlier pulls will bring. Await each of them, and ask the owners for all
        other rows and for those that did not come.
        """
        self._count += 1
        pull = Pull(key, self._count, outs)
        if len(rows) < LEAST_ROWS:
            return pull
        habit = self._habits.get(key[0])
        if habit is None:
            habit = self._habits[key[0]] = _Habit()
        if habit.rest():
            return pull
        last = self._last.get(key)
        if last is None:
            spare = self._spare.pop(key[0], None)
            last = self._last[key] = spare if spare is not None else _LastPulls(self._node_counts.get(key[0], 0))
        askers, sources = last.replace(rows, pull.number, positions)
        for number, earlier in last.open.items():
            chosen = np.flatnonzero(askers == number)
            if len(chosen) >= LEAST_ROWS:
                came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                shared = SharedRows(chosen, sources[chosen], positions[chosen], outs, came)
                earlier.promised.append(shared)
                pull.expected.append(shared)
        last.open[pull.number] = pull
        habit.looked(len(rows), sum(len(shared.chosen) for shared in pull.expected))
        return pull

    def end(self, pull: Pull, *, came: bool) -> Coroutine[Any, Any, None] | None:
        """All rows of ``pull`` have come (or, ``came`` False, will not).

        Returns what hands out the rows that it promised, for the caller to await; None: it promised nothing.
        """
        last = self._last.get(pull.key)
        if last is not None and last.open.pop(pull.number, None) is not None and not last.open:
            del self._last[pull.key]
            last.forget()
            self._spare[pull.key[0]] = last
        return self._hand_out(pull, came=came) if pull.promised else None

    async def _hand_out(self, pull: Pull, *, came: bool) -> None:
        handed = [False] * len(pull.promised)
        try:
            if came:
                run: Callable[..., asyncio.Future[None]] = asyncio.get_running_loop().run_in_executor
                copies = (run(self._pool, _copy, pull.outs, shared) for shared in pull.promised)
                # Wait for all, even if one fails: another batch may soon get the memory that they read.
                handed = [failure is None for failure in await asyncio.gather(*copies, return_exceptions=True)]
        finally:
            for shared, done in zip(pull.promised, handed, strict=True):
                if not shared.came.done():
                    shared.came.set_result(done)


def _copy(outs: Sequence[np.ndarray], shared: SharedRows) -> None:
    for source, target in zip(outs, shared.outs, strict=True):
        kernels.gather_rows(source, shared.sources, target, positions=shared.positions)
