"""Where the rows of a layer that a trainer reads but does not compute come from, and where their gradients go.

A layer asks by its number and a direction, and does not know the answer: messages between trainers now, or rows of
earlier epochs from a table. What a source sends is counted by the same keys.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch

from atta.train.stale.table import Direction

__all__ = ["Arrival", "Direction", "JoinedSource", "Payload", "Source", "UnchangedRows"]

Payload = Counter[tuple[int, Direction]]
"""Bytes by layer and direction."""


class Arrival(Protocol):
    """Something that is under way."""

    def finish(self) -> torch.Tensor:
        """Wait for it; called once."""


class Source(abc.ABC):
    """Remote rows of every layer. All trainers of a source start the same layers and directions in the same order."""

    @property
    @abc.abstractmethod
    def sent(self) -> Payload:
        """Bytes that this trainer has sent for the source so far."""

    @property
    @abc.abstractmethod
    def crossed(self) -> Payload:
        """The bytes of these that went to other machines."""

    @abc.abstractmethod
    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        """Start a layer.

        forward: ``rows`` are the trainer's own [o, ...]; remote rows arrive [r, ...]. backward: ``rows`` are gradients
        of the remote rows [r, ...]; what others computed for own rows arrives, added up [o, ...].
        """


class JoinedSource(Source):
    """Several sources, one after another: each has a part of the remote rows.

    So rows within a server and rows of other servers can come in different ways.
    """

    def __init__(self, parts: Sequence[tuple[Source, int]]) -> None:
        """``parts``: sources, each with the number of its remote rows, in the order of the rows."""
        self._sources = [source for source, _ in parts]
        self._counts = [count for _, count in parts]

    @property
    def sent(self) -> Payload:
        """The sum over the parts."""
        return sum((source.sent for source in self._sources), Payload())

    @property
    def crossed(self) -> Payload:
        """The sum over the parts."""
        return sum((source.crossed for source in self._sources), Payload())

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "forward":
            return _InOrder([source.start(layer, direction, rows) for source in self._sources])
        parts = zip(self._sources, rows.split(self._counts), strict=True)
        return _AddedUp([source.start(layer, direction, part.contiguous()) for source, part in parts])


class UnchangedRows(Source):
    """Rows that never change, such as features, are asked for once and kept; all others come from another source."""

    def __init__(self, source: Source, fixed: torch.Tensor, kept: torch.Tensor | None = None) -> None:
        """``fixed``: own rows [o, d] that never change; ``kept``: the remote ones [r, d] if they are there already."""
        self._source, self._fixed, self._kept = source, fixed, kept

    @property
    def sent(self) -> Payload:
        return self._source.sent

    @property
    def crossed(self) -> Payload:
        return self._source.crossed

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "backward" or rows is not self._fixed or rows.requires_grad:
            return self._source.start(layer, direction, rows)
        if self._kept is None:
            return _Keeping(self, self._source.start(layer, direction, rows))
        return _There(self._kept)

    def keep(self, rows: torch.Tensor) -> None:
        """Use ``rows`` [r, d] whenever the fixed rows are asked for again."""
        self._kept = rows


class _There:
    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def finish(self) -> torch.Tensor:
        return self._rows


class _Keeping:
    def __init__(self, keeper: UnchangedRows, arrival: Arrival) -> None:
        self._keeper, self._arrival = keeper, arrival

    def finish(self) -> torch.Tensor:
        rows = self._arrival.finish()
        self._keeper.keep(rows)
        return rows


class _InOrder:
    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals = arrivals

    def finish(self) -> torch.Tensor:
        return torch.cat([arrival.finish() for arrival in self._arrivals])


class _AddedUp(_InOrder):
    def finish(self) -> torch.Tensor:
        total, *more = (arrival.finish() for arrival in self._arrivals)
        for part in more:
            total = total.add_(part)
        return total
