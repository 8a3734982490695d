"""Asks all owners of a task's rows over links. What they do not answer is asked for by messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from atta import _native
from atta.daemon.links.attaching import Attaching
from atta.daemon.links.served import Numbers
from atta.daemon.links.steps import LinkSteps
from atta.daemon.peers.answers import AskedOwners, SampledRows
from atta.partition.dataset import Dataset
from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.kernels.arrays import as_bytes
from atta.samplers.shard import Answer

__all__ = ["LinkedOwners"]

Item = TypeVar("Item", SampleItem, FeatureItem)


class LinkedOwners:
    """See ``AskedOwners``. Edge tables, codecs, methods in numpy and later versions travel by messages only."""

    def __init__(
        self, links: _native.Links, steps: LinkSteps, attaching: Attaching, messages: AskedOwners, dataset: Dataset
    ) -> None:
        self._links, self._steps, self._attaching, self._messages = links, steps, attaching, messages
        self._schema, self._numbers = dataset.schema, Numbers(dataset.schema)
        self._owners = np.arange(dataset.num_parts, dtype=np.int64)
        self._firsts = {t: np.ascontiguousarray(offsets[:-1]) for t, offsets in dataset.book.offsets.items()}

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> list[SampledRows]:
        if any(item.tables or item.version or item.by or item.method.rules.draw is not None for item in items):
            return await self._messages.sample(items, age_ms=age_ms)
        await self._attached(items)
        step = self._links.step()
        for item in items:
            self._add_sample(step, item)
        await self._steps.run(step, "sample", age_ms)
        found = [
            SampledRows(item, first, answer := Answer(counts, neighbors, edge_ids), _nbytes(answer))
            for number, item in enumerate(items)
            for first, counts, neighbors, edge_ids in step.answers(number)
        ]
        if left := self._left(step):
            rest = [_part(items[index], owner, first, rows) for index, owner, first, rows, _, _ in left]
            more = await self._messages.sample(rest, age_ms=age_ms)
            places = {id(part): (items[index], first) for part, (index, _, first, *_) in zip(rest, left, strict=True)}
            for part, at, answer, nbytes in more:
                item, first = places[id(part)]
                found.append(SampledRows(item, first + at, answer, nbytes))
        return found

    def _add_sample(self, step: _native.Step, item: SampleItem) -> None:
        assert item.starts is not None
        bounded = item.fan_out >= 0 and item.method.bounded
        step.sample(
            self._numbers.edge_types[item.edge_type],
            item.rows,
            self._owners,
            item.starts,
            self._firsts[self._schema.endpoints(item.edge_type)[1]],
            item.fan_out,
            item.replace,
            item.stream_key,
            item.method.number,
            item.trees,
            item.times,
            item.fan_out if bounded else self._schema.edge_counts[item.edge_type],
        )

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Sequence[np.ndarray]], codec: str = "", *, age_ms: int = 0
    ) -> int:
        bits = [self._numbers.bits(item.node_type, item.tables) for item in items]
        if codec or not all(bits) or any(item.version for item in items):
            return await self._messages.pull(items, outs, codec, age_ms=age_ms)
        await self._attached(items)
        step = self._links.step()
        for item, out, tables in zip(items, outs, bits, strict=True):
            assert item.starts is not None
            in_order = sorted(zip(item.tables, map(as_bytes, out), strict=True))
            step.pull(
                self._numbers.node_types[item.node_type],
                tables,
                item.rows,
                item.positions,
                self._owners,
                item.starts,
                self._firsts[item.node_type],
                [table for _, table in in_order],
            )
        await self._steps.run(step, "pull", age_ms)
        received = step.nbytes()
        if left := self._left(step):
            rest = [_part(items[index], owner, first, rows) for index, owner, first, rows, _, _ in left]
            received += await self._messages.pull(rest, [outs[index] for index, *_ in left], age_ms=age_ms)
        return received

    def _left(self, step: _native.Step) -> list[tuple[int, int, int, int, bool, str]]:
        """What has no answer: item, owner, first row, rows, whether it was refused, why."""
        left = step.left()
        for _, owner, *_, refused, _ in left:
            if not refused:
                self._attaching.lost(owner)
        return left

    async def _attached(self, items: Sequence[SampleItem | FeatureItem]) -> None:
        """Attach to the owners that the items ask and that have no link yet."""
        missing = self._attaching.missing
        if not missing:
            return
        asked = {
            owner
            for item in items
            if item.starts is not None
            for owner in np.flatnonzero(np.diff(item.starts)).tolist()
        }
        await self._attaching.ready(sorted(asked & missing))


def _part(item: Item, owner: int, first: int, rows: int) -> Item:
    """Rows ``first`` to ``first + rows`` of an item, which all belong to ``owner``."""
    assert item.starts is not None
    at = slice(first, first + rows)
    starts = np.where(np.arange(len(item.starts)) <= owner, 0, rows)
    if isinstance(item, FeatureItem):
        return replace(item, rows=item.rows[at], positions=item.positions[at], starts=starts, keep=None)
    trees, times = (None if per_row is None else per_row[at] for per_row in (item.trees, item.times))
    return replace(item, rows=item.rows[at], positions=item.positions[at], trees=trees, times=times, starts=starts)


def _nbytes(answer: Answer) -> int:
    return answer.counts.nbytes + answer.neighbors.nbytes + answer.edge_ids.nbytes
