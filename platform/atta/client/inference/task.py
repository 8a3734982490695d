"""What an inference computes, by how many processes, and what each of them does next. No sockets, files or clocks here.

The work has stages, one per layer. Every stage is cut into the same number of *shares*. A process has the same shares
in all stages, so what it writes in one stage is near it in the next. A stage reads what the stage before has written,
for vertices of any share. So it begins when all shares of the stage before are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from atta.client.inference.block import Floats
from atta.client.inference.stages import Stage, Targets
from atta.errors import ConfigError, UnknownNameError
from atta.observe import html
from atta.partition.schema import Schema

Ids = npt.NDArray[np.int64]
UserIds = Ids | npt.NDArray[np.str_]
"""Vertices as users name them: by numbers or by strings."""


@dataclass(frozen=True)
class Predictions:
    """Results in memory.

    Attributes:
        ids: int64 or str [n], user ids of vertices; [n, 2], sources and targets, where pairs are scored.
        values: [n, width] float32 embeddings or scores, or int64 [n] classes; float32 [n] for pairs.
        version: of point queries: the dataset's tables that they were computed of; None: they stood in a mutable table,
            or were not asked for so.
    """

    ids: UserIds
    values: npt.NDArray[Any]
    version: int | None = None

    def _repr_html_(self) -> str:
        rows = ((html.row_text(i), html.row_text(v)) for i, v in zip(self.ids, self.values, strict=True))
        title = f"Predictions: {len(self.ids):,} rows of {self.values.dtype} {list(self.values.shape[1:]) or ''}"
        return html.table(title, rows, ("id", "value"), count=len(self.ids))


@dataclass(frozen=True)
class PairScore:
    """Scores of pairs from rows [n, width] of sources: ``pairs`` with one partner each [n, width], float32 [n] or rows;
    ``grid`` with all targets [m, width], float32 [n, m]."""

    pairs: Callable[[Floats, Floats], Floats]
    grid: Callable[[Floats, Floats], Floats]


INNER_PRODUCTS = PairScore(
    lambda sources, targets: np.asarray(np.einsum("nd,nd->n", sources, targets)),
    lambda sources, targets: np.asarray(sources @ targets.T),
)


@dataclass(frozen=True)
class TopTargets:
    """The question for the best ``count`` targets of each source by a relation. Targets that a source has an edge to
    are left out."""

    count: int
    sources: Targets
    edge_type: str


@dataclass(frozen=True)
class InferenceTask:
    """What is computed, and by how many.

    Attributes:
        types: node type of the vertices that are asked for; of pairs, those of sources and of targets.
        key: digest of everything that rows depend on, and of where the results go; processes with the same one share
            tables.
        features: node table with the input.
        batch_size: vertices per block; None: what ``block_size`` says, or 1024 of sampled batches.
        pairs: int64 [n, 2], user ids of sources and targets to score, if the last stage is about given pairs.
        top: if it looks for the best targets.
        finish: turns rows of the last stage, or scores of pairs, into what is written.
        version: of the dataset's tables; None: the newest, whenever a batch is read.
    """

    types: tuple[str, ...]
    stages: Sequence[Stage]
    key: str
    shares: int
    features: str = "x"
    rank: int = 0
    world: int = 1
    batch_size: int | None = None
    seed: int = 0
    pairs: npt.NDArray[np.int64] | None = None
    top: TopTargets | None = None
    finish: Callable[[Floats], npt.NDArray[Any]] = np.asarray
    score: PairScore = INNER_PRODUCTS
    version: int | None = 0


def feature_width(schema: Schema, features: str) -> int:
    """Numbers per vertex of the table ``features``. Raises ConfigError for typed graphs, and rows that are no vectors."""
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("inference takes graphs with one node type and one edge type")
    spec = schema.table(schema.node_types[0], features)
    if len(spec.row_shape) != 1:
        raise ConfigError(
            f"inference needs a row of features per vertex; {features} has rows of shape {spec.row_shape}"
        )
    return spec.row_shape[0]


def target_count(schema: Schema, nodes: Targets, node_type: str) -> int:
    """How many vertices of a type ``nodes`` are; raises UnknownNameError for an unknown split, ConfigError for none."""
    if nodes is None:
        count = schema.in_use(node_type)
    elif isinstance(nodes, str):
        if nodes not in schema.splits[node_type]:
            raise UnknownNameError.of("split", nodes, schema.splits[node_type])
        count = schema.split_size(node_type, nodes)
    else:
        count = len(nodes)
    if not count:
        raise ConfigError("there are no vertices to predict: the list of ids is empty")
    return count


MOST_SHARES = 1 << 16
_EDGE_ROWS_BYTES = 64 << 20
_READ_ROWS_BYTES = 128 << 20
_QUEUED_BYTES = 64 << 20
_BLOCK_EDGES = 1 << 20
_BLOCK_SEEDS = 1 << 15


class InferenceStep(NamedTuple):
    """Compute a share of a stage; None: wait until other processes have done all its shares."""

    stage: int
    share: int | None


@dataclass(frozen=True)
class InferencePlan:
    """What one of several processes does. Raises ConfigError if there is no such process, or no stage or share."""

    stages: int
    shares: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ConfigError("a model needs at least one layer")
        if not 1 <= self.shares <= MOST_SHARES:
            raise ConfigError(f"{self.shares} files: must be 1 to {MOST_SHARES}")
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank {self.rank} of {self.world} processes")

    @property
    def mine(self) -> range:
        """The shares of this process: consecutive ones, for they lie near each other. Ranks may differ by one share."""
        first, stop = (-(-rank * self.shares // self.world) for rank in (self.rank, self.rank + 1))
        return range(first, stop)

    def next(self, done: npt.NDArray[np.bool_]) -> InferenceStep | None:
        """What comes next; None: nothing is left for this process. ``done``: bool [stages, shares]. While the last
        stage is not done as a whole, a process does its shares of earlier stages even if its own of the last one are
        done: others read them."""
        if done.shape != (self.stages, self.shares):
            raise ConfigError(f"done: has shape {list(done.shape)}, expected {[self.stages, self.shares]}")
        if done[-1].all():
            return None
        for stage in range(self.stages):
            share = next((share for share in self.mine if not done[stage, share]), None)
            if share is not None:
                waits = stage and not done[stage - 1].all()
                return InferenceStep(stage - 1, None) if waits else InferenceStep(stage, share)
        return None


def share_count(processes: int, parts: int) -> int:
    """How many shares there are unless somebody says: equally many per process, and at least one per partition."""
    return processes * -(-parts // processes)


def block_size(vertices: int, edges: int, width: int, *, row_per_edge: bool, queued: bool) -> int:
    """How many vertices a layer computes at a time, for rows of ``width`` float32 and vertices with average in-degrees.

    row_per_edge: whether the layer makes a row per edge; these take at most 64 MiB. Other layers sum up rows as they
        read them. Then the rows that a block reads count, at most all there are: large blocks read each row less often.
        They take at most 128 MiB, and a block has at most 2**20 edges.
    queued: whether rows come with batches, of which several wait. Then a block reads at most 64 MiB."""
    degree = -(-edges // max(1, vertices))
    row_bytes = 4 * max(1, width)
    rows = (_EDGE_ROWS_BYTES if row_per_edge else _QUEUED_BYTES if queued else _READ_ROWS_BYTES) // row_bytes
    if not row_per_edge and vertices <= rows:
        rows = _BLOCK_EDGES
    return max(1, min(_BLOCK_SEEDS, min(_BLOCK_EDGES, rows) // (1 + degree)))


_SPARE = 4
"""A block in which this many times more scores than wanted beat the ones before is thinned before it is sorted."""


@dataclass(frozen=True)
class TargetBlock:
    """A block of targets: their user ids int64 [m], and edges that exist, int64 [2, e]: user ids of sources, places in
    ``ids``."""

    ids: Ids
    linked: Ids

    def linked_as(self, pairs: Ids) -> TargetBlock:
        """The same with edges between other sources and some targets: those of ``pairs``, user ids int64 [2, p]."""
        order = np.argsort(self.ids)
        places = order[np.searchsorted(self.ids[order[:-1]], pairs[1])]
        return TargetBlock(self.ids, np.stack([pairs[0], places])[:, self.ids[places] == pairs[1]])


class BestTargets:
    """The best targets of some sources so far."""

    def __init__(self, sources: Ids, count: int, *, loops: bool) -> None:
        """``sources``: int64 [n], user ids, each once. ``loops``: whether sources and targets are of one type, so that
        a source meets itself."""
        self._sources, self._count, self._loops = sources, count, loops
        self._order = np.argsort(sources)
        self._rows, self._ids = np.empty(0, np.int64), np.empty(0, np.int64)
        self._scores = np.empty(0, np.float32)

    def take(self, scores: Floats, found: TargetBlock) -> None:
        """Take a block's scores [n, m]. They are overwritten where a pair does not count."""
        self._hide(scores, *found.linked)
        if self._loops:
            self._hide(scores, found.ids, np.arange(len(found.ids)))
        rows, places = self._better(scores)
        self._keep(
            np.concatenate([self._rows, rows]),
            np.concatenate([self._ids, found.ids[places]]),
            np.concatenate([self._scores, scores[rows, places]]),
        )

    def pairs(self) -> tuple[Ids, Floats]:
        """int64 [r, 2] sources and targets, and their scores [r]: source by source, the best first."""
        return np.stack([self._sources[self._rows], self._ids], axis=1), self._scores

    def _hide(self, scores: Floats, sources: Ids, places: Ids) -> None:
        """Strike out pairs of a source's id and a target's place. Ids that are not among the sources do not count."""
        at = np.searchsorted(self._sources, sources, sorter=self._order)
        rows = self._order[np.minimum(at, len(self._order) - 1)]
        here = self._sources[rows] == sources
        scores[rows[here], places[here]] = -np.inf

    def _better(self, scores: Floats) -> tuple[Ids, Ids]:
        """Rows and columns of scores that may belong to the best: equal ones do."""
        floor = self._floor()[:, None]
        better = (scores >= floor) & (scores > -np.inf)
        wide = scores.shape[1] - self._count
        if wide > 0 and int(better.sum()) > _SPARE * self._count * len(scores):
            better &= scores >= np.partition(scores, wide, axis=1)[:, wide, None]
        rows, places = np.nonzero(better)
        return rows, places

    def _floor(self) -> Floats:
        """float32 [n]: the last score of each source that has enough targets, otherwise the smallest number."""
        floor = np.full(len(self._sources), -np.inf, np.float32)
        counts = np.bincount(self._rows, minlength=len(floor))
        full = np.flatnonzero(counts == self._count)
        floor[full] = self._scores[np.cumsum(counts)[full] - 1]
        return floor

    def _keep(self, rows: Ids, ids: Ids, scores: Floats) -> None:
        order = np.lexsort((ids, -scores, rows))
        rows, ids, scores = rows[order], ids[order], scores[order]
        counts = np.bincount(rows, minlength=len(self._sources))
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = rank < self._count
        self._rows, self._ids, self._scores = rows[kept], ids[kept], scores[kept]
