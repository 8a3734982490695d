"""ByteGNN's workload-aware partitioning (section 4.2 of its description): it keeps a labelled vertex and the vertices
that it samples in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta import _native
from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import capacities, weight_column
from atta.partition.cutting.union import Union
from atta.partition.graph import Graph
from atta.partition.methods.streaming import limits

_LABELS = ("train", "val", "test")
_LABEL_SLACK = 0.02
CENTRES = ("labelled", "train")


@dataclass(frozen=True)
class Block:
    """Grows blocks around labelled vertices, exactly one in each, and assigns them by cross edges and by room for labelled
    vertices. Vertices that no block reaches come last, each where most of its neighbours are. If nearly all vertices are
    labelled, every vertex is a block: use ``centres="train"`` or METIS in that case.

    Attributes:
        hops: number of hops that a block reaches.
        centres: ``"labelled"`` (train, val and test) or ``"train"``.
        alpha, beta, gamma: weights of train, val and test vertices in a partition's room; scaled to sum to 1.
        smooth: added to the cross edges per vertex (1: NeutronBench's form; 0: the paper's).
        slack: how far a partition may exceed its share of vertices while vertices without a block are added.
        passes: number of passes that move vertices to the partition with most of their neighbours. They keep splits
            even within 2 %. 0: the paper's form."""

    hops: int = 2
    centres: str = "labelled"
    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    smooth: float = 1.0
    slack: float = 0.1
    passes: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.passes <= 1000:
            raise ConfigError(f"passes {self.passes}: must be 0 to 1000")
        if not 0 <= self.hops <= 100 or self.centres not in CENTRES:
            raise ConfigError(
                f"hops {self.hops}, centres {self.centres!r}: must be 0 to 100, one of {', '.join(CENTRES)}"
            )
        weights = (self.alpha, self.beta, self.gamma, self.smooth, self.slack)
        if not all(0 <= w <= 1e6 for w in weights) or not sum(weights[:3]):
            raise ConfigError(
                f"alpha, beta, gamma, smooth, slack {weights}: must not be negative, nor the first three all 0"
            )

    def check_balance(self, balance: Sequence[str]) -> None:
        """Refuse: the method itself balances."""
        raise ConfigError(f"--balance {','.join(balance)}: the method block balances train, val and test vertices")

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        return {"nodes": self.slack, **dict.fromkeys(_LABELS, _LABEL_SLACK)} if self.passes else {}

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        progress.stage("union graph", None)
        union = Union.of(graph)
        labels = label_columns(graph)
        wanted = labels[:, :1] if self.centres == "train" else labels
        centres = np.flatnonzero(wanted.any(axis=1))
        progress.stage("blocks", None)
        block = _native.grow_blocks(union.indptr, union.indices, centres, self.hops)
        progress.stage("assignment", None)
        share = np.array([self.alpha, self.beta, self.gamma]) / (self.alpha + self.beta + self.gamma)
        owners = _native.assign_blocks(
            union.indptr, union.indices, block, len(centres), labels.reshape(-1), parts, share, self.smooth
        )
        weights, room = limits(graph, ["nodes"], parts, self.slack)
        left = np.flatnonzero(owners < 0)
        flat = weights.reshape(-1)
        _native.stream_vertices(union.indptr, union.indices, left, None, owners, parts, flat, room, 0.0, 0.0)
        columns = np.hstack([weights, labels])
        room = np.append(room, capacities(labels.astype(np.int64), parts, _LABEL_SLACK))
        if self.passes:
            union.settle(owners, parts, columns, room, self.passes, progress.advance)
        return union.by_type(owners)


def label_columns(graph: Graph) -> npt.NDArray[np.int8]:
    """Return [N, 3]: whether a vertex of the union graph is in train, val, test."""
    return np.ascontiguousarray(np.stack([weight_column(graph, name) for name in _LABELS], axis=1), np.int8)
