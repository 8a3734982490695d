"""Trainers of different servers agree who sends whom which rows.

Each server divides its own vertices, so nobody knows which trainer of another server computes a vertex. Once, before
the first epoch, each trainer in turn tells all others which HALO vertices it reads, and those that compute them say so.
Both ends then have the same lists, and no later message names a vertex.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import atta
from atta.errors import ConfigError
from atta.train.cooperative.graph import Longs, RowLists, WorkerView
from atta.train.cooperative.groups import Place, ServerGroups
from atta.train.cooperative.shares import TrainerShare
from atta.train.cooperative.source import ExactSource
from atta.train.cooperative.step import TrainerBatch
from atta.train.cooperative.subgraphs import ServerData
from atta.train.settings import CooperativeSettings
from atta.train.steps.timing import Stopwatch
from atta.train.tasks import LearningTask

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
        asked = broadcast_ids(halo if rank == place.rank else None, rank, device)
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


def broadcast_ids(ids: Longs | None, rank: int, device: torch.device) -> Longs:
    """What ``rank`` tells everybody, int64; ``ids`` are given there only. All ranks call this."""
    count = torch.tensor(0 if ids is None else len(ids), dtype=torch.int64, device=device)
    dist.broadcast(count, rank)
    found = torch.empty(int(count), dtype=torch.int64) if ids is None else torch.from_numpy(ids)
    found = found.to(device)
    if len(found):
        dist.broadcast(found, rank)
    heard: Longs = found.cpu().numpy()
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
        return _by_rank(self.lists.send_rows, self.lists.send_counts)


def halo_rows(found: HaloRows, place: Place) -> ReadRows:
    """HALO rows, from the trainers of other servers that compute them."""
    return ReadRows(len(found.view.own), found.lists, np.arange(len(found.view.halo)), place.elsewhere)


def rows_of_trainers(found: HaloRows, place: Place) -> ReadRows:
    """Rows of the other trainers of the server, then HALO rows."""
    view, here = found.view, place.members(place.server)
    sends, receives = found.lists.send_counts.copy(), found.lists.receive_counts.copy()
    sends[here], receives[here] = view.send_counts, view.receive_counts
    pieces = _by_rank(found.lists.send_rows, found.lists.send_counts)
    pieces[here[0] : here[-1] + 1] = _by_rank(view.send_rows, view.send_counts)
    places = _by_rank(np.arange(receives.sum()), receives)
    inside, outside = places[here[0] : here[-1] + 1], places[: here[0]] + places[here[-1] + 1 :]
    lists = RowLists(np.concatenate(pieces), sends, receives)
    return ReadRows(len(view.own), lists, np.concatenate([*inside, *outside]), place.elsewhere)


def all_rows(found: HaloRows, place: Place, device: torch.device, *, trainers: bool) -> ReadRows:
    """All rows of all other servers, or with ``trainers`` of all other trainers; all ranks call this.

    Each trainer then has a copy of every row, as in CAGNET and SANCUS, and reads some of them.
    """
    view, ranks = found.view, range(place.world_size)
    own = view.global_ids[: len(view.own)]
    read = view.global_ids[len(view.own) :] if trainers else view.global_ids[view.rows - len(view.halo) :]
    others = [rank != place.rank for rank in ranks] if trainers else place.elsewhere
    heard = [broadcast_ids(own if rank == place.rank else None, rank, device) for rank in ranks]
    ids = [of_rank if other else of_rank[:0] for of_rank, other in zip(heard, others, strict=True)]
    receives = np.array([len(of_rank) for of_rank in ids], np.int64)
    sends = np.where(others, len(own), 0).astype(np.int64)
    lists = RowLists(np.tile(np.arange(len(own)), sum(others)), sends, receives)
    return ReadRows(len(own), lists, rows_of(np.concatenate(ids), read), place.elsewhere)


def _by_rank(rows: Longs, counts: Longs) -> list[Longs]:
    return np.split(rows, np.cumsum(counts)[:-1])


def exact_batch(found: HaloRows, groups: ServerGroups, device: torch.device) -> TrainerBatch:
    """The tensors of a trainer's share, with a source of rows of the present step."""
    view, place, world = found.view, groups.place, dist.group.WORLD
    assert world is not None
    across = ExactSource(found.lists, len(view.own), world, device=device, elsewhere=place.elsewhere)
    return TrainerBatch.of(view, groups.inside, device=device, machines=place.machines, across=across)


def exact_share(
    config: CooperativeSettings, cluster: atta.Cluster, groups: ServerGroups, device: torch.device, task: LearningTask
) -> tuple[TrainerShare, TrainerBatch]:
    """This trainer's share of the whole graph, extracted anew, and its tensors; all ranks call this.

    Raises the errors of ``ServerData.prepare`` and ``meet``.
    """
    once = replace(config, co_batches=1, memory=None)
    watch = Stopwatch(device)
    data = ServerData(once, cluster, groups, device, task, halo=True)
    data.prepare(0, watch, lambda view: 0)  # without memory nobody asks what a step needs
    share = data.whole(watch)
    found = meet(share.view, groups.place, device)
    return TrainerShare(found.view, share.splits), exact_batch(found, groups, device)
