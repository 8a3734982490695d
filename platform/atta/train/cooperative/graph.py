"""What a server computes on in one step, and what each of its trainers computes, reads and sends of it. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError, known_name
from atta.samplers.local.server import ServerGraph as Extracted
from atta.train.tasks import LearningTask
from atta.train.tasks.vertices import CLASSES

Longs = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]
"""A class per vertex, int64 [n], or a row of numbers, float32 [n, outputs]."""


@dataclass(frozen=True)
class TrainingGraph:
    """The subgraph of one server (GraNNDis, shared preloading and cooperative batching, sections 4.2 and 4.4).

    Vertices have the numbers 0 to n-1. They may be the L-hop closure of the server's inner vertices, an expansion-aware
    sample of it, or the closure of one co-batch.

    Attributes:
        global_ids: int64 [n], the vertices' ids in the whole graph.
        edges: int64 [2, m], sources and targets.
        features: float [n, d].
        labels: int64 [n], or float32 [n, outputs]; read only where ``loss_mask`` is set.
        loss_mask: bool [n], the targets: training vertices of this server, all of them inner vertices.
        in_degrees: int64 [n], number of in-edges in the *whole* graph, without self-loops.
        distance: int64 [n], hops to the nearest inner vertex, or target of a co-batch.

    Raises ConfigError: shapes or types do not fit; an edge names a vertex that does not exist; or a target is not an
    inner vertex: its own server counts its loss too.
    """

    global_ids: Longs
    edges: Longs
    features: npt.NDArray[np.floating]
    labels: Labels
    loss_mask: npt.NDArray[np.bool_]
    in_degrees: Longs
    distance: Longs

    def __post_init__(self) -> None:
        n, rows = len(self), self.labels.shape[1:][-1:]
        shapes = {"edges": (2, self.edges.shape[-1]), "features": (n, self.features.shape[-1]), "labels": (n, *rows)}
        kinds = {"features": np.floating, "loss_mask": np.bool_, "labels": np.float32 if rows else np.int64}
        for name, array in vars(self).items():
            shape, kind = shapes.get(name, (n,)), kinds.get(name, np.int64)
            if array.shape != shape:
                raise ConfigError(f"{name}: has shape {array.shape}, expected {shape} for {n} vertices")
            if not np.issubdtype(array.dtype, kind):
                raise ConfigError(f"{name}: has type {array.dtype}, expected {kind.__name__}")
        if self.edges.size and (self.edges.min() < 0 or self.edges.max() >= n):
            raise ConfigError(f"edges: name vertices {self.edges.min()} to {self.edges.max()}, there are {n}")
        if outside := int((self.loss_mask & (self.distance != 0)).sum()):
            raise ConfigError(f"loss_mask: marks {outside} vertices outside the inner set, whose server counts them")

    @classmethod
    def of(cls, found: Extracted, task: LearningTask = CLASSES) -> TrainingGraph:
        """Make it from a result of ``atta.server_subgraph`` or a co-batch of one. Targets are the inner vertices in split
        ``train``. Features ``x`` that are not float32 or float64 become float32. ``task``: what labels ``y`` are. Raises
        UnknownNameError, and ConfigError: features are not rows of numbers, or there is not one label per vertex."""
        for kind, name, there in (
            ("node table", "x", found.tables), ("node table", "y", found.tables), ("split", "train", found.splits)
        ):  # fmt: skip
            known_name(kind, name, there)
        x, y = found.tables["x"], found.tables["y"]
        if x.ndim != 2 or (y.size != found.num_nodes and not task.rows):
            raise ConfigError(f"x has shape {x.shape}, y {y.shape}: expected a row and a label per vertex")
        # The subgraph has all edges between its vertices, self-loops too. Its degrees count them, those of a GCN do
        # not.
        loops = np.bincount(found.col[found.row == found.col], minlength=found.num_nodes)
        return cls(
            global_ids=found.n_id,
            edges=np.stack([found.row, found.col]).astype(np.int64),
            features=x if x.dtype in (np.float32, np.float64) else x.astype(np.float32),
            labels=task.target_array(y),
            loss_mask=found.splits["train"] & found.inner,
            in_degrees=found.degree - loops,
            distance=found.hop.astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.global_ids)

    @property
    def num_targets(self) -> int:
        """Vertices that the loss is taken of."""
        return int(self.loss_mask.sum())

    def exact_layers(self) -> int | None:
        """Most layers of a model whose gradient is still that of the whole graph; None: any number. A layer's output at
        a vertex needs all in-edges of the vertex. L layers need this for vertices up to L-1 hops away. So the answer is
        the distance of the nearest vertex that lacks an in-edge."""
        source, target = self.edges
        present = np.bincount(target[source != target], minlength=len(self))
        short = self.distance[present < self.in_degrees]
        return int(short.min()) if len(short) else None


@dataclass(frozen=True)
class RowLists:
    """Rows that a trainer sends to each member of a group, and receives from it: ``send_rows`` int64 [s], own rows by
    reader, and ``send_counts``, ``receive_counts`` int64 [members]."""

    send_rows: Longs
    send_counts: Longs
    receive_counts: Longs


@dataclass(frozen=True)
class WorkerView:
    """A trainer's share of its server's subgraph (GraNNDis section 4.4).

    Its rows are its own vertices, then those that it reads and does not compute: *remote* ones, of other trainers of
    the server, and *HALO* ones, which other servers compute. *Interior* vertices are own vertices that read only own
    rows: the first ``interior`` ones. The owner of an edge's target has the edge.

    Attributes:
        own, remote, halo: int64 [o], [r] and [h], server-local numbers; remote ones by owner, ascending within each.
        receive_counts, send_counts: int64 [N], rows received from each trainer of the server, and sent.
        send_rows: int64 [s], own rows that others read, by reader, in the order of the reader's ``remote``.
        edge_index: int64 [2, e], rows of sources (below o + r + h) and of targets (below o), targets ascending.
        in_degrees: int64 [o + r + h], as in ``TrainingGraph``.
        features, halo_features: float [o, d] and [h, d].
        labels: int64 [o], or float32 [o, outputs].
        targets: int64 [t], own rows that the loss is taken of, ascending.
        global_ids: int64 [o + r + h].
        splits: own rows by split, int64, ascending: inner vertices only, so each is in one view of one server.
    """

    trainer: int
    own: Longs
    interior: int
    remote: Longs
    halo: Longs
    receive_counts: Longs
    send_rows: Longs
    send_counts: Longs
    edge_index: Longs
    in_degrees: Longs
    features: npt.NDArray[np.floating]
    halo_features: npt.NDArray[np.floating]
    labels: Labels
    targets: Longs
    global_ids: Longs
    splits: Mapping[str, Longs] = field(default_factory=dict)

    @property
    def trainers(self) -> int:
        """Trainers of the server."""
        return len(self.receive_counts)

    @property
    def rows(self) -> int:
        """Rows that this trainer computes or reads: o + r + h."""
        return len(self.own) + len(self.remote) + len(self.halo)

    @property
    def lists(self) -> RowLists:
        """What goes to and comes from the trainers of the server."""
        return RowLists(self.send_rows, self.send_counts, self.receive_counts)


def worker_view(graph: TrainingGraph, owner: npt.NDArray[np.integer], trainer: int, trainers: int) -> WorkerView:
    """The view of ``trainer``; ``owner`` (integers [n], below ``trainers``) is the trainer that computes each vertex, or -1
    where another server does. All trainers' views of the same graph and owners fit each other. Raises ConfigError."""
    n = len(graph)
    if not 0 <= trainer < trainers:
        raise ConfigError(f"trainer {trainer}: there are {trainers}, from 0 on")
    if owner.shape != (n,) or (n and not -1 <= owner.min() <= owner.max() < trainers):
        raise ConfigError(f"owner: must name one of {trainers} trainers, or -1, for each of {n} vertices")
    source, target = graph.edges
    mine = owner[target] == trainer
    read_from = owner[source]

    reads_others = np.zeros(n, np.bool_)
    reads_others[target[mine & (read_from != trainer)]] = True
    own = np.flatnonzero(owner == trainer)
    own = own[np.argsort(reads_others[own], kind="stable")]
    others = np.unique(source[mine & (read_from != trainer)])
    others = others[np.argsort(owner[others], kind="stable")]
    elsewhere = owner[others] < 0
    remote, halo = others[~elsewhere], others[elsewhere]
    rows = np.concatenate([own, remote, halo])

    row = np.full(n, -1, np.int64)
    row[rows] = np.arange(len(rows))
    edge_index = row[graph.edges[:, mine]]
    edge_index = edge_index[:, np.argsort(edge_index[1], kind="stable")]

    # A reader receives each row once, even if several of its vertices read it. So count pairs of reader and vertex, not
    # edges.
    given = ~mine & (read_from == trainer) & (owner[target] >= 0)
    pairs = np.unique(owner[target[given]].astype(np.int64) * max(1, n) + source[given])
    reader, sent = np.divmod(pairs, max(1, n))
    return WorkerView(
        trainer=trainer,
        own=own,
        interior=int((~reads_others[own]).sum()),
        remote=remote,
        halo=halo,
        receive_counts=np.bincount(owner[remote], minlength=trainers),
        send_rows=row[sent],
        send_counts=np.bincount(reader, minlength=trainers),
        edge_index=edge_index,
        in_degrees=graph.in_degrees[rows],
        features=graph.features[own],
        halo_features=graph.features[halo],
        labels=graph.labels[own],
        targets=np.flatnonzero(graph.loss_mask[own]),
        global_ids=graph.global_ids[rows],
    )
