"""Divides models into what trainers compute, because it reads the graph, and what workers compute without it.

In every layer a trainer *gathers*: it multiplies a sparse matrix with the rows that the layer reads. A worker makes rows of
the next layer from these sums, of one interval at a time (Dorylus, section 3). Three layers have such a form:

- gcn: a sum per vertex, over its neighbours and itself, with the weights of ``GCNConv``;
- sage: two rows per vertex, the mean of its neighbours and its own;
- gat: the rows of all vertices that an interval reads, its own first. The worker gets the edges too, and computes
  attention: this is the edge task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from atta.errors import ConfigError
from atta.train.cooperative.graph import WorkerView
from atta.train.steps.masks import edge_keys
from atta.train.steps.pipeline.layers import LayerForm, Longs

__all__ = ["Entries", "GatherPlan", "IntervalPlan", "forms_of", "gather_plan"]

Weights = npt.NDArray[np.float64]


class Entries(NamedTuple):
    """Entries of a sparse matrix: ``rows``, ``columns`` int64 [e], ``values`` float64 [e]."""

    rows: Longs
    columns: Longs
    values: Weights


@dataclass(frozen=True)
class IntervalPlan:
    """An interval.

    Attributes:
        rows: int64 [n], its vertices: own rows of the trainer, ascending.
        sums: int64 [t], the rows of the gather's result that are its own.
        edges: int64 [2, e], for layers with an edge task: places in ``sums``, and in ``rows``; else None.
        keys: int64 [e], what masks of these edges are made from; else None.
    """

    rows: Longs
    sums: Longs
    edges: Longs | None = None
    keys: Longs | None = None


@dataclass(frozen=True)
class GatherPlan:
    """The matrix with which a trainer gathers, [sums, rows read], and whose sums are whose."""

    entries: Entries
    intervals: list[IntervalPlan]
    sums: int


def forms_of(model: torch.nn.Module) -> list[LayerForm]:
    """The layers of a model of ``whole_model``.

    Raises:
        ConfigError: the model has no split form.
    """
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
    """Whether a layer has the options that ``whole_model`` gives it."""
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
    source, target = view.edge_index[:, view.edge_index[0] != view.edge_index[1]]
    loops = np.arange(own)
    source, target = np.concatenate([source, loops]), np.concatenate([target, loops])
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
    plans = [IntervalPlan(rows, np.concatenate([rows, own + rows])) for rows in intervals]
    return GatherPlan(entries, plans, 2 * own)


def _of_gat(view: WorkerView, intervals: Sequence[Longs]) -> GatherPlan:
    own = len(view.own)
    between = view.edge_index[:, view.edge_index[0] != view.edge_index[1]]
    edges = np.concatenate([between, np.tile(np.arange(own), (2, 1))], axis=1)
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
        plans.append(IntervalPlan(rows, sums, np.stack([place[source], place[target]]), keys[mine]))
        first += len(sums)
    chosen = np.concatenate(columns)
    return GatherPlan(Entries(np.arange(first), chosen, np.ones(first)), plans, first)


_PLANS = {"gcn": _of_gcn, "sage": _of_sage, "gat": _of_gat}
