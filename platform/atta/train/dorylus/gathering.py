"""What a trainer gathers: its vertices in intervals, the matrix of each, and the rows that travel between trainers.

In every layer a trainer multiplies a sparse matrix with the rows that the layer reads. A worker makes rows of the next
layer from these sums, of one interval at a time (Dorylus, section 3). For gcn they are sums with the weights of
``GCNConv``; for sage the mean of the neighbours and the own row; for gat the rows of all vertices that an interval reads,
its own first, and the worker gets the edges too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from atta.errors import ConfigError
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.halo import ReadRows, broadcast_ids, rows_of
from atta.train.cooperative.source import ExactSource
from atta.train.dorylus.progress import Producer
from atta.train.dorylus.worker import LayerForm, Longs
from atta.train.models import csr_matrix
from atta.train.steps.masks import edge_keys, with_loops

Weights = npt.NDArray[np.float64]
Lists = Mapping[Producer, Longs]
"""Rows by reader and own interval, or places by interval of another trainer."""


class Entries(NamedTuple):
    """Entries of a sparse matrix: ``rows``, ``columns`` int64 [e], ``values`` float64 [e]."""

    rows: Longs
    columns: Longs
    values: Weights


@dataclass(frozen=True)
class IntervalPlan:
    """An interval: the own ``rows`` int64 [n] of the trainer that are its vertices, ascending, and ``sums`` int64 [t],
    its rows of the gather's result. Layers with an edge task get ``edges`` int64 [2, e], places in ``sums`` and in
    ``rows``, and ``edge_keys`` int64 [e], what masks of these edges are made from."""

    rows: Longs
    sums: Longs
    edge_task: Mapping[str, Longs] = field(default_factory=dict)


@dataclass(frozen=True)
class GatherPlan:
    """A trainer's matrix for gathering, [sums, rows read], and the trainer that each of its sums is for."""

    entries: Entries
    intervals: list[IntervalPlan]
    sums: int


def forms_of(model: torch.nn.Module) -> list[LayerForm]:
    """The layers of a model of ``whole_model``. Raises ConfigError: the model has no split form."""
    convs = list(cast(Any, getattr(model, "convs", ())))
    known = {GCNConv: "gcn", SAGEConv: "sage", GATConv: "gat"}
    if not convs or sum(p.numel() for conv in convs for p in conv.parameters()) != sum(
        p.numel() for p in model.parameters()
    ):
        raise ConfigError(f"{type(model).__name__} cannot be split into gather and apply; take gcn, sage or gat")
    found, last = [], len(convs) - 1
    for number, conv in enumerate(convs):
        kind = known.get(type(conv))
        if kind is None or not _usual(conv):
            raise ConfigError(f"{type(conv).__name__} with these options cannot be split into gather and apply")
        heads, concat = (conv.heads, conv.concat) if kind == "gat" else (1, True)
        weights = tuple((name, tuple(weight.shape)) for name, weight in conv.named_parameters())
        dropped = float(cast(Any, model).dropout.p)
        found.append(LayerForm(kind, weights, number, last=number == last, dropout=dropped, heads=heads, concat=concat))
    return found


def _usual(conv: Any) -> bool:
    if type(conv) is GCNConv:
        return bool(conv.normalize and conv.add_self_loops and not conv.improved and conv.bias is not None)
    if type(conv) is SAGEConv:
        return bool(conv.aggr == "mean" and not conv.normalize and not conv.project and conv.root_weight)
    return bool(conv.add_self_loops and conv.edge_dim is None and conv.bias is not None)


def gather_plan(kind: str, view: WorkerView, intervals: Sequence[Longs]) -> GatherPlan:
    """What a trainer gathers for layers of a ``kind``; ``intervals``: the own rows of each."""
    return _PLANS[kind](view, intervals)


def _of_gcn(view: WorkerView, intervals: Sequence[Longs]) -> GatherPlan:
    own, scale = len(view.own), 1 / np.sqrt(view.in_degrees + 1.0)
    source, target = with_loops(view.edge_index, own)
    return GatherPlan(
        Entries(target, source, scale[source] * scale[target]), [IntervalPlan(rows, rows) for rows in intervals], own
    )


def _of_sage(view: WorkerView, intervals: Sequence[Longs]) -> GatherPlan:
    own = len(view.own)
    source, target = view.edge_index
    counts = np.bincount(target, minlength=own).astype(np.float64)
    loops = np.arange(own)
    entries = Entries(
        np.concatenate([target, own + loops]),
        np.concatenate([source, loops]),
        np.concatenate([1 / counts[target], np.ones(own)]),
    )
    return GatherPlan(entries, [IntervalPlan(rows, np.concatenate([rows, own + rows])) for rows in intervals], 2 * own)


def _of_gat(view: WorkerView, intervals: Sequence[Longs]) -> GatherPlan:
    own = len(view.own)
    edges = with_loops(view.edge_index, own)
    keys = edge_keys(view.global_ids, edges)
    member = np.empty(own, np.int64)
    for number, rows in enumerate(intervals):
        member[rows] = number
    order = np.argsort(member[edges[1]], kind="stable")
    ends = np.cumsum(np.bincount(member[edges[1]], minlength=len(intervals)))
    plans, columns, first = [], [], 0
    for number, rows in enumerate(intervals):
        mine = order[ends[number - 1] if number else 0 : ends[number]]
        source, target = edges[:, mine]
        place = np.full(view.rows, -1, np.int64)
        place[rows] = np.arange(len(rows))
        others = np.unique(source[place[source] < 0])
        place[others] = len(rows) + np.arange(len(others))
        columns.append(np.concatenate([rows, others]))
        sums = first + np.arange(len(columns[-1]))
        ends_here = np.stack([place[source], place[target]])
        plans.append(IntervalPlan(rows, sums, {"edges": ends_here, "edge_keys": keys[mine]}))
        first += len(sums)
    return GatherPlan(Entries(np.arange(first), np.concatenate(columns), np.ones(first)), plans, first)


_PLANS = {"gcn": _of_gcn, "sage": _of_sage, "gat": _of_gat}


def interval_rows(edge_index: Longs, vertices: int, intervals: int) -> list[Longs]:
    """The vertices of each interval, int64, ascending.

    Intervals differ by at most one vertex, and their numbers of edges by at most the largest degree: vertices are dealt by
    falling degree, and the direction of dealing turns after each round (Dorylus, section 4).

    edge_index: int64 [2, e], sources and targets; ends from ``vertices`` on are of other trainers. They count for the
    end that is here. Raises ConfigError: there are more intervals than vertices, or none of either."""
    if intervals < 1:
        raise ConfigError(f"intervals={intervals}: must be at least 1")
    if not vertices:
        raise ConfigError("a partition has no vertices, so nothing to divide into intervals: take fewer partitions")
    if intervals > vertices:
        raise ConfigError(f"intervals={intervals}: a trainer has only {vertices} vertices; take fewer intervals")
    source, target = edge_index
    between = source != target
    ends = np.concatenate([source[between], target[between]])
    order = np.argsort(-np.bincount(ends[ends < vertices], minlength=vertices), kind="stable")
    rounds, place = np.divmod(np.arange(vertices), intervals)
    dealt = np.empty(vertices, np.int64)
    dealt[order] = np.where(rounds % 2 == 0, place, intervals - 1 - place)
    by_interval = np.argsort(dealt, kind="stable")
    return np.split(by_interval, np.cumsum(np.bincount(dealt, minlength=intervals))[:-1])


@dataclass(frozen=True)
class Travels:
    """The rows that travel between trainers. Both ends order the rows of an interval alike, so no message names a row.

    Attributes:
        rows_to: own rows that another trainer reads, int64, by (rank, own interval).
        rows_from: places among the rows read here, int64, by (rank, interval there).
        sums_to, sums_from: the same of own sums and others', whose gradients are read.
        entries: of the transposed matrix: gradients of others' ``sums`` sums that reach own rows.
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
    return gathers, _by_interval(back, [part.rows for part in plan.intervals], own, plan.sums + travels.sums, dtype)


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


def meet_intervals(found: ReadRows, plan: GatherPlan, rank: int, world: int) -> Travels:
    """Find out what travels; all ranks call this. ``found``: as ``meet`` has made it. A trainer tells all others the
    entries of its matrix whose columns are theirs: as many numbers as cut edges. They keep those that concern them."""
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


def _sums_that_travel(found: ReadRows, plan: GatherPlan, rank: int, world: int) -> tuple[Lists, Lists, Entries, int]:
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
            broadcast_ids(array if mine else None, other, cpu)
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
    found = np.empty(count, np.int64)
    for number, members in enumerate(groups):
        found[members] = number
    return found


def _grouped(rank: int, intervals: Longs, values: Longs) -> dict[Producer, Longs]:
    return {(rank, int(number)): values[intervals == number] for number in np.unique(intervals)}
