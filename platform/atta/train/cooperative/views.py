"""Arrays that say what one trainer computes, reads and sends. No torch and no communication here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.train.cooperative.graph import Labels, Longs, TrainingGraph

__all__ = ["RowLists", "WorkerView", "worker_view"]


@dataclass(frozen=True)
class RowLists:
    """Rows that a trainer sends to each member of a group, and receives from it.

    Attributes:
        send_rows: int64 [s], own rows that others read, by reader.
        send_counts: int64 [members], rows sent to each, adds up to s.
        receive_counts: int64 [members], rows received from each.
    """

    send_rows: Longs
    send_counts: Longs
    receive_counts: Longs


@dataclass(frozen=True)
class WorkerView:
    """A trainer's share of its server's subgraph (GraNNDis section 4.4).

    Its rows are its own vertices, then those that it reads and does not compute: *remote* ones, of other trainers of
    the server, and *HALO* ones, which other servers compute. *Interior* vertices are own vertices that read only own
    rows. They come first and can be computed while other rows are under way. The owner of an edge's target has the
    edge.

    Attributes:
        trainer: which trainer of the server this is.
        own: int64 [o], server-local numbers of the own vertices, interior ones first.
        interior: number of interior vertices.
        remote: int64 [r], server-local numbers of the remote vertices, by owner, ascending within each.
        halo: int64 [h], server-local numbers of the HALO vertices.
        receive_counts: int64 [N], rows received from each trainer of the server, adds up to r.
        send_rows: int64 [s], own rows that others read, by reader, in the order of the reader's ``remote``.
        send_counts: int64 [N], rows sent to each trainer, adds up to s.
        edge_index: int64 [2, e], rows of sources (below o + r + h) and of targets (below o), targets ascending.
        in_degrees: int64 [o + r + h], as in ``TrainingGraph``.
        features: float [o, d], of the own vertices.
        halo_features: float [h, d].
        labels: int64 [o], or float32 [o, outputs].
        targets: int64 [t], own rows that the loss is taken of, ascending.
        global_ids: int64 [o + r + h].
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
    """The view of ``trainer``; ``owner`` (integers [n], below ``trainers``) is the trainer that computes each vertex, or
    -1 where another server does.

    All trainers' views of the same graph and owners fit each other, without any message.

    Raises:
        ConfigError: no such trainer, or ``owner`` has other values.
    """
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
