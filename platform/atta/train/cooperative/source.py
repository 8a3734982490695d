"""Where the rows of a layer that a trainer reads but does not compute come from, and where their gradients go.

A layer asks by its number and a direction, and does not know the answer: messages between trainers now, or rows of
earlier epochs from a table. What a source sends is counted by the same keys.
"""

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
from atta.train.meeting.meeting import BACKEND

TRANSPORTS = ("auto", "messages", "collective")
_BY_MESSAGES = ("gloo", BACKEND)

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
        sent: bytes that this trainer has sent for the source so far.
        crossed: the bytes of these that went to other machines.
    """

    sent: Payload
    crossed: Payload

    @abc.abstractmethod
    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        """Start a layer.

        forward: ``rows`` are the trainer's own [o, ...]; remote rows arrive [r, ...]. backward: ``rows`` are gradients
        of the remote rows [r, ...]; what others computed for own rows arrives, added up [o, ...].
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
        transport: str = "auto",
        elsewhere: Sequence[bool] = (),
    ) -> None:
        """Args:
            lists: the rows that this trainer sends to each member of ``group``, and receives from it.
            own: number of rows that this trainer computes.
            group: the trainers.
            device: where the rows are.
            transport: ``collective`` is one all-to-all, ``messages`` one send and one receive per pair of trainers that
                share rows. ``auto`` takes messages with gloo, whose older versions lack uneven all-to-alls, and in
                ``atta.train.meeting``, which has none; the collective otherwise.
            elsewhere: for each member whether it is on another machine; none by default.

        Raises:
            ConfigError: the transport is unknown.
        """
        check_transport(transport)
        self.sent, self.crossed = Payload(), Payload()
        self._own, self._group = own, group
        self._sent_counts: list[int] = lists.send_counts.tolist()
        self._received_counts: list[int] = lists.receive_counts.tolist()
        self._send_rows = torch.from_numpy(np.ascontiguousarray(lists.send_rows)).to(device)
        if transport == "auto":
            transport = "messages" if dist.get_backend(group) in _BY_MESSAGES else "collective"
        self._collective = transport == "collective"
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
    they exchange no message for 0 rows.
    """
    ranks = dist.get_process_group_ranks(group)
    receives = [dist.P2POp(dist.irecv, room, ranks[member], group) for member, room in into.items() if len(room)]
    return receives + [dist.P2POp(dist.isend, rows, ranks[member], group) for member, rows in out.items() if len(rows)]


def summed_gradients(arrival: Arrival, send_rows: torch.Tensor, own: int) -> Arrival:
    """Gradients [s, ...] of the ``own`` rows ``send_rows`` int64 [s], added up by own row: [own, ...]."""

    def total(gradients: torch.Tensor) -> torch.Tensor:
        return gradients.new_zeros((own, *gradients.shape[1:])).index_add_(0, send_rows, gradients)

    return arrival.then(total)


class JoinedSource(Source):
    """Several sources, one after another: each has a part of the remote rows.

    So rows within a server and rows of other servers can come in different ways.
    """

    def __init__(self, parts: Sequence[tuple[Source, int]]) -> None:
        """``parts``: sources, each with the number of its remote rows, in the order of the rows."""
        self._sources = [source for source, _ in parts]
        self._counts = [count for _, count in parts]

    @property
    def sent(self) -> Payload:  # type: ignore[override]
        """The sum over the parts."""
        return sum((source.sent for source in self._sources), Payload())

    @property
    def crossed(self) -> Payload:  # type: ignore[override]
        """The sum over the parts."""
        return sum((source.crossed for source in self._sources), Payload())

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "forward":
            arrivals = [source.start(layer, direction, rows) for source in self._sources]
            return Arrival(lambda: torch.cat([arrival.finish() for arrival in arrivals]))
        parts = zip(self._sources, rows.split(self._counts), strict=True)
        arrivals = [source.start(layer, direction, part.contiguous()) for source, part in parts]

        def total() -> torch.Tensor:
            first, *more = (arrival.finish() for arrival in arrivals)
            for part in more:
                first = first.add_(part)
            return first

        return Arrival(total)


class UnchangedRows(Source):
    """Rows that never change, such as features, are asked for once and kept; all others come from another source."""

    def __init__(self, source: Source, fixed: torch.Tensor, kept: torch.Tensor | None = None) -> None:
        """``fixed``: own rows [o, d] that never change; ``kept``: the remote ones [r, d] if they are there already."""
        self._source, self._fixed, self._kept = source, fixed, kept

    @property
    def sent(self) -> Payload:  # type: ignore[override]
        return self._source.sent

    @property
    def crossed(self) -> Payload:  # type: ignore[override]
        return self._source.crossed

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        if direction == "backward" or rows is not self._fixed or rows.requires_grad:
            return self._source.start(layer, direction, rows)
        kept = self._kept
        return self._source.start(layer, direction, rows).then(self._keep) if kept is None else Arrival(lambda: kept)

    def _keep(self, rows: torch.Tensor) -> torch.Tensor:
        self._kept = rows
        return rows


def source_inside(
    view: WorkerView,
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | str = "cpu",
    transport: str = "auto",
    machines: int = 1,
) -> ExactSource | None:
    """The rows of the other trainers of a server; None for a server with one trainer.

    group: the server's trainers, ``ServerGroups.inside``; None: the view is that of the only trainer. machines: of the
    server, as in ``Place``. It only says which bytes have crossed.

    Raises:
        ConfigError: the view is not that of this trainer in this group, or the transport is unknown.
    """
    check_transport(transport)
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
    return ExactSource(view.lists, len(view.own), group, device=device, transport=transport, elsewhere=elsewhere)


def check_transport(transport: str) -> None:
    """Raise ConfigError for a transport that does not exist."""
    if transport not in TRANSPORTS:
        raise ConfigError(f"transport {transport!r}: must be one of {', '.join(TRANSPORTS)}")
