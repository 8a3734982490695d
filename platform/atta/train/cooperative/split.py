"""Divides the vertices of a server among its trainers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.partition.cutting.balance import capacities
from atta.partition.methods.metis import metis_owners
from atta.train.cooperative.graph import Longs, TrainingGraph

TINY = 16
"""Vertices per trainer below which METIS is not used: its results for very small graphs depend on chance."""

_SLACK = np.array([0.03, 0.08])  # vertices, in-edges; a hub is hard to place
_PASSES = 3
_AMONG_MACHINES = 0.75  # share of the slack. Much of it goes to the split among machines, where a cut edge costs most.

Owners = npt.NDArray[np.int32]
Rows = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]
"""Starts of the rows, and neighbours along edges in both directions."""


def split_vertices(
    graph: TrainingGraph,
    trainers: int,
    machines: int = 1,
    *,
    seed: int = 0,
    tries: int = 3,
    in_edges: Longs | None = None,
) -> Owners:
    """Trainer of each vertex, int32 [n] (GraNNDis section 4.4, "fetch then split").

    METIS cuts few edges, with even numbers of vertices and in-edges, which the time for a layer depends on. Then
    vertices move until these numbers are even within 3 and 8 %, or within one vertex per division, or until no move of
    a vertex helps both. METIS cannot balance
    boundaries, because they follow from its result. So it runs ``tries`` times, and the result whose busiest trainer
    exchanges the fewest rows is taken. The same arguments give the same result. A trainer may get no vertex when there
    are few.

    machines: machines of the server, each with the same number of consecutive trainers. Vertices are divided among
    machines first, then among the trainers of each. A split that treats all trainers alike is taken instead if fewer
    rows cross to or from its busiest machine. in_edges: int64 [n], in-edges of each vertex, where the graph lacks some
    that the trainers compute.

    Raises:
        ConfigError: fewer than one trainer, machine or try; trainers that do not divide into machines.
        AttaError: METIS fails.
    """
    if min(trainers, machines, tries) < 1:
        raise ConfigError(f"trainers {trainers}, machines {machines}, tries {tries}: must be at least 1")
    if trainers % machines:
        raise ConfigError(f"{trainers} trainers: cannot be on {machines} machines alike")
    if in_edges is None:
        in_edges = np.bincount(graph.edges[1], minlength=len(graph))
    alike = _split(graph.edges, in_edges, trainers, seed=seed, tries=tries, slack=_SLACK)
    each = trainers // machines
    if machines == 1 or each == 1 or not len(graph):
        return alike
    nested = _split_nested(graph.edges, in_edges, machines, each, seed=seed, tries=tries)
    return min(nested, alike, key=lambda owner: int(boundary_sizes(graph, owner // each, machines).max()))


def boundary_sizes(graph: TrainingGraph, owner: npt.NDArray[np.integer], trainers: int) -> Longs:
    """Rows that each trainer receives and sends before a layer, int64 [trainers]."""
    return _boundary_sizes(graph.edges, owner, trainers)


def _boundary_sizes(edges: Longs, owner: npt.NDArray[np.integer], trainers: int) -> Longs:
    source, target = edges
    n = max(1, len(owner))
    cut = owner[source] != owner[target]
    pairs = np.unique(owner[target[cut]].astype(np.int64) * n + source[cut])
    reader, row = np.divmod(pairs, n)
    sizes: Longs = np.bincount(reader, minlength=trainers) + np.bincount(owner[row], minlength=trainers)
    return sizes


def _split(
    edges: Longs, in_edges: Longs, trainers: int, *, seed: int, tries: int, slack: npt.NDArray[np.float64]
) -> Owners:
    """Divide vertices once. ``in_edges`` [n] also counts edges from vertices outside, which ``edges`` [2, m] lacks."""
    n = len(in_edges)
    if trainers == 1 or not n:
        return np.zeros(n, np.int32)
    rows, weights = _union(edges, in_edges)
    room = _room(weights, trainers, slack)
    if n < TINY * trainers or not len(rows[1]):
        return _even_out(rows, _in_order(n, trainers), weights, room, trainers)
    seeds = range(seed, seed + tries)
    cut = metis_owners(_native.merge_rows(*rows), weights, parts=trainers, seeds=seeds)
    found = [_even_out(rows, owner, weights, room, trainers) for owner in cut]
    return min(found, key=lambda owner: int(_boundary_sizes(edges, owner, trainers).max()))


def _split_nested(edges: Longs, in_edges: Longs, machines: int, each: int, *, seed: int, tries: int) -> Owners:
    """Divide vertices among machines, then among the ``each`` trainers of a machine, then even out all trainers."""
    machine = _split(edges, in_edges, machines, seed=seed, tries=tries, slack=_AMONG_MACHINES * _SLACK)
    owner, rest = machine * np.int32(each), (1 - _AMONG_MACHINES) * _SLACK
    for m in range(machines):
        here = machine == m
        within = (np.cumsum(here) - 1)[edges[:, here[edges].all(axis=0)]]
        owner[here] += _split(within, in_edges[here], each, seed=seed, tries=tries, slack=rest)
    rows, weights = _union(edges, in_edges)
    _native.even_owners(*rows, owner, machines * each, weights.reshape(-1), _room(weights, machines * each, _SLACK))
    return owner


def _union(edges: Longs, in_edges: Longs) -> tuple[Rows, Longs]:
    """Edges in both directions, and the weights [n, constraints] to balance."""
    rows = _native.union_rows([(edges[0], edges[1], 0, 0)], len(in_edges), True)
    weights = np.stack([np.ones(len(in_edges), np.int64), in_edges], axis=1)
    return rows, np.ascontiguousarray(
        weights[:, weights.any(axis=0)]
    )  # METIS refuses a constraint whose weights are all 0


def _room(weights: Longs, trainers: int, slack: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return capacities(weights, trainers, slack[: weights.shape[1]])


def _in_order(vertices: int, trainers: int) -> Owners:
    return (np.arange(vertices, dtype=np.int64) * trainers // vertices).astype(np.int32)


def _even_out(rows: Rows, owner: Owners, weights: Longs, room: npt.NDArray[np.float64], trainers: int) -> Owners:
    _native.even_owners(*rows, owner, trainers, weights.reshape(-1), room)
    for _ in range(_PASSES):
        if not _native.refine_owners(*rows, owner, trainers, weights.reshape(-1), room):
            break
    return owner
