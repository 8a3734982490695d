"""Matrices and lists of one trainer: what each interval gathers, and which rows travel to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from atta.train.cooperative.halo import HaloRows, rows_of
from atta.train.cooperative.halo import broadcast_ids as told
from atta.train.cooperative.source import ExactSource
from atta.train.models.matrix import csr_matrix
from atta.train.steps.pipeline.decisions.progress import Producer
from atta.train.steps.pipeline.layers import Longs
from atta.train.steps.pipeline.split import Entries, GatherPlan

__all__ = ["Lists", "Travels", "alone", "matrices", "meet_intervals"]

Lists = Mapping[Producer, Longs]
"""Rows by reader and own interval, or places by interval of another trainer."""


@dataclass(frozen=True)
class Travels:
    """The rows that travel between trainers.

    Both ends order the rows of an interval alike, so no message names a row.

    Attributes:
        rows_to: own rows that another trainer reads, int64, by (rank, own interval).
        rows_from: places among the rows read here, int64, by (rank, interval there).
        sums_to: own sums whose gradients another trainer reads, by (rank, own interval).
        sums_from: places among the gradients of sums that are read here, by (rank, interval there).
        entries: of the transposed matrix: gradients of others' sums that reach own rows.
        sums: how many sums of others these are.
    """

    rows_to: Lists
    rows_from: Lists
    sums_to: Lists
    sums_from: Lists
    entries: Entries
    sums: int


def alone() -> Travels:
    """Nothing travels, because there is one trainer."""
    none = np.empty(0, np.int64)
    return Travels({}, {}, {}, {}, Entries(none, none, np.empty(0)), 0)


def matrices(
    plan: GatherPlan, travels: Travels, *, own: int, read: int, dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """For each interval: the matrix [its sums, rows read], and the transposed one [its rows, all sums read]."""
    there, entries = travels.entries, plan.entries
    mine = entries.columns < own
    back = Entries(
        np.concatenate([entries.columns[mine], there.rows]),
        np.concatenate([entries.rows[mine], plan.sums + there.columns]),
        np.concatenate([entries.values[mine], there.values]),
    )
    gathers = _by_interval(entries, [part.sums for part in plan.intervals], plan.sums, read, dtype)
    width = plan.sums + travels.sums
    return gathers, _by_interval(back, [part.rows for part in plan.intervals], own, width, dtype)


def _by_interval(
    entries: Entries, rows: Sequence[Longs], height: int, width: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    order = np.lexsort((entries.columns, entries.rows))
    columns, values = entries.columns[order], entries.values[order]
    starts = np.concatenate([[0], np.cumsum(np.bincount(entries.rows, minlength=height))])
    found = []
    for mine in rows:
        counts = starts[mine + 1] - starts[mine]
        ends = np.cumsum(counts)
        chosen = np.arange(int(counts.sum())) + np.repeat(starts[mine] - (ends - counts), counts)
        found.append(
            csr_matrix(
                torch.from_numpy(np.concatenate([[0], ends])),
                torch.from_numpy(columns[chosen]),
                torch.from_numpy(values[chosen]).to(dtype),
                (len(mine), width),
            )
        )
    return found


def meet_intervals(found: HaloRows, plan: GatherPlan, rank: int, world: int) -> Travels:
    """Find out what travels; all ranks call this.

    ``found``: as ``meet`` has made it. A trainer tells all others the entries of its matrix whose columns are theirs:
    as many numbers as cut edges. They keep those that concern them.
    """
    own, cpu = len(found.view.own), torch.device("cpu")
    member = _members([part.rows for part in plan.intervals], own)
    first = found.view.rows - len(found.view.halo)
    group = dist.group.WORLD
    assert group is not None
    source = ExactSource(found.lists, own, group, device=cpu)
    intervals = source.start(0, "forward", torch.from_numpy(member)).finish().numpy()
    rows_to: dict[Producer, Longs] = {}
    rows_from: dict[Producer, Longs] = {}
    sent = np.split(found.lists.send_rows, np.cumsum(found.lists.send_counts)[:-1])
    bounds = np.concatenate([[0], np.cumsum(found.lists.receive_counts)])
    for other in range(world):
        rows_to |= _grouped(other, member[sent[other]], sent[other])
        places = np.arange(bounds[other], bounds[other + 1])
        rows_from |= _grouped(other, intervals[places], first + places)
    sums_to, sums_from, entries, sums = _sums_that_travel(found, plan, rank, world)
    return Travels(rows_to, rows_from, sums_to, sums_from, entries, sums)


def _sums_that_travel(found: HaloRows, plan: GatherPlan, rank: int, world: int) -> tuple[Lists, Lists, Entries, int]:
    """The last four of ``Travels``."""
    own, cpu, entries = len(found.view.own), torch.device("cpu"), plan.entries
    ids, first = found.view.global_ids, found.view.rows - len(found.view.halo)
    of_sum = _members([part.sums for part in plan.intervals], plan.sums)
    owner = np.repeat(np.arange(world), found.lists.receive_counts)
    cut = entries.columns >= own
    rows, columns, values = entries.rows[cut], entries.columns[cut], entries.values[cut]
    sums_to: dict[Producer, Longs] = {}
    sums_from: dict[Producer, Longs] = {}
    parts, before = [], 0
    for other in range(world):
        mine = other == rank
        if not mine:
            read = np.unique(rows[owner[columns - first] == other])
            sums_to |= _grouped(other, of_sum[read], read)
        heard = [
            told(array if mine else None, other, cpu)
            for array in (rows, of_sum[rows], ids[columns], values.view(np.int64))
        ]
        if mine:
            continue
        there = rows_of(ids[:own], heard[2])
        known = there >= 0
        sums, place = np.unique(heard[0][known], return_inverse=True)
        members = np.empty(len(sums), np.int64)
        members[place] = heard[1][known]
        sums_from |= _grouped(other, members, plan.sums + before + np.arange(len(sums)))
        parts.append(Entries(there[known], before + place, heard[3][known].view(np.float64)))
        before += len(sums)
    both = Entries(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))) if parts else alone().entries
    return sums_to, sums_from, both, before


def _members(groups: Sequence[Longs], count: int) -> Longs:
    """Which group each number is in."""
    found = np.empty(count, np.int64)
    for number, members in enumerate(groups):
        found[members] = number
    return found


def _grouped(rank: int, intervals: Longs, values: Longs) -> dict[Producer, Longs]:
    """``values`` by interval, in their order."""
    return {(rank, int(number)): values[intervals == number] for number in np.unique(intervals)}
