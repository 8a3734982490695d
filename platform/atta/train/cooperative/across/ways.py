"""The ways in which rows get from the trainers that compute them to those that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from atta.train.cooperative.exchange.source import Arrival

__all__ = ["Outgoing", "Way"]

Outgoing = Sequence[torch.Tensor]
"""The rows for each rank, [n, d]."""


class Way(Protocol):
    """Rows of all layers in one direction. All trainers call everything in the same order.

    ``begin``, then ``start`` for each layer, then ``flush``, then all trainers wait for each other, then ``commit``.
    """

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies of others' rows that are kept for later epochs, without their versions."""

    @property
    def copied_bytes(self) -> int:
        """Bytes of own rows as they were sent last; 0 unless their change is measured."""

    def begin(self, epoch: int) -> None:
        """Begin an epoch; epochs count from 1."""

    def start(self, layer: int, rows: torch.Tensor, outgoing: Callable[[torch.Tensor], Outgoing]) -> Arrival:
        """Send the rows of a layer if it is time, and get those that are read instead.

        ``rows``: what this trainer has computed [n, d]; ``outgoing`` says what of it goes to whom. A layer may be
        started again in the same epoch, when backward computes it anew. Then nothing is sent.
        """

    def flush(self) -> None:
        """Wait until what others read of this epoch, now or as soon as it is committed, is where they find it."""

    def commit(self) -> None:
        """End the epoch. All trainers must have flushed it before."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves after an epoch. Tensors are not copied. All trainers call it."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved."""

    def close(self) -> None:
        """Give back what the way has taken outside this process. Only between epochs."""
