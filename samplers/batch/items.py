"""The values of a batch: what it starts from, what its tasks ask the owners, and what a join reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from atta.partition.schema import Schema
from atta.samplers.dag.instance import OwnedVertices
from atta.samplers.dag.spec import PlanOp
from atta.samplers.hashing import hash_string, stream_of
from atta.samplers.methods import Method
from atta.samplers.operators.base import Sampled
from atta.samplers.shard import Answer

EDGES = "edges"
"""What versions call the edges of a type: their key is (edge type, EDGES), that of a table (node type, name)."""
TIME = "time"
"""The node table that says from when on vertices exist."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """What the sampled edges of a batch depend on besides the graph (docs/internals/architecture.md, determinism contract).
    ``step``: number of the batch among those of its trainer, of all epochs. Dependent batches resemble the one before
    over the end of an epoch, too, and those of all trainers draw alike in a step, so that they need the same rows. None:
    ``batch`` counts so."""

    seed: int
    epoch: int
    batch: int
    step: int | None = None

    def stream(self, hop: int, edge_type: str, dependency: int) -> tuple[int, int]:
        """The stream of a hop's draws, see ``stream_of``."""
        at = self.seed, self.epoch, self.batch
        if dependency > 1 and self.step is not None:
            at = self.seed, 0, self.step
        return stream_of(at, hop, hash_string(edge_type), dependency)


@dataclass(frozen=True, slots=True)
class SampleItem:
    """Part of a sampling request: expand ``rows`` for one edge type. ``rows`` int64 [n] and ``starts`` as in
    ``TaskRows``: positions in the core range of one owner, or internal ids of several owners with ``starts``.
    ``positions`` int64 [n]: local ids of the same vertices. ``trees`` int32 [n] and ``times`` int64 [n] are None if the
    method does not need them. ``tables``: edge tables whose rows are wanted too. ``kept``: ``rows`` are those of
    ``KeptEdges``. ``version``: whose edges, see ``BatchState.sources``; 0: the dataset's own. ``by``: see ``PlanOp``.
    ``stream_key``, ``renewed``: see ``hashing.stream_of``."""

    edge_type: str
    rows: np.ndarray
    positions: np.ndarray
    fan_out: int
    replace: bool
    method: Method
    stream_key: int
    trees: np.ndarray | None = None
    times: np.ndarray | None = None
    tables: tuple[str, ...] = ()
    starts: np.ndarray | None = None
    kept: bool = False
    version: int = 0
    by: str = ""
    renewed: int = 0


@dataclass(frozen=True, slots=True)
class FeatureItem:
    """Part of a pull: the table rows ``rows`` (int64 [n], with ``starts`` and ``keep`` as in ``TaskRows``). They go to
    ``positions`` (int64 [n]) of the batch. ``kept``: ``rows`` are those of ``KeptRows``. ``version``: whose rows, see
    ``BatchState.sources``; 0: the dataset's own."""

    node_type: str
    tables: tuple[str, ...]
    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray | None = None
    keep: np.ndarray | None = None
    kept: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class SumItem:
    """Sums of rows of one table that owners make. ``rows`` int64 [addends], internal ids, sum after sum; ``counts`` int32
    [sums], how many rows each has; ``targets`` int64 [sums], the vertices that they are for; ``weights`` float32
    [addends], or None; ``starts`` int64 [parts + 1], the bounds of each owner's sums. ``shifts``, ``width``: see
    ``kernels.sums``. ``version``: as for ``FeatureItem``."""

    edge_type: str
    node_type: str
    table: str
    rows: np.ndarray
    counts: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None
    starts: np.ndarray
    shifts: np.ndarray
    width: int
    version: int = 0

    def only(self, chosen: np.ndarray) -> SumItem:
        """Some of the sums; ``chosen`` int64 ascends."""
        wanted = np.zeros(len(self.counts), bool)
        wanted[chosen] = True
        addends = np.repeat(wanted, self.counts)
        return replace(
            self, rows=self.rows[addends], counts=self.counts[chosen], targets=self.targets[chosen],
            weights=None if self.weights is None else self.weights[addends], starts=np.searchsorted(chosen, self.starts),
        )  # fmt: skip


def owners_of(items: Sequence[SampleItem | FeatureItem | SumItem]) -> int:
    """Number of owners that have rows of ``items``, which have ``starts``."""
    bounds = [item.starts.tolist() for item in items if item.starts is not None]
    return len({p for starts in bounds for p, (start, stop) in enumerate(pairwise(starts)) if start < stop})


@dataclass(frozen=True, slots=True)
class BatchSeeds:
    """What a batch starts from.

    Attributes:
        ids: int64 [S] internal ids of the seeds; if the seeds are edges, of their targets.
        input_id: int64 [S], positions in the user's input.
        sources: int64 [S], the sources of the seed edges; None if the seeds are vertices.
        times: int64 [S]; None without a temporal method, and if vertices have their own times.
        types: int32 [S], the seeds' node types by number in the schema, ascending; None: all are of one.
        exclude: edge types from which the seed edges (True: their reverses) are left out."""

    ids: np.ndarray
    input_id: np.ndarray
    sources: np.ndarray | None = None
    times: np.ndarray | None = None
    exclude: tuple[tuple[str, bool], ...] = ()
    types: np.ndarray | None = None

    def by_type(self, schema: Schema, only: str) -> Iterator[tuple[str, int, int]]:
        """Yield node type, first position and end of the seeds of each type. ``only``: the type if there is one."""
        if self.types is None:
            yield only, 0, len(self.ids)
            return
        bounds = np.searchsorted(self.types, np.arange(len(schema.node_types) + 1)).tolist()
        for node_type, (first, stop) in zip(schema.node_types, pairwise(bounds), strict=True):
            if first < stop:
                yield node_type, first, stop


class PairItem(NamedTuple):
    """What a POSITIVE or NEGATIVE task asks its owner: partners of ``rows`` (int64 [n]), the seeds at ``positions``
    (int64 [n]). ``version``: as for ``SampleItem``."""

    op: PlanOp
    rows: np.ndarray
    positions: np.ndarray
    stream_key: int
    version: int


class Joined(NamedTuple):
    """The vertices that a join added, by owner. ``expand``: what the next hop expands; None if it expands the added
    vertices."""

    growth: Sequence[OwnedVertices]
    expand: Sequence[OwnedVertices] | None


@dataclass(slots=True)
class Pending:
    """Answers to one operator's tasks, collected until its join."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    groups: dict[str, list[tuple[np.ndarray, Answer]]] = field(default_factory=dict)
    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    links: tuple[np.ndarray, np.ndarray] | None = None
    sampled: Sampled | None = None
