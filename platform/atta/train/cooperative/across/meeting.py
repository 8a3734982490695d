"""Trainers of different servers agree who sends whom which rows.

Each server divides its own vertices, so nobody knows which trainer of another server computes a vertex. Once, before
the first epoch, each trainer in turn tells all others which HALO vertices it reads, and those that compute them say so.
Both ends then have the same lists, and no later message names a vertex.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.exchange import ExactSource
from atta.train.cooperative.graph import Longs
from atta.train.cooperative.groups import Place
from atta.train.cooperative.views import RowLists, WorkerView

__all__ = ["HaloRows", "by_owner", "meet", "rows_of", "told"]

_UNKNOWN = -1


class HaloRows(NamedTuple):
    """A trainer's view with its HALO rows in order of the trainers that compute them, and what travels for them.

    ``lists`` has an entry per rank.
    """

    view: WorkerView
    lists: RowLists


def rows_of(own: Longs, asked: Longs) -> Longs:
    """The place in ``own`` (different user ids) of each id that is asked for, int64; -1: it is not there."""
    order = np.argsort(own)
    at = np.searchsorted(own, asked, sorter=order)
    rows: Longs = np.full(len(asked), _UNKNOWN, np.int64)
    possible = at < len(own)
    found = order[at[possible]]
    rows[possible] = np.where(own[found] == asked[possible], found, _UNKNOWN)
    return rows


def by_owner(view: WorkerView, owner: Longs) -> WorkerView:
    """The same view with its HALO rows ordered by ``owner`` (int64 [h]); those of one owner keep their order."""
    order = np.argsort(owner, kind="stable")
    first = view.rows - len(view.halo)
    moved = np.arange(view.rows)
    moved[first + order] = first + np.arange(len(order))
    rows = np.concatenate([np.arange(first), first + order])
    source, target = view.edge_index
    return replace(
        view,
        halo=view.halo[order],
        halo_features=view.halo_features[order],
        edge_index=np.stack([moved[source], target]),
        global_ids=view.global_ids[rows],
        in_degrees=view.in_degrees[rows],
    )


def meet(view: WorkerView, place: Place, device: torch.device) -> HaloRows:
    """Find out which rank computes each HALO row of ``view``; all ranks call this.

    In-degrees of HALO vertices come from the trainers that compute them: a server does not see the self-loops of
    vertices that are not its own.

    Raises:
        ConfigError: a HALO vertex is in no other server.
    """
    own = view.global_ids[: len(view.own)]
    halo = view.global_ids[view.rows - len(view.halo) :]
    mine: Longs = np.empty(0, np.int64)
    sends = []
    for rank in range(place.world_size):
        asked = told(halo if rank == place.rank else None, rank, device)
        rows: Longs = np.full(len(asked), _UNKNOWN, np.int64)
        if rank // place.trainers != place.server:
            rows = rows_of(own, asked)
        owner = torch.from_numpy(np.where(rows == _UNKNOWN, _UNKNOWN, place.rank)).to(device)
        dist.all_reduce(owner, op=dist.ReduceOp.MAX)
        if rank == place.rank:
            mine = owner.cpu().numpy()
        sends.append(rows[rows != _UNKNOWN])
    if len(mine) and mine.min() == _UNKNOWN:
        raise ConfigError(
            f"vertex {halo[int(mine.argmin())]}: is read here and in no other server; a server must have one partition"
        )
    lists = RowLists(
        send_rows=np.concatenate(sends),
        send_counts=np.array([len(rows) for rows in sends], np.int64),
        receive_counts=np.bincount(mine, minlength=place.world_size).astype(np.int64),
    )
    found = by_owner(view, mine)
    return HaloRows(replace(found, in_degrees=_degrees(found, lists, device)), lists)


def told(ids: Longs | None, rank: int, device: torch.device) -> Longs:
    """What ``rank`` tells everybody, int64; ``ids`` are given there only. All ranks call this."""
    count = torch.tensor(0 if ids is None else len(ids), dtype=torch.int64, device=device)
    dist.broadcast(count, rank)
    told = (
        torch.empty(int(count), dtype=torch.int64, device=device) if ids is None else torch.from_numpy(ids).to(device)
    )
    if len(told):
        dist.broadcast(told, rank)
    heard: Longs = told.cpu().numpy()
    return heard


def _degrees(view: WorkerView, lists: RowLists, device: torch.device) -> Longs:
    """The view's in-degrees, with those of HALO rows as their owners know them."""
    known = len(view.own) + len(view.remote)
    world = dist.group.WORLD
    assert world is not None
    source = ExactSource(lists, len(view.own), world, device=device)
    own = torch.from_numpy(view.in_degrees[: len(view.own)]).to(device)
    halo: npt.NDArray[np.int64] = source.start(0, "forward", own).finish().cpu().numpy()
    return np.concatenate([view.in_degrees[:known], halo])
