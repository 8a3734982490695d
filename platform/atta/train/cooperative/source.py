"""Where the rows of a layer that a trainer reads but does not compute come from, and where their gradients go."""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.graph import RowLists, WorkerView
from atta.train.meeting import BACKEND

BY_MESSAGES = ("gloo", BACKEND)
"""Backends without an uneven all-to-all, at least in older versions."""

Direction = Literal["forward", "backward"]
"""Rows travel forward, the gradients of the loss with respect to them backward."""
Payload = Counter[tuple[int, Direction]]
"""Bytes by layer and direction."""


@dataclass(frozen=True)
class Arrival:
    """Rows that are under way. ``finish`` waits for them; it is called once."""

    finish: Callable[[], torch.Tensor]

    def then(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Arrival:
        """The same rows, changed when they have come."""
        return Arrival(lambda: change(self.finish()))


class Source(abc.ABC):
    """Remote rows of every layer. All trainers of a source start the same layers and directions in the same order.

    Attributes:
        sent, crossed: bytes that this trainer has sent for the source so far, and those that went to other machines.
    """

    sent: Payload
    crossed: Payload

    @abc.abstractmethod
    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        """Start a layer. forward: ``rows`` are the trainer's own [o, ...]; remote rows arrive [r, ...]. backward: ``rows`` are
        gradients of the remote rows [r, ...]; what others computed for own rows arrives, added up [o, ...].
        """


class ExactSource(Source):
    """Rows and gradients of this very step travel between the trainers of a group. Both ends know how many."""

    def __init__(
        self,
        lists: RowLists,
        own: int,
        group: dist.ProcessGroup,
        *,
        device: torch.device | str = "cpu",
        elsewhere: Sequence[bool] = (),
    ) -> None:
        """``lists``: the rows that this trainer, which computes ``own`` ones, sends to each member of ``group``, and receives, in
        one all-to-all, or in messages (``BY_MESSAGES``). ``elsewhere``: for each member whether it is on another machine.
        """
        self.sent, self.crossed = Payload(), Payload()
        self._own, self._group = own, group
        self._sent_counts: list[int] = lists.send_counts.tolist()
        self._received_counts: list[int] = lists.receive_counts.tolist()
        self._send_rows = torch.from_numpy(np.ascontiguousarray(lists.send_rows)).to(device)
        self._collective = dist.get_backend(group) not in BY_MESSAGES
        self._elsewhere = elsewhere or [False] * dist.get_world_size(group)

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        to, back = self._sent_counts, self._received_counts
        if direction == "forward":
            rows = rows.index_select(0, self._send_rows)
        else:
            to, back = back, to
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        self.sent[layer, direction] += len(rows) * row_bytes
        self.crossed[layer, direction] += sum(compress(to, self._elsewhere)) * row_bytes
        arrival = self._send(rows, to, back)
        return arrival if direction == "forward" else summed_gradients(arrival, self._send_rows, self._own)

    def _send(self, rows: torch.Tensor, to: list[int], back: list[int]) -> Arrival:
        """Start sending ``rows``, by receiver; the rows of others arrive, by sender."""
        into = rows.new_empty((sum(back), *rows.shape[1:]))
        if self._collective:
            works = [dist.all_to_all_single(into, rows, back, to, group=self._group, async_op=True)]
        else:
            operations = row_messages(self._group, dict(enumerate(rows.split(to))), dict(enumerate(into.split(back))))
            works = list(dist.batch_isend_irecv(operations)) if operations else []

        def finish(rows: torch.Tensor = rows) -> torch.Tensor:  # what is being sent is held until it has left
            for work in works:
                work.wait()
            return into

        return Arrival(finish)


def row_messages(
    group: dist.ProcessGroup, out: Mapping[int, torch.Tensor], into: Mapping[int, torch.Tensor]
) -> list[dist.P2POp]:
    """What receives ``into`` from members of a group, and sends ``out`` to them. Both ends know the number of rows, so
    they exchange no message for 0 rows."""
    ranks = dist.get_process_group_ranks(group)
    receives = [dist.P2POp(dist.irecv, room, ranks[member], group) for member, room in into.items() if len(room)]
    return receives + [dist.P2POp(dist.isend, rows, ranks[member], group) for member, rows in out.items() if len(rows)]


def summed_gradients(arrival: Arrival, send_rows: torch.Tensor, own: int) -> Arrival:
    """Gradients [s, ...] of the ``own`` rows ``send_rows`` int64 [s], added up by own row: [own, ...]."""
    return arrival.then(lambda found: found.new_zeros((own, *found.shape[1:])).index_add_(0, send_rows, found))


@dataclass
class RowPart:
    """The remote rows of one ``source``, ``count`` of them. With ``keeps``, ``features`` [count, d] are asked for once
    only, because they never change."""

    source: Source
    count: int
    keeps: bool = True
    features: torch.Tensor | None = None

    def start(self, layer: int, rows: torch.Tensor, *, features: bool) -> Arrival:
        """``features``: whether ``rows`` are those that never change."""
        if not (features and self.keeps):
            return self.source.start(layer, "forward", rows)
        if (kept := self.features) is not None:
            return Arrival(lambda: kept)
        return self.source.start(layer, "forward", rows).then(self._keep)

    def _keep(self, rows: torch.Tensor) -> torch.Tensor:
        self.features = rows
        return rows


class JoinedSource(Source):
    """Parts of the remote rows, one after another: rows within a server and rows of other servers come in different
    ways, and features once."""

    def __init__(self, features: torch.Tensor, parts: Sequence[RowPart]) -> None:
        """``features``: own rows [o, d] that never change; ``parts``: at least one, in the order of the rows."""
        self._features, self._parts = features, parts

    @property
    def sent(self) -> Payload:  # type: ignore[override]
        """The sum over the parts."""
        return sum((part.source.sent for part in self._parts), Payload())

    @property
    def crossed(self) -> Payload:  # type: ignore[override]
        """The sum over the parts."""
        return sum((part.source.crossed for part in self._parts), Payload())

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "forward":
            features = rows is self._features and not rows.requires_grad
            found = [part.start(layer, rows, features=features) for part in self._parts]
            return found[0] if len(found) == 1 else Arrival(lambda: torch.cat([one.finish() for one in found]))
        arrivals = [
            part.source.start(layer, direction, mine.contiguous())
            for part, mine in zip(self._parts, rows.split([part.count for part in self._parts]), strict=True)
        ]

        def total() -> torch.Tensor:
            first, *more = (arrival.finish() for arrival in arrivals)
            for one in more:
                first = first.add_(one)
            return first

        return Arrival(total)


def source_inside(
    view: WorkerView, group: dist.ProcessGroup | None = None, *, device: torch.device | str = "cpu", machines: int = 1
) -> ExactSource | None:
    """The rows of the other trainers of a server; None for a server with one trainer. group: the server's trainers;
    None: the view is that of the only trainer. machines: of the server, which only says which bytes have crossed.
    Raises ConfigError: the view is not that of this trainer in this group."""
    members = 1 if group is None else dist.get_world_size(group)
    place = 0 if group is None else dist.get_rank(group)
    if (view.trainers, view.trainer) != (members, place):
        raise ConfigError(
            f"the view is that of trainer {view.trainer} of {view.trainers}, the group has this as {place} of {members}"
        )
    if group is None or members == 1:
        return None
    machine = np.arange(members) * machines // members
    elsewhere: list[bool] = (machine != machine[place]).tolist()
    return ExactSource(view.lists, len(view.own), group, device=device, elsewhere=elsewhere)
