"""Rows of this very step: each trainer sends those that others read, and gets the gradients of these rows back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.exchange.source import Arrival, Direction, Payload, Source
from atta.train.cooperative.views import RowLists, WorkerView
from atta.train.meeting.group import BACKEND

__all__ = ["TRANSPORTS", "ExactSource", "SummedGradients", "source_inside"]

TRANSPORTS = ("auto", "messages", "collective")
_BY_MESSAGES = ("gloo", BACKEND)


class ExactSource(Source):
    """Rows and gradients travel between the trainers of a process group in every step. Both ends know how many."""

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
        self._own, self._group = own, group
        self._sent, self._crossed = Payload(), Payload()
        self._sent_counts: list[int] = lists.send_counts.tolist()
        self._received_counts: list[int] = lists.receive_counts.tolist()
        self._send_rows = torch.from_numpy(np.ascontiguousarray(lists.send_rows)).to(device)
        self._ranks = dist.get_process_group_ranks(group)
        if transport == "auto":
            transport = "messages" if dist.get_backend(group) in _BY_MESSAGES else "collective"
        self._collective = transport == "collective"
        self._elsewhere = elsewhere or [False] * len(self._ranks)

    @property
    def sent(self) -> Payload:
        return self._sent

    @property
    def crossed(self) -> Payload:
        return self._crossed

    def start(self, layer: int, direction: Direction, rows: torch.Tensor) -> Arrival:
        to, back = self._sent_counts, self._received_counts
        if direction == "forward":
            rows = rows.index_select(0, self._send_rows)
        else:
            to, back = back, to
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        self._sent[layer, direction] += len(rows) * row_bytes
        self._crossed[layer, direction] += sum(compress(to, self._elsewhere)) * row_bytes
        under_way = _Transfer(rows, *self._send(rows, to, back))
        return under_way if direction == "forward" else SummedGradients(under_way, self._send_rows, self._own)

    def _send(self, rows: torch.Tensor, to: list[int], back: list[int]) -> tuple[torch.Tensor, list[Any]]:
        """Start sending ``rows``, by receiver; returns the memory that others' rows arrive in, and what to wait for."""
        into = rows.new_empty((sum(back), *rows.shape[1:]))
        if self._collective:
            return into, [dist.all_to_all_single(into, rows, back, to, group=self._group, async_op=True)]
        operations = []
        for rank, out, room in zip(self._ranks, rows.split(to), into.split(back), strict=True):
            # Both ends know the number of rows, so they exchange no message for 0 rows.
            if len(room):
                operations.append(dist.P2POp(dist.irecv, room, rank, self._group))
            if len(out):
                operations.append(dist.P2POp(dist.isend, out, rank, self._group))
        return into, list(dist.batch_isend_irecv(operations)) if operations else []


class _Transfer:
    """Rows under way; holds the rows that are being sent until they have left."""

    def __init__(self, rows: torch.Tensor, into: torch.Tensor, works: list[Any]) -> None:
        self._rows, self._into, self._works = rows, into, works

    def finish(self) -> torch.Tensor:
        for work in self._works:
            work.wait()
        return self._into


class SummedGradients:
    """Gradients of the rows that were sent, under way. They are added up by own row."""

    def __init__(self, arrival: Arrival, send_rows: torch.Tensor, own: int) -> None:
        """``arrival``: of the gradients [s, ...] of the own rows ``send_rows`` int64 [s]; ``own``: number of own rows."""
        self._arrival, self._send_rows, self._own = arrival, send_rows, own

    def finish(self) -> torch.Tensor:
        """Shape: [own, ...]."""
        gradients = self._arrival.finish()
        total = gradients.new_zeros((self._own, *gradients.shape[1:]))
        return total.index_add_(0, self._send_rows, gradients)


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
