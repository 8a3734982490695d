"""Which rows of a request a peer has not answered yet, so that they alone are asked for again where an answer breaks off. Pure.

A request is a list of items, each of some rows. Answers come in that order, each of whole rows of one item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from atta.samplers.batch.items import FeatureItem, SampleItem

__all__ = ["Remaining", "rest_of"]

Item = TypeVar("Item", SampleItem, FeatureItem)


class Remaining:
    """The place in a request up to which it has been answered; ``sizes``: rows of each item."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._at = self._asked_from = self._next(0, 0)

    @property
    def done(self) -> bool:
        """Whether all rows have been answered."""
        return self._at[0] == len(self._sizes)

    def ask(self) -> tuple[int, int]:
        """Item and row from which on the request is now made (again); answers count from there."""
        self._asked_from = self._at
        return self._at

    @property
    def progressed(self) -> bool:
        """Whether anything has been answered since ``ask``."""
        return self._at != self._asked_from

    def take(self, index: int, first_row: int, rows: int) -> tuple[int, int]:
        """An answer has come for ``rows`` rows from ``first_row`` on, of item ``index``, as the latest request counts them.

        Returns:
            Item and first row in the whole request.

        Raises:
            ValueError: these are not the next rows.
        """
        item = self._asked_from[0] + index
        row = first_row + (self._asked_from[1] if index == 0 else 0)
        is_next = not self.done and (item, row) == self._at and 0 < rows <= self._sizes[item] - row
        if not is_next:
            next_ = "nothing" if self.done else f"row {self._at[1]} of item {self._at[0]}"
            raise ValueError(f"answers {rows} rows from row {row} of item {item}; {next_} is next")
        self._at = self._next(item, row + rows)
        return item, row

    def _next(self, item: int, row: int) -> tuple[int, int]:
        while item < len(self._sizes) and row == self._sizes[item]:
            item, row = item + 1, 0
        return item, row


def rest_of(items: Sequence[Item], item: int, row: int) -> Sequence[Item]:
    """``items`` from ``row`` of ``item`` on."""
    if row == 0:
        return items[item:] if item else items
    left = list(items[item:])
    left[0] = _from_row(left[0], row)
    return left


def _from_row(item: Item, row: int) -> Item:
    if isinstance(item, FeatureItem):
        return replace(item, rows=item.rows[row:], positions=item.positions[row:])
    trees, times = (None if per_row is None else per_row[row:] for per_row in (item.trees, item.times))
    return replace(item, rows=item.rows[row:], positions=item.positions[row:], trees=trees, times=times)
