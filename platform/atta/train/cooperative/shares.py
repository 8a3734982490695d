"""A server's first trainer divides the extracted subgraph into a view for each trainer, and sends the others theirs. A
view is sent as a header and then the bytes of each array. The header is JSON, after its length, and names the arrays
with their types and shapes. Nothing is pickled, and the receiver checks the header before it allocates memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from atta import _native
from atta.errors import ConfigError, RemoteError
from atta.partition.cutting.balance import capacities
from atta.partition.cutting.union import union_rows
from atta.partition.methods.metis import metis_owners
from atta.samplers.local.server import ServerGraph
from atta.train.cooperative.graph import Longs, TrainingGraph, WorkerView, worker_view
from atta.train.cooperative.groups import ServerGroups
from atta.train.tasks import LearningTask
from atta.train.tasks.vertices import CLASSES

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
    """Trainer of each vertex, int32 [n] (GraNNDis section 4.4, "fetch then split"). The same arguments give the same result.

    METIS cuts few edges, with even numbers of vertices and in-edges, which the time for a layer depends on. Then vertices
    move until these are even within 3 and 8 %, or within one vertex per division, or until no move of a vertex helps both.
    METIS cannot balance boundaries. So it runs ``tries`` times, and the result whose busiest trainer exchanges the fewest
    rows is taken. A trainer may get no vertex when there are few.

    machines: of the server, each with the same number of consecutive trainers. Vertices are divided among machines first.
    A split that treats all trainers alike is taken instead if fewer rows cross to or from its busiest machine. in_edges:
    int64 [n], where the graph lacks some that the trainers compute. Raises ConfigError for numbers that make no sense.
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
    return min(nested, alike, key=lambda owner: int(boundary_sizes(graph.edges, owner // each, machines).max()))


def boundary_sizes(edges: Longs, owner: npt.NDArray[np.integer], trainers: int) -> Longs:
    """Rows that each trainer receives and sends before a layer, int64 [trainers]."""
    source, target = edges
    n = max(1, len(owner))
    cut = owner[source] != owner[target]
    pairs = np.unique(owner[target[cut]].astype(np.int64) * n + source[cut])
    reader, row = np.divmod(pairs, n)
    return np.bincount(reader, minlength=trainers) + np.bincount(owner[row], minlength=trainers)


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
        in_order = (np.arange(n, dtype=np.int64) * trainers // n).astype(np.int32)
        return _even_out(rows, in_order, weights, room, trainers)
    cut = metis_owners([*_native.merge_rows(*rows)], weights, parts=trainers, seeds=range(seed, seed + tries))
    found = [_even_out(rows, owner, weights, room, trainers) for owner in cut]
    return min(found, key=lambda owner: int(boundary_sizes(edges, owner, trainers).max()))


def _split_nested(edges: Longs, in_edges: Longs, machines: int, each: int, *, seed: int, tries: int) -> Owners:
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
    rows = union_rows([lambda: (edges[0], edges[1], 0, 0)], len(in_edges), both=True)[:2]
    weights = np.stack([np.ones(len(in_edges), np.int64), in_edges], axis=1)
    # METIS refuses a constraint whose weights are all 0.
    return rows, np.ascontiguousarray(weights[:, weights.any(axis=0)])


def _room(weights: Longs, trainers: int, slack: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return capacities(weights, trainers, slack[: weights.shape[1]])


def _even_out(rows: Rows, owner: Owners, weights: Longs, room: npt.NDArray[np.float64], trainers: int) -> Owners:
    _native.even_owners(*rows, owner, trainers, weights.reshape(-1), room)
    for _ in range(_PASSES):
        if not _native.refine_owners(*rows, owner, trainers, weights.reshape(-1), room):
            break
    return owner


Arrays = Mapping[str, npt.NDArray[Any]]

_SPLIT = "split/"
_ROWS = ("features", "halo_features")
_DIMENSIONS = {f.name: 1 for f in fields(WorkerView) if f.name != "splits"}
_DIMENSIONS |= {"trainer": 0, "interior": 0, "edge_index": 2, **dict.fromkeys(_ROWS, 2)}
_LONGEST_HEADER = 1 << 20
_WRONG = "sent something that is no share; do all machines have the same version of Atta?"


def divide(
    found: ServerGraph,
    trainers: int,
    machines: int = 1,
    *,
    seed: int = 0,
    tries: int = 3,
    halo: bool = False,
    task: LearningTask = CLASSES,
) -> Iterator[WorkerView]:
    """Yield the view of each trainer (GraNNDis section 4.4), with ``x`` in single precision and the loss on ``train``.
    The same arguments give the same views. ``halo``: the trainers compute the inner vertices only, and all others are
    HALO. Others are those of ``split_vertices`` and ``TrainingGraph.of``, whose errors it raises."""
    graph = TrainingGraph.of(found, task=task)
    graph = replace(graph, features=graph.features.astype(np.float32, copy=False))
    owner = np.full(len(graph), -1, np.int32)
    computed = found.num_inner if halo else len(graph)  # inner vertices come first
    in_edges = np.bincount(graph.edges[1], minlength=len(graph))[:computed]
    owner[:computed] = split_vertices(
        first_vertices(graph, computed), trainers, machines, seed=seed, tries=tries, in_edges=in_edges
    )
    for trainer in range(trainers):
        view = worker_view(graph, owner, trainer, trainers)
        members = {name: np.flatnonzero((mask & found.inner)[view.own]) for name, mask in found.splits.items()}
        yield replace(view, splits=members)


def first_vertices(graph: TrainingGraph, count: int) -> TrainingGraph:
    """The subgraph induced on the vertices 0 to ``count`` - 1."""
    if count == len(graph):
        return graph
    arrays = {name: array[:count] for name, array in vars(graph).items() if name != "edges"}
    return TrainingGraph(edges=graph.edges[:, (graph.edges < count).all(axis=0)], **arrays)


def arrays_of(view: WorkerView) -> Arrays:
    """The arrays of a view by name, in C order."""
    given = {name: getattr(view, name) for name in _DIMENSIONS}
    given |= {_SPLIT + name: rows for name, rows in view.splits.items()}
    return {name: np.asarray(values, order="C") for name, values in given.items()}


def header_of(arrays: Arrays) -> bytes:
    """Names, types and shapes of the arrays in their order, as JSON."""
    return json.dumps([[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]).encode()


def room_for(header: bytes, peer: str) -> WorkerView:
    """A view with the arrays that a header of ``peer`` names, to receive them into. Raises RemoteError: it is not JSON,
    or names, types or dimensions are not those of a view."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError, SyntaxError):
        entries = [(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in json.loads(header)]
        names = [name for name, _, _ in entries]
        right = len(set(names)) == len(names) and names[: len(_DIMENSIONS)] == list(_DIMENSIONS)
        if right and all(_fits(*entry) for entry in entries):
            arrays = {name: np.empty(shape, dtype) for name, dtype, shape in entries}
            splits = {name.removeprefix(_SPLIT): arrays.pop(name) for name in names[len(_DIMENSIONS) :]}
            return WorkerView(**arrays, splits=splits)  # type: ignore[arg-type]
    raise RemoteError(peer, _WRONG)


def _fits(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if name not in _DIMENSIONS and not name.startswith(_SPLIT):
        return False
    dimensions, types = _DIMENSIONS.get(name, 1), ("<f4", "<f8") if name in _ROWS else ("<i8",)
    if name == "labels" and dtype.str == "<f4":  # rows of numbers instead of classes
        dimensions, types = 2, ("<f4",)
    whole = all(type(size) is int and size >= 0 for size in shape)
    return whole and dtype.str in types and len(shape) == dimensions


class Handover:
    """Sends views from the first trainer of a server to the others. All of them must call it the same number of times,
    in any thread: its messages have their own process group."""

    def __init__(self, groups: ServerGroups) -> None:
        self._place, self._group = groups.place, groups.handover

    def give(self, views: Iterable[WorkerView]) -> None:
        """As the first trainer, send the views of the others; a view is sent before the next one is made."""
        for trainer, view in enumerate(views, 1):
            arrays = arrays_of(view)
            header = np.frombuffer(bytearray(header_of(arrays)), np.uint8)
            for message in (np.array([len(header)]), header, *arrays.values()):
                if message.size:  # an empty array takes no message
                    dist.send(_bytes(message), self._place.leader + trainer, group=self._group)

    def take(self) -> WorkerView:
        """As another trainer, wait for its view. Raises RemoteError: the message is not a view."""
        peer = f"trainer {self._place.leader}"
        length = np.zeros(1, np.int64)
        self._receive(length)
        if not 0 < length[0] <= _LONGEST_HEADER:
            raise RemoteError(peer, _WRONG)
        header = np.empty(length[0], np.uint8)
        self._receive(header)
        view = room_for(header.tobytes(), peer)
        for array in arrays_of(view).values():
            if array.size:
                self._receive(array)
        return replace(view, trainer=int(view.trainer), interior=int(view.interior))

    def _receive(self, into: npt.NDArray[Any]) -> None:
        dist.recv(_bytes(into), self._place.leader, group=self._group)


def _bytes(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
