"""Which rows of a request a peer has not answered yet. If an answer breaks off, only these are asked for again. Pure.

A request is a list of items, each with some rows. Answers come in this order, each with whole rows of one item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from atta.samplers.batch.items import FeatureItem, SampleItem

__all__ = ["Place", "Remaining", "rest_of"]

Item = TypeVar("Item", SampleItem, FeatureItem)


class Place(NamedTuple):
    """A row of an item of a request."""

    item: int
    row: int


class Remaining:
    """How far a request has been answered; ``sizes``: number of rows of each item."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._at = self._asked_from = self._next(0, 0)  # the next row to be answered; never before ``_asked_from``

    @property
    def done(self) -> bool:
        """Whether all rows have been answered."""
        return self._at[0] == len(self._sizes)

    def ask(self) -> Place:
        """The request is made (again) for the rows from this place on; answers count from there."""
        self._asked_from = self._at
        return self._at

    @property
    def progressed(self) -> bool:
        """Whether anything has been answered since ``ask``."""
        return self._at != self._asked_from

    def take(self, index: int, first_row: int, rows: int) -> Place:
        """An answer has come for ``rows`` rows of item ``index`` from ``first_row`` on, counted in the latest request.

        Returns:
            The place of the first row in the whole request.

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
        return Place(item, row)

    def _next(self, item: int, row: int) -> Place:
        while item < len(self._sizes) and row == self._sizes[item]:
            item, row = item + 1, 0
        return Place(item, row)


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
