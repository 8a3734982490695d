"""Pushes that tell whether they were applied, and how often.

Every push adds one to a column of its own, in some rows. A push that was acknowledged is applied once in all its rows.
One that ended with an error is applied once or not at all in the rows of each owner. One that was never sent is not
applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from atta.kvstore.spec import MutableSpec
from tests.sim.scenarios.sessions import EXPECTED
from tests.sim.world import World

T = TypeVar("T")
Errors = tuple[type[Exception], ...]
ROWS, PUSHES, CLIENTS = 8, 9, 2
COLUMNS = PUSHES * CLIENTS
SPEC = MutableSpec("sums", ROWS, row_shape=(COLUMNS,))


class Pushed:
    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()

    def check(self, values: np.ndarray, *, all_of: bool) -> None:
        """Compare with the table, float32 [rows, columns]. ``all_of``: no push is under way."""
        for column in range(COLUMNS):
            found, rows = values[:, column], self.rows.get(column)
            if rows is None:
                assert not found.any(), f"push {column} was not sent, and was applied: {found}"
                continue
            outside = np.setdiff1d(np.arange(ROWS), rows)
            assert not found[outside].any(), f"push {column} of rows {rows} has changed others: {found}"
            if column in self.acknowledged:
                assert (found[rows] == 1).all(), f"push {column} was acknowledged, and was applied {found[rows]} times"
            assert (found <= 1).all(), f"push {column} was applied {found[rows]} times"
            if all_of and column in self.unknown:
                for owner in (rows[rows < ROWS // 2], rows[rows >= ROWS // 2]):
                    assert len({*found[owner]}) <= 1, f"push {column} was applied to some rows only: {found}"


def begin(
    world: World,
    table: Any,
    pushed: Pushed,
    column: int,
    rng: np.random.Generator,
    but: tuple[type[Exception], ...] = EXPECTED,
) -> Callable[[], None]:
    """Begin a push; returns what waits for its end. ``but``: what it may fail with."""
    rows = np.sort(rng.permutation(ROWS)[: rng.integers(1, 5)]).astype(np.int64)
    values = np.zeros((len(rows), COLUMNS), np.float32)
    values[:, column] = 1
    pushed.rows[column] = rows

    def noted(do: Callable[[], T]) -> T | None:
        try:
            return do()
        except but as error:
            pushed.unknown.add(column)
            world.event(f"push {column} fails: {type(error).__name__}")
            return None

    ticket = noted(lambda: table.push(rows, values, "add"))

    def wait() -> None:
        if ticket is not None:
            noted(ticket.wait)
        if column not in pushed.unknown:
            pushed.acknowledged.add(column)
            world.event(f"push {column} is acknowledged")

    return wait
