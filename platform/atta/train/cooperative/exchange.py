"""What a layer gets in place of ``edge_index``: a trainer's edges, and rows of other trainers, for autograd. Rows are
under way between the making of a ``PendingExchange`` and ``finish``, gradients between the backward passes of the same
two, in the opposite order. Computation in between overlaps with the messages: autograd runs later operations first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from atta.errors import ConfigError
from atta.observe.machine.memory import give_back_freed
from atta.train.cooperative.dropout import RowDropout
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.source import Arrival, JoinedSource, RowPart, Source, source_inside
from atta.train.steps.timing import Stopwatch


@dataclass(frozen=True)
class RowRange:
    """The own rows ``first`` to ``last - 1``, and the edges into them: ``edge_index`` int64 [2, e], rows of sources;
    targets relative to ``first``, ascending. ``sources``: number of rows that may be sources."""

    first: int
    last: int
    edge_index: torch.Tensor
    sources: int


class CooperativeGraph:
    """A trainer's view on its device; takes the place of ``edge_index`` in a model.

    Here all rows that the trainer reads and does not compute are remote: r counts the view's HALO rows too.

    Attributes:
        source: where remote rows come from; None: the trainer reads none, because it is the only one.
        edge_index: int64 [2, e], sources in own and remote rows, targets in own rows.
        in_degrees: int64 [o + r], of own and remote rows, in the whole graph.
        whole, interior, boundary: all own rows; the own rows that read only own rows; the other own rows.
        watch: where the time of waiting for others counts, as phase ``exchange``; None: it is not counted.
        dropout: what takes the place of torch's dropout in a ``CooperativeModel``; None: nothing does.
    """

    def __init__(self, view: WorkerView, source: Source | None = None, *, device: torch.device | str = "cpu") -> None:
        """Put the arrays on ``device``; ``source_inside`` makes the usual source. Raises ConfigError: the view has
        remote rows, and there is no source."""
        if source is None and view.rows > len(view.own):
            others = view.rows - len(view.own)
            raise ConfigError(f"the view has {others} rows of other trainers: it needs a source of them")
        self.view, self.source, self.device = view, source, torch.device(device)
        self.watch: Stopwatch | None = None
        self.dropout: RowDropout | None = None
        self._cache: dict[Any, Any] = {}
        self.edge_index = self._tensor(view.edge_index)
        self.in_degrees = self._tensor(view.in_degrees)
        rows, interior = view.rows, view.interior
        inner_edges = int(np.searchsorted(view.edge_index[1], interior))
        shift = torch.tensor([[0], [interior]], device=self.device)
        self.whole = RowRange(0, self.num_own, self.edge_index, rows)
        self.interior = RowRange(0, interior, self.edge_index[:, :inner_edges], self.num_own)
        self.boundary = RowRange(interior, self.num_own, self.edge_index[:, inner_edges:] - shift, rows)

    @property
    def num_own(self) -> int:
        """Rows that this trainer computes."""
        return len(self.view.own)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes that this trainer has sent to others, forward and backward."""
        return 0 if self.source is None else sum(self.source.sent.values())

    @property
    def crossed_bytes(self) -> int:
        """The bytes of these that went to other machines."""
        return 0 if self.source is None else sum(self.source.crossed.values())

    def exchange(self, h: torch.Tensor, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """What PyG's layers take, rows read [o + r, ...] and computed [o, ...]: ``layer(graph.exchange(h), graph.edge_index)``."""
        return exchange(h, self, layer), h

    def within(self, name: str, layer: torch.nn.Module | None = None) -> AbstractContextManager[None]:
        """Run the module ``name``, as in ``RowDropout.within``, if the graph has a dropout of its own."""
        return nullcontext() if self.dropout is None else self.dropout.within(name, layer)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """The result of ``make`` at the first call with this key: edges in another form, made once per graph."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def start_exchange(h: torch.Tensor, graph: CooperativeGraph, layer: int = 0) -> PendingExchange:
    """Send the rows of ``h`` [o, ...] that others read. Compute what needs no remote rows before ``finish``.

    If ``h`` comes straight from the graph's dropout, remote rows are dropped out here. ``layer``: the number of the layer
    that reads the rows. All trainers must start their exchanges in the same order, with rows of the same shape and type.
    Raises ConfigError: ``h`` does not have one row per own vertex, or the graph has no source."""
    if len(h) != graph.num_own:
        raise ConfigError(f"exchange: got {len(h)} rows, this trainer computes {graph.num_own}")
    if graph.source is None:
        raise ConfigError("exchange: this trainer is the only one")
    before = None if graph.dropout is None else graph.dropout.rows_before(h)
    if before is None:
        return PendingExchange(graph.source, layer, h, graph.watch)
    return PendingExchange(graph.source, layer, before.rows, graph.watch, before.drop_remote)


def exchange(h: torch.Tensor, graph: CooperativeGraph, layer: int = 0) -> torch.Tensor:
    """Own rows ``h`` [o, ...], followed by the remote ones: [o + r, ...] (GraNNDis section 4.4). Gradients of remote
    rows go back to the trainers that sent them, which add them to their own. Raises ConfigError as ``start_exchange``
    does."""
    return h if graph.source is None else torch.cat([h, start_exchange(h, graph, layer).finish()])


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
        """``watch``: counts the time of waiting as ``exchange``; ``then``: what is done to the remote rows that have come."""
        self.source, self.layer, self._then = source, layer, then
        self._watch = watch or Stopwatch(h.device)
        self._arrival: Arrival | None = None
        # The token has no content: it makes autograd run the backward of start after that of finish.
        self._token: torch.Tensor | None = _Start.apply(h, self)  # type: ignore[no-untyped-call]

    def finish(self) -> torch.Tensor:
        """Wait for the remote rows: [r, ...]. Call it once, and use its result in the loss even if r is 0. A trainer
        that reads no remote rows may still send rows to others, and then must wait for their gradients."""
        # The token's history refers to this object. If the token stayed here, the cycle would keep earlier tensors
        # alive.
        token, self._token = self._token, None
        rows: torch.Tensor = _Finish.apply(token, self)  # type: ignore[no-untyped-call]
        return rows if self._then is None else self._then(rows)

    def start(self, direction: Any, rows: torch.Tensor) -> None:
        """Ask the source."""
        self._arrival = self.source.start(self.layer, direction, rows)

    def await_rows(self) -> torch.Tensor:
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
        return ctx.pending.await_rows(), None


class _Finish(torch.autograd.Function):
    """Forward: remote rows arrive. Backward: their gradients leave."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, pending: PendingExchange) -> torch.Tensor:
        ctx.pending = pending
        return pending.await_rows()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.pending.start("backward", gradient.contiguous())
        return gradient.new_zeros(()), None


LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes outputs [t, outputs] and targets; returns the *sum* of the losses, a scalar; t may be 0."""


@dataclass(frozen=True)
class TrainerBatch:
    """The tensors of a trainer's step. With one batch per epoch they are made once and stay on the device.

    Attributes:
        x: float [o, d], features of own vertices.
        y: of own targets: classes, int64 [t], or rows of numbers, float32 [t, outputs].
        targets: int64 [t], own rows that the loss is taken of.
    """

    x: torch.Tensor
    y: torch.Tensor
    targets: torch.Tensor
    graph: CooperativeGraph

    @classmethod
    def of(
        cls,
        view: WorkerView,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | str = "cpu",
        machines: int = 1,
        across: Source | None = None,
    ) -> TrainerBatch:
        """Put a view on a device, where its trainer exchanges rows with the others of its server. ``across``: the
        source of the view's HALO rows, if it has any. Other arguments and ConfigError are those of
        ``source_inside``."""
        if torch.device(device).type == "cpu":
            give_back_freed()  # memory of the previous batch, whose arrays had other sizes
        inside = source_inside(view, group, device=device, machines=machines)
        x, y, targets = (
            torch.from_numpy(a).to(device) for a in (view.features, view.labels[view.targets], view.targets)
        )
        parts = [] if inside is None else [RowPart(inside, len(view.remote))]
        if across is not None:
            parts.append(RowPart(across, len(view.halo), features=torch.from_numpy(view.halo_features).to(device)))
        return cls(x, y, targets, CooperativeGraph(view, JoinedSource(x, parts) if parts else None, device=device))


def count_targets(batch: TrainerBatch, groups: ServerGroups | None) -> int:
    """Number of targets of all trainers in this step; the sum of losses is divided by it."""
    count = torch.tensor(len(batch.targets), dtype=torch.int64, device=batch.x.device)
    return int(count if groups is None else groups.sum_(count))


def summed_cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy, added up over rows."""
    return F.cross_entropy(scores, labels, reduction="sum")


def backward(
    model: torch.nn.Module,
    batch: TrainerBatch,
    groups: ServerGroups | None,
    num_targets: int,
    loss: LossSum = summed_cross_entropy,
) -> torch.Tensor:
    """Forward and backward of one step; each parameter's ``grad`` becomes the gradient of the mean loss over all targets.

    With complete subgraphs (``TrainingGraph.exact_layers``) this is the gradient that one process would compute on the
    whole graph; every trainer gets the same bits (GraNNDis section 4.2). The caller calls ``optimizer.step()``.

    model: called as ``model(x, graph)``, with equal weights everywhere (``broadcast_weights``); groups: None for a single
    trainer; num_targets: of all trainers (``count_targets``). Every trainer must call this, even one without vertices.
    Returns the mean loss, a scalar without graph. Raises ConfigError: there are no targets."""
    total = own_backward(model, batch, num_targets, loss)
    if groups is not None:
        sum_gradients(model.parameters(), groups, total)
    return total


def own_backward(
    model: torch.nn.Module, batch: TrainerBatch, num_targets: int, loss: LossSum = summed_cross_entropy
) -> torch.Tensor:
    """This trainer's part of ``backward``, before the sum over trainers; returns its part of the mean loss. Raises
    ConfigError: there are no targets."""
    if num_targets < 1:
        raise ConfigError("there are no targets: no training vertex is in any server's inner set")
    for parameter in model.parameters():
        parameter.grad = None
    scores = model(batch.x, batch.graph)
    mean = loss(scores.index_select(0, batch.targets), batch.y) / num_targets
    mean.backward()
    return mean.detach().clone()


def sum_gradients(
    parameters: Iterable[torch.nn.Parameter], groups: ServerGroups, *more: torch.Tensor, codec: str = "none"
) -> None:
    """Add up gradients over all trainers of all servers, and the tensors ``more``, in place; one message per number
    type. All trainers run the same model, so a parameter without a gradient has none on any trainer. ``codec``: as of
    ``ServerGroups.sum_``."""
    tensors = [p.grad for p in parameters if p.grad is not None] + list(more)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        alike = [t for t in tensors if t.dtype == dtype]
        flat = groups.sum_(torch.cat([t.reshape(-1) for t in alike]), codec)
        for tensor, total in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(total.view_as(tensor))


def broadcast_weights(model: torch.nn.Module) -> None:
    """Give every trainer the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
