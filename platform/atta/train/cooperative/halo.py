"""Trainers of different servers agree who sends whom which rows, once before the first epoch: then no message names a vertex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from atta.errors import ConfigError
from atta.train.cooperative.exchange import TrainerBatch
from atta.train.cooperative.graph import Longs, RowLists, WorkerView
from atta.train.cooperative.groups import Place, ServerGroups
from atta.train.cooperative.source import ExactSource

_UNKNOWN = -1


@dataclass(frozen=True)
class ReadRows:
    """What a trainer gets from others, by rank, and the part of it that it reads.

    Attributes:
        view: its HALO rows are in the order of the trainers that compute them.
        elsewhere: for each rank whether it is on another server.
        places: int64 [r], the place of each row that is read among those that are received, all different.
    """

    view: WorkerView
    lists: RowLists
    elsewhere: Sequence[bool]
    places: Longs

    @property
    def own(self) -> int:
        """Number of rows that the trainer computes."""
        return len(self.view.own)

    @property
    def received(self) -> int:
        """Number of rows that come from others."""
        return int(self.lists.receive_counts.sum())

    @property
    def by_reader(self) -> list[Longs]:
        """Own rows that each rank gets, int64."""
        return _by_rank(self.lists.send_rows, self.lists.send_counts)


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
    rows = np.arange(view.rows)
    rows[view.rows - len(order) :] = rows[view.rows - len(order) :][order]
    source, target = view.edge_index
    return replace(
        view,
        halo=view.halo[order],
        halo_features=view.halo_features[order],
        edge_index=np.stack([np.argsort(rows)[source], target]),
        global_ids=view.global_ids[rows],
        in_degrees=view.in_degrees[rows],
    )


def meet(view: WorkerView, place: Place, device: torch.device) -> ReadRows:
    """Find out which rank computes each HALO row of ``view``; all ranks call this. In-degrees of HALO vertices come
    from the trainers that compute them: a server does not see the self-loops of vertices that are not its own. Raises
    ConfigError: a HALO vertex is in no other server."""
    own = view.global_ids[: len(view.own)]
    halo = view.global_ids[view.rows - len(view.halo) :]
    mine: Longs = np.empty(0, np.int64)
    sends, elsewhere = [], place.elsewhere
    for rank in range(place.world_size):
        asked = broadcast_ids(halo if rank == place.rank else None, rank, device)
        rows: Longs = np.full(len(asked), _UNKNOWN, np.int64)
        if elsewhere[rank]:
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
    known = view.rows - len(halo)
    source, degrees = _exact_source(lists, len(own), device), torch.from_numpy(view.in_degrees[: len(own)]).to(device)
    theirs: npt.NDArray[np.int64] = source.start(0, "forward", degrees).finish().cpu().numpy()
    found = replace(found, in_degrees=np.concatenate([view.in_degrees[:known], theirs]))
    return ReadRows(found, lists, elsewhere, np.arange(len(halo)))


def broadcast_ids(ids: Longs | None, rank: int, device: torch.device) -> Longs:
    """What ``rank`` tells everybody, int64; ``ids`` are given there only. All ranks call this."""
    count = torch.tensor(0 if ids is None else len(ids), dtype=torch.int64, device=device)
    dist.broadcast(count, rank)
    found = torch.empty(int(count), dtype=torch.int64) if ids is None else torch.from_numpy(ids)
    found = found.to(device)
    if len(found):
        dist.broadcast(found, rank)
    return found.cpu().numpy()


def broadcast_bytes(data: bytes, rank: int, device: torch.device) -> bytes:
    """The bytes that ``rank`` gives; all ranks call this. An object would be unpickled, which runs what the sender wants."""
    mine = np.frombuffer(data, np.uint8).astype(np.int64) if dist.get_rank() == rank else None
    return broadcast_ids(mine, rank, device).astype(np.uint8).tobytes()


def rows_of_trainers(found: ReadRows, place: Place) -> ReadRows:
    """Rows of the other trainers of the server, then HALO rows."""
    view, here = found.view, place.members(place.server)
    sends, receives = found.lists.send_counts.copy(), found.lists.receive_counts.copy()
    sends[here], receives[here] = view.send_counts, view.receive_counts
    server = slice(here[0], here[-1] + 1)
    pieces = found.by_reader
    pieces[server] = _by_rank(view.send_rows, view.send_counts)
    places = _by_rank(np.arange(receives.sum()), receives)
    inside, outside = places[server], places[: here[0]] + places[here[-1] + 1 :]
    lists = RowLists(np.concatenate(pieces), sends, receives)
    return replace(found, lists=lists, places=np.concatenate([*inside, *outside]))


def all_rows(found: ReadRows, place: Place, device: torch.device, *, trainers: bool) -> ReadRows:
    """All rows of all other servers, or with ``trainers`` of all other trainers; all ranks call this. Each trainer then
    has a copy of every row, as in CAGNET and SANCUS, and reads some of them."""
    view, ranks = found.view, range(place.world_size)
    own = view.global_ids[: len(view.own)]
    read = view.global_ids[len(view.own) :] if trainers else view.global_ids[view.rows - len(view.halo) :]
    others = [rank != place.rank for rank in ranks] if trainers else place.elsewhere
    heard = [broadcast_ids(own if rank == place.rank else None, rank, device) for rank in ranks]
    ids = [of_rank if other else of_rank[:0] for of_rank, other in zip(heard, others, strict=True)]
    receives = np.array([len(of_rank) for of_rank in ids], np.int64)
    sends = np.where(others, len(own), 0).astype(np.int64)
    lists = RowLists(np.tile(np.arange(len(own)), sum(others)), sends, receives)
    return replace(found, lists=lists, places=rows_of(np.concatenate(ids), read))


def exact_batch(found: ReadRows, groups: ServerGroups, device: torch.device) -> TrainerBatch:
    """The tensors of a trainer's view, with a source of rows of the present step; ``found``: by ``meet``."""
    across = _exact_source(found.lists, found.own, device, found.elsewhere)
    return TrainerBatch.of(found.view, groups.inside, device=device, machines=groups.place.machines, across=across)


def _exact_source(lists: RowLists, own: int, device: torch.device, elsewhere: Sequence[bool] = ()) -> ExactSource:
    world = dist.group.WORLD
    assert world is not None
    return ExactSource(lists, own, world, device=device, elsewhere=elsewhere)


def _by_rank(rows: Longs, counts: Longs) -> list[Longs]:
    return np.split(rows, np.cumsum(counts)[:-1])
