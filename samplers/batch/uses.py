"""What becomes of the edges that a hop draws, where they do not just join the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atta.errors import ConfigError
from atta.samplers.batch.vertices import Vertices
from atta.samplers.operators.parts.draws import draw, streams, unit
from atta.samplers.shard import Answer, only

__all__ = ["Votes", "among", "rows_of_edges"]

_WHOLE = 1 << 30
"""The vote of a vertex. Its edges share it in whole units, so that sums do not depend on the order of answers."""


def among(answer: Answer, sources: Vertices, trees: np.ndarray | None) -> Answer:
    """``answer`` without edges whose source is not in the batch. ``trees`` int32 [rows]: the trees that the rows are in;
    None: there are none. A source must be in the tree of its row."""
    of_edges = None if trees is None else np.repeat(trees, answer.counts)
    return only(answer, sources.find(answer.neighbors, of_edges) >= 0)


def rows_of_edges(edge_ids: np.ndarray, answers: Sequence[Answer], name: str, out: np.ndarray) -> None:
    """Write the rows of an edge table for ``edge_ids`` [E] to ``out`` [E, *row shape].

    Raises:
        ConfigError: an edge is not among the answers, so it is none of the graph's.
    """
    if not len(edge_ids):
        return
    given = np.concatenate([answer.edge_ids for answer in answers])
    order = np.argsort(given, kind="stable")
    at = np.minimum(np.searchsorted(given, edge_ids, sorter=order), len(given) - 1)
    found = order[at] if len(given) else at
    if not len(given) or not np.array_equal(given[found], edge_ids):
        raise ConfigError(f"edge table {name!r}: the operator makes edges of its own, which have no rows")
    out[:] = np.concatenate([answer.tables[name] for answer in answers])[found]


class Votes:
    """HGT's budget of one node type: vertices that are not in the batch, with the votes of those that are (Hu et al., WWW
    2020, algorithm 2)."""

    def __init__(self) -> None:
        self._ids, self._votes = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, answer: Answer, sources: Vertices) -> None:
        """Every row gives its drawn in-neighbours equal votes, together one. Vertices of the batch get none."""
        ids = answer.neighbors.astype(np.int64)
        votes = np.repeat(_WHOLE // np.maximum(answer.counts, 1).astype(np.int64), answer.counts)
        new = sources.find(ids) < 0
        self._ids, at = np.unique(np.concatenate([self._ids, ids[new]]), return_inverse=True)
        votes = np.concatenate([self._votes, votes[new]])
        self._votes = np.zeros(len(self._ids), np.int64)
        np.add.at(self._votes, at, votes)

    def draw(self, count: int, keys: np.ndarray, key: int) -> np.ndarray:
        """Take out ``count`` vertices (int64 internal ids), one after another by the squares of their votes.

        A vertex arrives after an exponential time of this rate; the first ones win. ``keys``: user ids by internal id, on
        which the times depend.
        """
        users = np.asarray(keys[self._ids])
        times = -np.log1p(-unit(draw(streams(key, users), 0))) / (self._votes / _WHOLE) ** 2
        order = np.lexsort((users, times))
        chosen, left = self._ids[order[:count]], np.sort(order[count:])
        self._ids, self._votes = self._ids[left], self._votes[left]
        return chosen
