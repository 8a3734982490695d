"""Exchange of rows between the trainers of a server in forward, and of their gradients in backward.

A trainer sends exactly the rows that others read. Forward and backward each have two halves. Rows are under way between
``start_exchange`` and ``finish``; gradients are under way between the backward passes of the same two, in the opposite order.
Computation in between overlaps with the messages. This holds in backward too, because autograd runs later operations first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from atta.errors import ConfigError
from atta.train.cooperative.views import WorkerView
from atta.train.steps.timing import Stopwatch

__all__ = ["CooperativeGraph", "PendingExchange", "RowRange", "exchange", "start_exchange"]

TRANSPORTS = ("auto", "messages", "collective")


@dataclass(frozen=True)
class RowRange:
    """Consecutive own rows, and the edges into them.

    Attributes:
        first, last: own rows ``first`` to ``last - 1``.
        edge_index: int64 [2, e], rows of sources; targets relative to ``first``, ascending.
        sources: number of rows that may be sources.
    """

    first: int
    last: int
    edge_index: torch.Tensor
    sources: int


class CooperativeGraph:
    """A trainer's view on its device; takes the place of ``edge_index`` in a model and exchanges rows.

    Attributes:
        view: the arrays that it was made from.
        edge_index: int64 [2, e], sources in own and remote rows, targets in own rows.
        in_degrees: int64 [o + r], in the whole graph.
        whole, interior, boundary: all own rows; the own rows that read only own rows; the other own rows.
        fixed: rows [o, ...] that never change, such as a batch's features, or None. They are sent only once.
        exchanged_bytes: bytes that this trainer has sent to others of its server, forward and backward.
        crossed_bytes: the bytes of these that went to other machines.
        watch: where the time of waiting for others counts, as phase ``exchange``; None: it is not counted.
    """

    def __init__(
        self,
        view: WorkerView,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | str = "cpu",
        transport: str = "auto",
        machines: int = 1,
    ) -> None:
        """``group``: the server's trainers, ``ServerGroups.inside``; None: the view is that of the only trainer.

        ``transport``: ``collective`` is one all-to-all, ``messages`` one send and one receive per pair of trainers that share rows.
        ``auto`` takes messages with gloo, whose older versions lack uneven all-to-alls, and the collective otherwise.
        ``machines``: machines of the server, as in ``Place``; only ``crossed_bytes`` depends on it.

        Raises:
            ConfigError: the view is not that of this trainer in this group, or the transport is unknown.
        """
        if transport not in TRANSPORTS:
            raise ConfigError(f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}")
        members = 1 if group is None else dist.get_world_size(group)
        place = 0 if group is None else dist.get_rank(group)
        if (view.trainers, view.trainer) != (members, place):
            raise ConfigError(
                f"the view is that of trainer {view.trainer} of {view.trainers}, the group has this as {place} of {members}"
            )
        self.view, self.device = view, torch.device(device)
        self.group = group if members > 1 else None  # a single trainer exchanges nothing
        self._send_counts: list[int] = view.send_counts.tolist()
        self._receive_counts: list[int] = view.receive_counts.tolist()
        self._send_rows = self._tensor(view.send_rows)
        self._ranks = [] if self.group is None else dist.get_process_group_ranks(self.group)
        if transport == "auto" and self.group is not None:
            transport = "messages" if dist.get_backend(self.group) == "gloo" else "collective"
        self._collective = transport == "collective"
        self._cache: dict[Any, Any] = {}
        self.fixed: torch.Tensor | None = None
        self.fixed_rows: torch.Tensor | None = None  # remote fixed rows, after they have arrived
        self.exchanged_bytes = self.crossed_bytes = 0
        machine = np.arange(view.trainers) * machines // view.trainers
        self._elsewhere: list[bool] = (machine != machine[view.trainer]).tolist()
        self.watch: Stopwatch | None = None

        self.edge_index = self._tensor(view.edge_index)
        self.in_degrees = self._tensor(view.in_degrees)
        rows, interior = self.num_own + len(view.remote), view.interior
        inner_edges = int(np.searchsorted(view.edge_index[1], interior))
        shift = torch.tensor([[0], [interior]], device=self.device)
        self.whole = RowRange(0, self.num_own, self.edge_index, rows)
        self.interior = RowRange(0, interior, self.edge_index[:, :inner_edges], self.num_own)
        self.boundary = RowRange(interior, self.num_own, self.edge_index[:, inner_edges:] - shift, rows)

    @property
    def num_own(self) -> int:
        """Rows that this trainer computes."""
        return len(self.view.own)

    def exchange(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The pair that PyG's layers take for two sets of vertices: rows read [o + r, ...], rows computed [o, ...].

        For a layer of your own: ``layer(graph.exchange(h), graph.edge_index)``.
        """
        return exchange(h, self), h

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of ``make`` at the first call with this key: edges in another form, made once per graph."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def send(self, rows: torch.Tensor, *, back: bool) -> _Transfer:
        """Start sending ``rows`` [s, ...], by receiver; ``back``: gradients [r, ...], to where the rows came from."""
        sent, received = self._send_counts, self._receive_counts
        if back:
            sent, received = received, sent
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        self.exchanged_bytes += len(rows) * row_bytes
        self.crossed_bytes += sum(compress(sent, self._elsewhere)) * row_bytes
        into = rows.new_empty((sum(received), *rows.shape[1:]))
        if self.group is None:
            works: list[Any] = []
        elif self._collective:
            works = [dist.all_to_all_single(into, rows, received, sent, group=self.group, async_op=True)]
        else:
            works = self._messages(zip(self._ranks, rows.split(sent), into.split(received), strict=True))
        return _Transfer(rows, into, works)

    def sent_rows(self, h: torch.Tensor) -> torch.Tensor:
        """The rows of ``h`` [o, ...] that others read, by reader: [s, ...]."""
        return h.index_select(0, self._send_rows)

    def add_sent(self, gradients: torch.Tensor) -> torch.Tensor:
        """Gradients [s, ...] of the sent rows, added up by own row: [o, ...]."""
        total = gradients.new_zeros((self.num_own, *gradients.shape[1:]))
        return total.index_add_(0, self._send_rows, gradients)

    def _messages(self, pairs: Any) -> list[Any]:
        # Both ends know the number of rows, so they exchange no message for 0 rows.
        operations = []
        for rank, out, into in pairs:
            if len(into):
                operations.append(dist.P2POp(dist.irecv, into, rank, self.group))
            if len(out):
                operations.append(dist.P2POp(dist.isend, out, rank, self.group))
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


@dataclass
class _Transfer:
    """Rows under way; holds the rows that are being sent until they have left."""

    rows: torch.Tensor
    into: torch.Tensor
    works: list[Any]

    def wait(self) -> torch.Tensor:
        for work in self.works:
            work.wait()
        return self.into


class PendingExchange:
    """An exchange under way, made by ``start_exchange``. For fixed rows only the first exchange sends anything."""

    def __init__(self, graph: CooperativeGraph, h: torch.Tensor) -> None:
        self.graph = graph
        self.transfer: _Transfer | None = None
        self._keep = h is graph.fixed and not h.requires_grad
        self._kept = graph.fixed_rows if self._keep else None
        self._token: torch.Tensor | None = None
        if self._kept is None:
            # The token has no content: it makes autograd run the backward of start after that of finish.
            self._token = _Start.apply(h, self)  # type: ignore[no-untyped-call]

    def finish(self) -> torch.Tensor:
        """Wait for the remote rows: [r, ...]. Call it once, and use its result in the loss even if r is 0.

        A trainer that reads no remote rows may still send rows to others, and then must wait for their gradients.
        """
        if self._kept is not None:
            return self._kept
        # The token's history refers to this object. If the token stayed here, the cycle would keep earlier tensors alive.
        token, self._token = self._token, None
        rows: torch.Tensor = _Finish.apply(token, self)  # type: ignore[no-untyped-call]
        if self._keep:
            self.graph.fixed_rows = rows
        return rows

    def arrived(self) -> torch.Tensor:
        """Wait for the transfer that this exchange started last."""
        assert self.transfer is not None
        watch = self.graph.watch or Stopwatch(self.graph.device)
        start = watch.now()
        rows, self.transfer = self.transfer.wait(), None
        watch.add("exchange", start, watch.now())
        return rows


class _Start(torch.autograd.Function):
    """Forward: rows leave. Backward: gradients of the rows that left arrive and are added up."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, pending: PendingExchange) -> torch.Tensor:
        ctx.pending = pending
        pending.transfer = pending.graph.send(pending.graph.sent_rows(h), back=False)
        return h.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.pending.graph.add_sent(ctx.pending.arrived()), None


class _Finish(torch.autograd.Function):
    """Forward: remote rows arrive. Backward: their gradients leave."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, pending: PendingExchange) -> torch.Tensor:
        ctx.pending = pending
        return pending.arrived()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.pending.transfer = ctx.pending.graph.send(gradient.contiguous(), back=True)
        return gradient.new_zeros(()), None


def start_exchange(h: torch.Tensor, graph: CooperativeGraph) -> PendingExchange:
    """Send the rows of ``h`` [o, ...] that others read. Compute what needs no remote rows before ``finish``.

    All trainers of the server must start their exchanges in the same order, with rows of the same shape and type.

    Raises:
        ConfigError: ``h`` does not have one row per own vertex.
    """
    if len(h) != graph.num_own:
        raise ConfigError(f"exchange: got {len(h)} rows, this trainer computes {graph.num_own}")
    return PendingExchange(graph, h)


def exchange(h: torch.Tensor, graph: CooperativeGraph) -> torch.Tensor:
    """Own rows ``h`` [o, ...], followed by the remote ones: [o + r, ...] (GraNNDis section 4.4).

    Gradients of remote rows go back to the trainers that sent them, which add them to their own. Raises ConfigError as
    ``start_exchange`` does.
    """
    if graph.group is None:
        return h
    return torch.cat([h, start_exchange(h, graph).finish()])
