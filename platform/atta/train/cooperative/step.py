"""One training step: loss on own targets, backward through the server, sum of gradients over all trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from atta.errors import ConfigError
from atta.observe.machine.memory import give_back_freed
from atta.train.cooperative.exchange import CooperativeGraph
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.source import JoinedSource, Source, UnchangedRows, source_inside

LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes outputs [t, outputs] and targets; returns the *sum* of the losses, a scalar; t may be 0."""


@dataclass(frozen=True)
class TrainerBatch:
    """The tensors of a trainer's step. With one batch per epoch they are made once and stay on the device.

    Attributes:
        x: float [o, d], features of own vertices.
        y: of own targets: classes, int64 [t], or rows of numbers, float32 [t, outputs].
        targets: int64 [t], own rows that the loss is taken of.
        graph: edges and exchange.
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
        transport: str = "auto",
        machines: int = 1,
        across: Source | None = None,
    ) -> TrainerBatch:
        """Put a view on a device, where its trainer exchanges rows with the others of its server.

        transport: one of ``auto``, ``messages``, ``collective``, as for ``ExactSource``. across: the source of the
        view's HALO rows, if it has any. Other arguments and ConfigError are those of ``source_inside``.
        """
        if torch.device(device).type == "cpu":
            give_back_freed()  # memory of the previous batch, whose arrays had other sizes
        inside = source_inside(view, group, device=device, transport=transport, machines=machines)
        x, y, targets = (
            torch.from_numpy(a).to(device) for a in (view.features, view.labels[view.targets], view.targets)
        )
        # Features travel once.
        remote = None if inside is None else UnchangedRows(inside, x)
        halo = None if across is None else UnchangedRows(across, x, torch.from_numpy(view.halo_features).to(device))
        source = source_of(view, remote, halo)
        return cls(x, y, targets, CooperativeGraph(view, source, device=device))


def source_of(view: WorkerView, inside: Source | None, across: Source | None) -> Source | None:
    """The source of all rows that a trainer reads: remote ones from ``inside``, HALO ones from ``across``."""
    parts = [(inside, len(view.remote)), (across, len(view.halo))]
    given = [(source, count) for source, count in parts if source is not None]
    return None if not given else given[0][0] if len(given) == 1 else JoinedSource(given)


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
    """Forward and backward of one step; each parameter's ``grad`` becomes the gradient of the mean loss over all
    targets.

    With complete subgraphs (``TrainingGraph.exact_layers``) this is the gradient that one process would compute on the
    whole graph; every trainer gets the same bits (GraNNDis section 4.2). Earlier gradients are replaced. The caller
    calls ``optimizer.step()``.

    model: called as ``model(x, graph)``, usually a ``CooperativeModel``, with equal weights everywhere
    (``broadcast_weights``); groups: None for a single trainer; num_targets: of all trainers (``count_targets``). Every
    trainer must call this, even one without vertices or targets. Returns the mean loss over all targets, a scalar
    without graph.

    Raises:
        ConfigError: there are no targets.
    """
    total = own_backward(model, batch, num_targets, loss)
    if groups is not None:
        sum_gradients(model.parameters(), groups, total)
    return total


def own_backward(
    model: torch.nn.Module, batch: TrainerBatch, num_targets: int, loss: LossSum = summed_cross_entropy
) -> torch.Tensor:
    """This trainer's part of ``backward``, before the sum over trainers; returns its part of the mean loss.

    Raises:
        ConfigError: there are no targets.
    """
    if num_targets < 1:
        raise ConfigError("there are no targets: no training vertex is in any server's inner set")
    for parameter in model.parameters():
        parameter.grad = None
    scores = model(batch.x, batch.graph)
    mean = loss(scores.index_select(0, batch.targets), batch.y) / num_targets
    mean.backward()
    return mean.detach().clone()


def sum_gradients(parameters: Iterable[torch.nn.Parameter], groups: ServerGroups, *more: torch.Tensor) -> None:
    """Add up gradients over all trainers of all servers, and the tensors ``more``, in place; one message per number
    type.

    All trainers run the same model, so a parameter without a gradient has none on any trainer.
    """
    tensors = [p.grad for p in parameters if p.grad is not None] + list(more)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        alike = [t for t in tensors if t.dtype == dtype]
        flat = groups.sum_(torch.cat([t.reshape(-1) for t in alike]))
        for tensor, total in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(total.view_as(tensor))


def broadcast_weights(model: torch.nn.Module, groups: ServerGroups) -> None:
    """Give every trainer the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            groups.broadcast_(tensor)
