"""Rows that came with a batch, until a script asks for them by the batch's ids.

A DistDGL script fetches rows after it has got a batch: ``g.ndata["feat"][inputs]``. Atta's daemons send them with the
batch. So the ids that a loader hands out are remembered, with the batch that they belong to. What a script asks for by
such ids is noted, and the loader has it sent along from then on. A loader that shuffles is one for training, so what its
script will ask for can be guessed: then the first epoch need not begin twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atta.client.tables.rows import table_rows
from atta.samplers.arguments import integers

if TYPE_CHECKING:
    from atta.client.cluster import Cluster
    from atta.client.loaders.sampled import SampledBatch

__all__ = ["BatchRows", "Wanted"]


class Wanted:
    """The tables whose rows come along with a loader's batches: those that a script has asked for by their ids, and in
    its first epoch those that it will probably ask for.

    Attributes:
        whole: (node type, table) asked for all vertices of a batch.
        seeds: asked for the seeds alone.
    """

    def __init__(self, whole: Iterable[tuple[str, str]] = (), seeds: Iterable[tuple[str, str]] = ()) -> None:
        """``whole``, ``seeds``: what the script will probably ask for."""
        self.whole: set[tuple[str, str]] = set()
        self.seeds: set[tuple[str, str]] = set()
        self._guessed = frozenset(whole), frozenset(seeds)

    def note(self, node_type: str, table: str, *, whole: bool) -> None:
        """The script has asked for rows of ``table``: they are sent along from now on."""
        (self.whole if whole else self.seeds).add((node_type, table))

    def settle(self) -> None:
        """An epoch has ended: send nothing any more that the script has not asked for."""
        self._guessed = frozenset(), frozenset()

    def state(self) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
        """What is sent along now: of all vertices, and of the seeds alone."""
        whole = self._guessed[0] | self.whole
        return whole, (self._guessed[1] | self.seeds) - whole


@dataclass(frozen=True)
class _HandedOut:
    """Ids that a loader has handed out: the first ``count`` vertices of a type in a batch."""

    tensor: weakref.ref[Any]
    node_type: str
    batch: SampledBatch
    whole: bool
    wanted: Wanted


class BatchRows:
    """Rows by id: of a batch where they came along, otherwise from the daemons.

    A batch is kept as long as the script has its ids. Kept any longer, its memory could not hold the next batches.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ids: dict[int, _HandedOut] = {}

    def remember(self, ids: Any, node_type: str, batch: SampledBatch, wanted: Wanted, *, whole: bool) -> None:
        """``ids``: the tensor that the script gets; the first vertices of ``node_type`` in ``batch``, all if
        ``whole``."""
        key, known = id(ids), self._ids
        dropped = weakref.ref(ids, lambda _: known.pop(key, None))
        known[key] = _HandedOut(dropped, node_type, batch, whole, wanted)

    def rows(self, node_type: str, table: str, ids: Any) -> np.ndarray:
        """Rows [n, *row shape] of a node table for ids, a slice or a mask over the vertices of the type."""
        known = self._ids.get(id(ids))
        there = None if known is None else known.tensor()
        if known is not None and there is not None and known.node_type == node_type:
            known.wanted.note(node_type, table, whole=known.whole)
            found = known.batch.tables.get(node_type, {}).get(table)
            if found is not None and len(found) >= len(ids):
                return found[: len(ids)]
        if isinstance(ids, slice):
            ids = np.arange(*ids.indices(self._cluster.schema.node_counts[node_type]))
        given = ids.detach().cpu().numpy() if hasattr(ids, "detach") else np.asarray(ids)
        if given.dtype == bool:
            given = np.flatnonzero(given)
        return table_rows(self._cluster, node_type, table, integers("ids", given).reshape(-1))
