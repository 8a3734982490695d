"""Which rows travel between trainers for a source, and where they end up among the rows that a trainer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from atta.train.cooperative.across.meeting import HaloRows, rows_of, told
from atta.train.cooperative.graph import Longs
from atta.train.cooperative.groups import Place
from atta.train.cooperative.views import RowLists

__all__ = ["ReadRows", "all_rows", "halo_rows", "rows_of_trainers"]


@dataclass(frozen=True)
class ReadRows:
    """What a trainer gets from others, by rank, and the part of it that it reads.

    Attributes:
        own: number of rows that the trainer computes.
        lists: by rank of all trainers. ``send_rows`` are own rows.
        places: int64 [r], the place of each row that is read among those that are received, all different.
        elsewhere: for each rank whether it is on another server.
    """

    own: int
    lists: RowLists
    places: Longs
    elsewhere: Sequence[bool]

    @property
    def received(self) -> int:
        """Number of rows that come from others."""
        return int(self.lists.receive_counts.sum())

    @property
    def by_reader(self) -> list[Longs]:
        """Own rows that each rank gets, int64."""
        return np.split(self.lists.send_rows, np.cumsum(self.lists.send_counts)[:-1])


def halo_rows(found: HaloRows, place: Place) -> ReadRows:
    """HALO rows, from the trainers of other servers that compute them."""
    lists = found.lists
    return ReadRows(len(found.view.own), lists, np.arange(len(found.view.halo)), _elsewhere(place))


def rows_of_trainers(found: HaloRows, place: Place) -> ReadRows:
    """Rows of the other trainers of the server, then HALO rows."""
    view, here = found.view, place.members(place.server)
    sends, receives = found.lists.send_counts.copy(), found.lists.receive_counts.copy()
    sends[here], receives[here] = view.send_counts, view.receive_counts
    pieces = _split(found.lists.send_rows, found.lists.send_counts)
    for rank, rows in zip(here, _split(view.send_rows, view.send_counts), strict=True):
        pieces[rank] = rows
    starts = np.cumsum(receives) - receives
    inside = [np.arange(starts[rank], starts[rank] + receives[rank]) for rank in here]
    outside = [
        np.arange(starts[rank], starts[rank] + receives[rank]) for rank in range(place.world_size) if rank not in here
    ]
    lists = RowLists(np.concatenate(pieces), sends, receives)
    return ReadRows(len(view.own), lists, np.concatenate([*inside, *outside]), _elsewhere(place))


def all_rows(found: HaloRows, place: Place, device: torch.device, *, trainers: bool) -> ReadRows:
    """All rows of all other servers, or with ``trainers`` of all other trainers; all ranks call this.

    Each trainer then has a copy of every row, as in CAGNET and SANCUS, and reads some of them.
    """
    view, elsewhere = found.view, _elsewhere(place)
    own = view.global_ids[: len(view.own)]
    read = view.global_ids[len(view.own) :] if trainers else view.global_ids[view.rows - len(view.halo) :]
    ids: list[Longs] = []
    for rank in range(place.world_size):
        heard = told(own if rank == place.rank else None, rank, device)
        gets = rank != place.rank if trainers else elsewhere[rank]
        ids.append(heard if gets else heard[:0])
    receives = np.array([len(of_rank) for of_rank in ids], np.int64)
    gives = [rank != place.rank if trainers else elsewhere[rank] for rank in range(place.world_size)]
    sends = np.where(gives, len(own), 0).astype(np.int64)
    lists = RowLists(np.tile(np.arange(len(own)), int(np.sum(gives))), sends, receives)
    return ReadRows(len(own), lists, rows_of(np.concatenate(ids), read), elsewhere)


def _elsewhere(place: Place) -> list[bool]:
    return [rank // place.trainers != place.server for rank in range(place.world_size)]


def _split(rows: Longs, counts: Longs) -> list[Longs]:
    return np.split(rows, np.cumsum(counts)[:-1])


def agreed(group: dist.ProcessGroup, flag: bool, device: torch.device) -> list[bool]:
    """The flag of every rank, one byte each."""
    flags = torch.zeros(dist.get_world_size(group), dtype=torch.uint8, device=device)
    flags[dist.get_rank(group)] = flag
    dist.all_reduce(flags, group=group)
    return [bool(value) for value in flags.tolist()]
