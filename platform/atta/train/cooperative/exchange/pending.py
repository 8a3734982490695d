"""One exchange of one layer, for autograd: rows in forward, their gradients in backward.

Forward and backward each have two halves. Rows are under way between the making of a ``PendingExchange`` and
``finish``. Gradients are under way between the backward passes of the same two, in the opposite order. Computation in
between overlaps with the messages. This holds in backward too, because autograd runs later operations first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from atta.train.cooperative.exchange.source import Arrival, Source
from atta.train.steps.timing import Stopwatch

__all__ = ["PendingExchange"]


class PendingExchange:
    """An exchange under way."""

    def __init__(
        self,
        source: Source,
        layer: int,
        h: torch.Tensor,
        watch: Stopwatch | None = None,
        then: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Args:
        source: of the remote rows.
        layer: the number of the layer that reads them.
        h: own rows [o, ...].
        watch: counts the time of waiting as ``exchange``, if there is one.
        then: what is done to the remote rows when they are there, such as dropout.
        """
        self.source, self.layer, self._then = source, layer, then
        self._watch = watch or Stopwatch(h.device)
        self._arrival: Arrival | None = None
        # The token has no content: it makes autograd run the backward of start after that of finish.
        self._token: torch.Tensor | None = _Start.apply(h, self)  # type: ignore[no-untyped-call]

    def finish(self) -> torch.Tensor:
        """Wait for the remote rows: [r, ...]. Call it once, and use its result in the loss even if r is 0.

        A trainer that reads no remote rows may still send rows to others, and then must wait for their gradients.
        """
        # The token's history refers to this object. If the token stayed here, the cycle would keep earlier tensors
        # alive.
        token, self._token = self._token, None
        rows: torch.Tensor = _Finish.apply(token, self)  # type: ignore[no-untyped-call]
        return rows if self._then is None else self._then(rows)

    def start(self, direction: Any, rows: torch.Tensor) -> None:
        """Ask the source."""
        self._arrival = self.source.start(self.layer, direction, rows)

    def arrived(self) -> torch.Tensor:
        """Wait for what was asked for last."""
        assert self._arrival is not None
        arrival, self._arrival = self._arrival, None
        start = self._watch.now()
        rows = arrival.finish()
        self._watch.add("exchange", start, self._watch.now())
        return rows


class _Start(torch.autograd.Function):
    """Forward: rows leave. Backward: gradients of the rows that left arrive and are added up."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, pending: PendingExchange) -> torch.Tensor:
        ctx.pending = pending
        pending.start("forward", h)
        return h.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.pending.arrived(), None


class _Finish(torch.autograd.Function):
    """Forward: remote rows arrive. Backward: their gradients leave."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, pending: PendingExchange) -> torch.Tensor:
        ctx.pending = pending
        return pending.arrived()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.pending.start("backward", gradient.contiguous())
        return gradient.new_zeros(()), None
