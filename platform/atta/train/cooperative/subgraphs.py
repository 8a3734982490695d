"""A server's subgraph: the daemons extract it, and it is divided among the trainers, as a whole or by co-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

import atta
from atta.errors import ConfigError
from atta.observe.machine.threads import begun
from atta.samplers.local.server import ServerGraph
from atta.samplers.operators.server import Closure
from atta.train.cooperative.graph import WorkerView
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.memory import fewest_batches
from atta.train.cooperative.shares import Handover, divide
from atta.train.settings.servers import CooperativeSettings
from atta.train.steps.timing import Stopwatch
from atta.train.tasks import LearningTask

_COUNTED = 3
"""Number of co-batches of an epoch that are divided on trial, to find out how large they are."""

Longs = npt.NDArray[np.int64]
T = TypeVar("T")


def divide_targets(targets: Longs, batches: int, seed: int, epoch: int) -> list[Longs]:
    """``batches`` groups of nearly equal size, int64, ascending within each: a permutation by seed and epoch."""
    order = np.random.default_rng([seed, epoch]).permutation(targets)
    return [np.sort(group) for group in np.array_split(order, batches)]


class _Ready(NamedTuple):
    """A view, and the time (``time.perf_counter``) at which the subgraph was divided, before it was sent."""

    view: WorkerView
    divided: float


class ServerData:
    """A trainer's shares, step by step. The server's first trainer extracts and divides, the others receive.

    With several steps per epoch, the next share is made or received in the background while the current one is in use.
    All trainers of all servers call the same methods in the same order.

    Attributes:
        batches: steps per epoch; set by ``prepare``.
        remote_bytes: that daemons have sent each other for this server's extractions; counted by its first trainer.
    """

    def __init__(
        self,
        config: CooperativeSettings,
        cluster: atta.Cluster,
        groups: ServerGroups,
        device: torch.device,
        task: LearningTask,
        *,
        halo: bool = False,
    ) -> None:
        """``task``: what table y holds. ``halo``: a server computes its own vertices only, and other servers compute
        what these read."""
        self._task, self._halo = task, halo
        self.config, self.cluster, self.groups, self.device = config, cluster, groups, device
        self.batches = 0
        self.remote_bytes = 0.0
        self._handover = Handover(groups)
        self._leads = groups.place.local_rank == 0
        self._found: ServerGraph | None = None
        self._drawn: int | None = None

    def prepare(self, epoch: int, watch: Stopwatch, need: Callable[[WorkerView], int]) -> bool:
        """Extract the subgraph if this epoch needs a new one; return whether it did.

        ``need``: the bytes that a step over a view takes, for the number of steps that fit into ``memory``. Each new sample
        determines it again, so a resumed run finds the same one. Raises ConfigError: no number of steps fits, or there are
        more than training vertices of some server; and errors of ``atta.server_subgraph``.
        """
        config = self.config
        drawn = epoch // config.resample_every if config.resample_every else 0
        if drawn == self._drawn:
            return False
        self._drawn = drawn
        targets, batches = np.iinfo(np.int64).max, 0
        if self._leads:
            self._found = None  # first: the daemon keeps the arrays until they are released
            start = time.perf_counter()
            before = self._sent()
            self._found = self._extract(epoch)
            self.remote_bytes += self._sent() - before
            own = self._members("train")
            targets, batches = len(own), config.co_batches or 1
            if config.memory is not None:
                batches = fewest_batches(lambda r: self._bytes_needed(r, own, need), config.memory, max(1, len(own)))
            watch.add_seconds("sample", time.perf_counter() - start)
        self.batches = self._agree(batches, dist.ReduceOp.MAX)
        fewest = self._agree(targets, dist.ReduceOp.MIN)
        if self.batches > max(1, fewest):
            asked = "" if config.memory is None else "memory: takes "
            raise ConfigError(f"{asked}co-batches={self.batches}: a server has only {fewest} training vertices")
        return True

    def whole(self, watch: Stopwatch) -> WorkerView:
        """This trainer's share of the whole subgraph, for runs with one step per epoch. The subgraph is released."""
        start = time.perf_counter()
        ready = self._share(lambda found: found)
        _count(watch, start, ready)
        self._found = None
        return ready.view

    def steps(self, epoch: int, watch: Stopwatch) -> Iterator[WorkerView]:
        """This trainer's share of each co-batch of an epoch."""
        return self._each(divide_targets(self._members("train"), self.batches, self.config.seed, epoch), watch)

    def evaluation(self, watch: Stopwatch) -> Iterator[WorkerView]:
        """This trainer's share of co-batches of validation and test vertices. There are as many as in training, so they
        fit too."""
        members = self._members("val", "test")
        count = torch.tensor(min(self.batches, len(members)), device=self.device)
        dist.broadcast(count, self.groups.place.leader, group=self.groups.inside)  # the others hold no members
        return self._each(np.array_split(members, int(count)) if int(count) else [], watch)

    def _each(self, groups: Sequence[Longs], watch: Stopwatch) -> Iterator[WorkerView]:
        """Yield this trainer's share of each group's co-batch; the next one is made while the current one is in use."""
        start = time.perf_counter()
        depth = self.config.depth
        parts = (self._share(partial(ServerGraph.co_batch, targets=targets, hops=depth)) for targets in groups)
        for ready in one_ahead(parts):
            _count(watch, start, ready)
            yield ready.view
            start = time.perf_counter()

    def _share(self, part: Callable[[ServerGraph], ServerGraph]) -> _Ready:
        if not self._leads:
            return _Ready(self._handover.take(), 0.0)
        assert self._found is not None
        tries = 1 if self.batches > 1 else 3  # a split that is used once is not worth three attempts
        shares = self._divide(part(self._found), tries)
        ready = _Ready(next(shares), time.perf_counter())
        self._handover.give(shares)
        return ready

    def _divide(self, found: ServerGraph, tries: int) -> Iterator[WorkerView]:
        place = self.groups.place
        return divide(
            found, place.trainers, place.machines, seed=self.config.seed, tries=tries, halo=self._halo, task=self._task
        )

    def _extract(self, epoch: int) -> ServerGraph:
        config, cluster, server = self.config, self.cluster, self.groups.place.server
        inner: Longs | None = None
        if config.servers == 1 and cluster.num_parts > 1:
            owned = [
                atta.server_subgraph(cluster, rule=Closure(0), part=part, tables=[], splits=(), edge_ids=False).n_id
                for part in range(cluster.num_parts)
            ]
            inner = np.sort(np.concatenate(owned))
        rule = Closure(1, rim=False) if self._halo else config.rule(epoch)
        found = atta.server_subgraph(
            cluster, inner, rule, part=server, tables=["x", "y"], edge_ids=False, seed=config.seed
        )
        targets = torch.from_numpy(self._task.target_array(found.tables["y"]))
        known = self._task.known(targets).numpy()
        return replace(found, splits={name: members & known for name, members in found.splits.items()})

    def _sent(self) -> float:
        """Bytes that the daemons of this server have received from others since they started."""
        daemons = self.cluster.stats()
        if self.config.servers > 1:
            # What a daemon of several servers has received counts for the first of them.
            server = self.groups.place.server
            daemon = self.cluster.daemon_of(server)
            daemons = [daemons[daemon]] if self.cluster.parts[daemon].start == server else []
        return sum(counters.get("remote_bytes", 0.0) for counters in daemons)

    def _members(self, *splits: str) -> Longs:
        """Inner vertices in any of the splits, int64, ascending; empty if this trainer does not hold the subgraph."""
        found = self._found
        if found is None:
            return np.empty(0, np.int64)
        wanted = np.zeros(found.num_nodes, np.bool_)
        for split in splits:
            wanted |= found.splits.get(split, False)
        return np.flatnonzero(wanted & found.inner)

    def _bytes_needed(self, batches: int, targets: Longs, need: Callable[[WorkerView], int]) -> int:
        assert self._found is not None
        parts = [self._found]
        if batches > 1:
            groups = divide_targets(targets, batches, self.config.seed, 0)[:_COUNTED]
            parts = [self._found.co_batch(group, self.config.depth) for group in groups]
        return max(need(view) for part in parts for view in self._divide(part, tries=1))

    def _agree(self, value: int, operation: dist.ReduceOp.RedOpType) -> int:
        tensor = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=operation)
        return int(tensor)


def _count(watch: Stopwatch, start: float, ready: _Ready) -> None:
    """Count the time from ``start`` until now, during which the trainer waited for a share."""
    now = time.perf_counter()
    divided = min(max(start, ready.divided), now)
    watch.add_seconds("sample", divided - start)
    watch.add_seconds("fetch", now - divided)


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items`` in order; a thread makes the next one while the current one is in use. If making an item raises
    an error, the error is raised in place of the item. The threads are daemon threads, one at a time. So a consumer
    that stops early, by an error or Ctrl-C, does not wait for the item that is being made."""
    source, end = iter(items), object()

    def begin() -> Future[object]:
        return begun(lambda: next(source, end), "atta-ahead")

    coming = begin()
    while (item := coming.result()) is not end:
        coming = begin()
        yield item  # type: ignore[misc]  # only the end marker is not a T
