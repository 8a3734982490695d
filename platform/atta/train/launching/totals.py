"""Running totals: what a follower's layers have added up, on the daemons beside the rows. After an update they get what the
edges out of changed vertices, and edges that came or went, add and take away.

Totals are float64, as is what is added: a sum that takes away what it once added is right to 1e-16 of its largest addend, so
they need no refresh. They are computed anew, from all edges, if a version was begun and never completed, and if they are no
numbers: an infinite addend cannot be taken away."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from atta.client.cluster import Cluster
from atta.client.inference.block import Doubles, Floats, LayerBlock, SummedLayer, TypedBlock, one_prepared
from atta.client.inference.followed import MOST_EDGES, FollowedState, FollowedTables, Marks, edges_from, those
from atta.client.inference.stages import Rows, Stage
from atta.partition.names import split_edge_type
from atta.train.models import adjacency

Ids = npt.NDArray[np.int64]
NewRows = tuple[Ids, npt.NDArray[Any]]
"""Where a table has some rows, and what they are now [n, ...]."""
_BLOCK_BYTES = 64 << 20
"""Of totals, and of what is added, that are in memory at a time."""


@dataclass(frozen=True)
class StageChanges:
    """What an update has changed of what a stage reads.

    Attributes:
        moved: by node type, the vertices whose rows, or in-degrees, have changed.
        edges: as of ``DatasetChanges``.
        state, version: of the tables, and the version that they are to have.
        features: float32 [n, channels] of vertices of a type by ascending rows of tables. They have not changed.
    """

    moved: Mapping[str, Marks]
    edges: Mapping[str, Ids]
    state: FollowedState
    version: int
    features: Callable[[str, Ids], Floats]


def summed(messages: Doubles, sources: Ids, targets: Ids, count: int, weights: Doubles | None = None) -> Doubles:
    """float64 [count, width]: what edges bring to each target. ``messages`` [n, width] of the ``sources``; ``targets`` ascend;
    ``weights``: None: 1 each."""
    ones = np.ones(len(sources)) if weights is None else weights
    columns, rows, values = (torch.from_numpy(np.require(a, requirements=["C", "W"])) for a in (sources, targets, ones))
    return np.asarray((adjacency(columns, rows, values, (count, len(messages))) @ torch.from_numpy(messages)).numpy())


def block_totals(sums: SummedLayer, block: LayerBlock | TypedBlock) -> Doubles:
    """float64 [targets, width]: the totals of a block's targets, from all of their in-edges."""
    found = []
    for name in sums.widths:
        if isinstance(block, LayerBlock):
            x, edges = block.x, block.edge_index
        else:
            x, edges = block.x[split_edge_type(name)[0]], block.edges[name]
        edges = edges if sums.loops else edges[:, edges[0] != edges[1]]
        found.append(summed(sums.message(name, x, _degrees(block)), edges[0], edges[1], block.targets))
    return np.concatenate(found, axis=1)


def _degrees(block: LayerBlock | TypedBlock) -> Floats | None:
    return next(iter(block.degrees.values()), None) if isinstance(block, LayerBlock) else None


class RunningTotals:
    """The totals of one stage."""

    def __init__(self, cluster: Cluster, tables: FollowedTables, stage: Stage, own: str, name: str) -> None:
        """Create the table of the totals, or open it. ``own``: the node type. Raises as ``FollowedTables.create``."""
        assert stage.sums is not None, "other stages have no totals"
        self._cluster, self._tables, self._stage, self._sums, self._own = cluster, tables, stage, stage.sums, own
        self._width = sum(stage.sums.widths.values())
        self._rows = Rows(name, self._width, own)
        tables.create(self._rows, own, "<f8", totals=True)

    def computed(self, block: LayerBlock | TypedBlock, at: Ids, version: int) -> Floats:
        """The rows of a block's targets, whose totals are written. ``at``: where tables have these."""
        x, count = block.x if isinstance(block, LayerBlock) else block.x[self._own], block.targets
        totals, degrees = block_totals(self._sums, block), _degrees(block)
        self._tables.rows(self._rows).push(at, totals, version=version).wait()
        return self._sums.update(x[:count], totals, None if degrees is None else degrees[:count])

    def added(self, changes: StageChanges) -> Generator[NewRows, None, Marks]:
        """Yield the rows that a version changes, once their totals are written. Returns marks of the vertices whose totals must
        be computed anew. Raises as ``edges_from``."""
        count = len(changes.moved[self._own])
        anew, step = np.zeros(count, np.bool_), max(1, _BLOCK_BYTES // (8 * self._width))
        blocks = (range(at, min(at + step, count)) for at in range(0, count, step))
        for at, values, bad in one_prepared(blocks, partial(self._block, changes)):
            anew[bad] = True
            if len(at):
                yield at, values
        return anew

    def _block(self, changes: StageChanges, targets: range) -> tuple[Ids, Floats, Ids]:
        """What ``added`` does with some vertices: their places and new rows, and the places of those to be computed anew."""
        moved, brought = changes.moved[self._own], []
        marks = np.zeros(len(moved), np.bool_)
        for name, columns in self._sums.columns.items():
            for ends, weights, before in self._edges(name, changes, targets):
                brought.append((columns, *self._brought(name, ends, weights, changes, before=before)))
                marks[brought[-1][1]] = True
        touched = marks.copy()
        marks[targets.start : targets.stop] |= moved[targets.start : targets.stop]
        at, place = _found(len(moved), np.flatnonzero(marks))
        found = self._tables.rows(self._rows).pull(at, versions=True)
        assert found.versions is not None
        totals = found.values
        for columns, some, more in brought:
            if len(some) == len(at):  # saves a copy
                totals[:, columns] += more
            else:
                totals[place[some], columns] += more
        good = (found.versions >= 0) & np.isfinite(totals.sum(axis=1))
        bad, (at, totals) = at[~good], those(good, at, totals)
        ticket = self._tables.rows(self._rows).push(*those(touched[at], at, totals), version=changes.version)
        (rows, _), (degrees, _) = self._read(self._own, at, changes, before=False)
        values = self._sums.update(rows, totals, degrees)
        ticket.wait()
        return at, values, bad

    def _edges(self, name: str, changes: StageChanges, targets: range) -> Iterator[tuple[Ids, Doubles | None, bool]]:
        """Edges into some vertices that bring something, [2, n] sources and targets. First those that came or went, with 1 or
        -1: they bring what their sources have added ``before``. The others bring how that has changed."""
        edge_type = name or self._cluster.schema.edge_types[0]
        changed = changes.edges.get(edge_type, np.empty((3, 0), np.int64))
        changed = changed[:, slice(*np.searchsorted(changed[0], [targets.start, targets.stop]))]
        if changed.size:
            yield changed[[1, 0]], changed[2].astype(np.float64), True
        moved = changes.moved[self._cluster.schema.endpoints(edge_type)[0]]
        if moved.any():
            message_bytes = 8 * self._sums.widths[name]
            all_fit = int(moved.sum()) * message_bytes <= 2 * _BLOCK_BYTES
            most = MOST_EDGES if all_fit else max(1, 2 * _BLOCK_BYTES // message_bytes)
            for ends in edges_from(self._cluster, edge_type, moved, changes.version, targets, most=most):
                yield ends, None, False

    def _brought(
        self, name: str, ends: Ids, weights: Doubles | None, changes: StageChanges, *, before: bool
    ) -> tuple[Ids, Doubles]:
        """The targets of some edges, and what these bring to their totals, float64 [n, width]."""
        if not self._sums.loops:
            kept = ends[0] != ends[1]
            ends, weights = ends[:, kept], None if weights is None else weights[kept]
        source, target = self._cluster.schema.endpoints(name or self._cluster.schema.edge_types[0])
        (sources, place), (at, spot) = (
            _found(len(changes.moved[t]), some) for t, some in zip((source, target), ends, strict=True)
        )
        (rows, old_rows), (degrees, old_degrees) = self._read(source, sources, changes)
        messages = self._sums.message(name, old_rows, old_degrees)
        if not before:
            messages = self._sums.message(name, rows, degrees) - messages
        return at, summed(messages, place[ends[0]], spot[ends[1]], len(at), weights)

    def _read(
        self, node_type: str, at: Ids, changes: StageChanges, *, before: bool = True
    ) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """What the layer reads of vertices, rows and in-degrees, each as they are now and, if asked for, as they were."""

        def read(of: Rows | None) -> tuple[Any, Any]:
            if of is None:
                return (changes.features(node_type, at),) * 2
            if before:
                return self._tables.both(of, at, changes.state.version)
            return self._tables.rows(of).pull(at).values, None

        rows = [read(of) for name, of in self._stage.reads.items() if name in ("", node_type)]
        degrees = [read(of) for of in self._stage.degrees.values()]
        return (rows or [(np.empty((len(at), 0), np.float32),) * 2])[0], (degrees or [(None, None)])[0]


def _found(count: int, at: Ids) -> tuple[Ids, Ids]:
    """Which of ``count`` vertices there are, ascending; and int64 [count], the position of each among these."""
    marks, place = np.zeros(count, np.bool_), np.empty(count, np.int64)
    marks[at] = True
    found = np.flatnonzero(marks)
    place[found] = np.arange(len(found))
    return found, place
