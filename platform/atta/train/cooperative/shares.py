"""A server's first trainer divides the extracted subgraph into a share for each trainer, and sends the others theirs.

A share is sent as a header and then the bytes of each array. The header is JSON, after its length, and names the arrays
with their types and shapes. Nothing is pickled, and the receiver checks the header before it allocates memory. The
first trainer holds one share of another trainer at a time ("fetch then split").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from atta.errors import RemoteError
from atta.samplers.local.server import ServerGraph
from atta.train.cooperative.graph import Longs, TrainingGraph, WorkerView, worker_view
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.split import split_vertices
from atta.train.tasks import LearningTask
from atta.train.tasks.vertices import CLASSES

Arrays = Mapping[str, npt.NDArray[Any]]

_SPLIT = "split/"
_NUMBERS = ("trainer", "interior")
_ROWS = ("features", "halo_features")
_DIMENSIONS = (
    {f.name: 1 for f in fields(WorkerView)} | dict.fromkeys(_NUMBERS, 0) | {"edge_index": 2} | dict.fromkeys(_ROWS, 2)
)
_ROWS_OF_NUMBERS = 2
_LONGEST_HEADER = 1 << 20
_WRONG = "sent something that is no share; do all machines have the same version of Atta?"


@dataclass(frozen=True)
class TrainerShare:
    """One trainer's share of a server's subgraph, or of a co-batch of it.

    Attributes:
        view: its rows, edges, features and labels.
        splits: own rows by split, int64, ascending. Only inner vertices are in it, so each vertex is in one share of
            one server.
    """

    view: WorkerView
    splits: Mapping[str, Longs]


def divide(
    found: ServerGraph,
    trainers: int,
    machines: int = 1,
    *,
    seed: int = 0,
    tries: int = 3,
    halo: bool = False,
    task: LearningTask = CLASSES,
) -> Iterator[TrainerShare]:
    """Yield the share of each trainer (GraNNDis section 4.4), with ``x`` in single precision and the loss on ``train``.

    The same arguments give the same shares. ``machines``, ``seed``, ``tries``: as for ``split_vertices``. ``halo``: the
    trainers compute the inner vertices only, and all others are HALO. ``task``: what table ``y`` holds.
    Raises the errors of ``split_vertices`` and ``TrainingGraph.of``.
    """
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
        yield TrainerShare(
            view, {name: np.flatnonzero((mask & found.inner)[view.own]) for name, mask in found.splits.items()}
        )


def first_vertices(graph: TrainingGraph, count: int) -> TrainingGraph:
    """The subgraph induced on the vertices 0 to ``count`` - 1."""
    if count == len(graph):
        return graph
    arrays = {f.name: getattr(graph, f.name)[:count] for f in fields(graph) if f.name != "edges"}
    return TrainingGraph(edges=graph.edges[:, (graph.edges < count).all(axis=0)], **arrays)


def arrays_of(share: TrainerShare) -> Arrays:
    """The arrays of a share by name, in C order."""
    view = {name: getattr(share.view, name) for name in _DIMENSIONS}
    splits = {_SPLIT + name: rows for name, rows in share.splits.items()}
    return {name: np.asarray(values, order="C") for name, values in (view | splits).items()}


def share_of(arrays: Arrays) -> TrainerShare:
    """The inverse of ``arrays_of``."""
    view: dict[str, Any] = {name: arrays[name] for name in _DIMENSIONS}
    view |= {name: int(view[name]) for name in _NUMBERS}
    return TrainerShare(
        WorkerView(**view), {n.removeprefix(_SPLIT): a for n, a in arrays.items() if n.startswith(_SPLIT)}
    )


def header_of(arrays: Arrays) -> bytes:
    """Names, types and shapes of the arrays in their order, as JSON."""
    return json.dumps([[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]).encode()


def room_for(header: bytes, peer: str) -> Arrays:
    """Allocate the arrays that a header names, to receive a share into.

    ``peer``: who sent it, for errors.

    Raises:
        RemoteError: the header is not JSON, or its arrays are not those of a share: names, types or dimensions differ.
    """
    try:
        entries = [(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in json.loads(header)]
        names = [name for name, _, _ in entries]
        right = len(set(names)) == len(names) and names[: len(_DIMENSIONS)] == list(_DIMENSIONS)
        if right and all(_fits(*entry) for entry in entries):
            return {name: np.empty(shape, dtype) for name, dtype, shape in entries}
    except (ValueError, TypeError, AttributeError, RecursionError, SyntaxError):
        pass
    raise RemoteError(peer, _WRONG)


def _fits(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if name not in _DIMENSIONS and not name.startswith(_SPLIT):
        return False
    types = ("<f4", "<f8") if name in _ROWS else ("<i8",)
    whole = all(type(size) is int and size >= 0 for size in shape)
    if name == "labels" and dtype.str == "<f4":  # rows of numbers instead of classes
        return whole and len(shape) == _ROWS_OF_NUMBERS
    return whole and dtype.str in types and len(shape) == _DIMENSIONS.get(name, 1)


class Handover:
    """Sends shares from the first trainer of a server to the others. All of them must call it the same number of times.

    It may work in another thread than training, for its messages have their own process group,
    ``ServerGroups.handover``.
    """

    def __init__(self, groups: ServerGroups) -> None:
        self._place, self._group = groups.place, groups.handover

    def give(self, shares: Iterable[TrainerShare]) -> None:
        """As the first trainer, send the shares of the others; a share is sent before the next one is made."""
        for trainer, share in enumerate(shares, 1):
            arrays = arrays_of(share)
            header = np.frombuffer(bytearray(header_of(arrays)), np.uint8)
            for message in (np.array([len(header)]), header, *arrays.values()):
                if message.size:  # an empty array takes no message
                    dist.send(_bytes(message), self._place.leader + trainer, group=self._group)

    def take(self) -> TrainerShare:
        """As another trainer, wait for its share.

        Raises:
            RemoteError: the message is not a share.
        """
        peer = f"trainer {self._place.leader}"
        length = np.zeros(1, np.int64)
        self._receive(length)
        if not 0 < length[0] <= _LONGEST_HEADER:
            raise RemoteError(peer, _WRONG)
        header = np.empty(length[0], np.uint8)
        self._receive(header)
        arrays = room_for(header.tobytes(), peer)
        for array in arrays.values():
            if array.size:
                self._receive(array)
        return share_of(arrays)

    def _receive(self, into: npt.NDArray[Any]) -> None:
        dist.recv(_bytes(into), self._place.leader, group=self._group)


def _bytes(array: npt.NDArray[Any]) -> torch.Tensor:
    """The memory of an array in C order."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
