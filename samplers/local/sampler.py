"""Neighbour sampling over a whole graph in this process, without daemons. The same seed, epoch, batch number and user
ids give the distributed loader's subgraph."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from atta.errors import ConfigError, blaming, known_name
from atta.samplers import kernels
from atta.samplers.arguments import check_fan_out, fan_outs_of, flag, integers, whole
from atta.samplers.batch.scratch import Scratch
from atta.samplers.dag.plan import SpecLimits
from atta.samplers.hashing import stream_of
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.growth import EdgeType, Growth, keys_by_type, times_by_type
from atta.samplers.methods import Method

_FRONTIERS = ("new", "all")
_TOGETHER = 2
"""Number of batches that a thread makes before it hands them over."""
_MOST = (1 << 64) - 1
_MOST_FAN_OUT = (1 << 31) - 1


class LocalSampler:
    """Samples batches from local graphs. Safe to use from several threads, if each works on a batch of its own."""

    def __init__(
        self,
        graph: LocalGraph | Mapping[str, LocalGraph],
        *,
        edge_type: str = "node__to__node",
        method: Method | str = Method.UNIFORM,
        threads: int = 1,
    ) -> None:
        """Prepare to sample ``graph``, or several by edge type (``"src__rel__dst"``): batches are ``LocalBatch`` for
        one graph, ``HeteroBatch`` for a mapping. ``edge_type``: the name that the edges of a single graph have in a
        dataset; the draws depend on it. ``threads`` make the method's tables. Raises ConfigError: the method is
        unknown, its weights or times are missing, or graphs contradict each other."""
        self._single = isinstance(graph, LocalGraph)
        graphs = {edge_type: graph} if isinstance(graph, LocalGraph) else dict(sorted(graph.items()))
        self.method = method if isinstance(method, Method) else Method(method)
        self._edges = {name: EdgeType(name, g, self.method, threads) for name, g in graphs.items()}
        self._keys, self._times_of = keys_by_type(self._edges.values()), times_by_type(self._edges.values())
        if self.method.temporal and not self._times_of and not any(g.time is not None for g in graphs.values()):
            raise ConfigError("neither edges nor vertices have times to draw by")
        self._pools: dict[tuple[str, bool], list[kernels.Compactor]] = {}
        self._scratch = Scratch()
        self._lock = threading.Lock()

    @cached_property
    def table_bytes(self) -> int:
        """Bytes of the method's tables."""
        return sum(0 if e.tables is None else e.tables.nbytes for e in self._edges.values())

    def sample(
        self,
        seeds: Any,
        num_neighbors: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        seed_type: str | None = None,
        input_time: Any = None,
        disjoint: bool = False,
        seed: int = 0,
        epoch: int = 0,
        batch: int = 0,
        replace: bool = False,
        frontier: str = "new",
        dependency: int = 1,
    ) -> Any:
        """Sample the neighbourhoods of ``seeds`` (positions in the graph, int [S]; a repeated seed counts once).

        Args:
            num_neighbors: in-neighbours per vertex and hop, from the seeds outward; -1 takes all. A mapping gives the
                numbers by edge type.
            seed_type: node type of the seeds; by default the only one.
            input_time: int [S], the seeds' times for a temporal method: no edge of a seed's tree is later, and no vertex
                but the seed itself. Implies ``disjoint``. Default: the vertices' own times, if they have any.
            disjoint: every seed grows a tree of its own, repeated seeds too.
            seed, epoch, batch: the draws are a function of these whole numbers, 0 to 2**64 - 1, and of user ids.
            frontier: a hop expands the vertices that the previous hop has reached (``"new"``, PyG) or all known
                vertices (``"all"``, DGL).
            dependency: in so many batches each vertex draws its in-edges anew once; 1: each batch does.

        Raises ConfigError: a seed outside the graph, a fan-out below -1, an unknown frontier, missing times, a number that is
        not whole or does not fit."""
        if frontier not in _FRONTIERS:
            raise ConfigError(f"frontier {frontier!r}: must be one of {', '.join(_FRONTIERS)}")
        fan_outs = self._fan_outs(num_neighbors)
        if seed_type is None and len(self._keys) > 1:
            raise ConfigError(f"seed_type: name one of {', '.join(self._keys)}")
        start = next(iter(self._keys)) if seed_type is None else known_name("node type", seed_type, self._keys)
        ids = integers("seeds", seeds)
        if ids.ndim != 1:
            raise ConfigError(f"seeds: must be a list of vertices, not of shape {list(ids.shape)}")
        at = whole("seed", seed, 0, _MOST), whole("epoch", epoch, 0, _MOST), whole("batch", batch, 0, _MOST)
        replace, dependency = flag("replace", replace), whole("dependency", dependency, 1, SpecLimits.dependency)
        times = self._given_times(input_time, start, len(ids))
        trees = flag("disjoint", disjoint) or self.method.temporal
        known = {t: self._take(t, hashed=trees) for t in self._keys}
        try:
            with blaming(ConfigError, of=ValueError):
                if trees:
                    nodes = self._keys[start].count
                    if len(ids) and not (ids.min() >= 0 and ids.max() < nodes):
                        raise ConfigError(f"seeds: outside 0..{nodes - 1}")
                    if self.method.temporal and times is None:
                        times = self._times_of[start][ids]
                    ids = np.arange(len(ids)) * nodes + ids
                known[start].insert(ids)
                grown = Growth(known, self._edges, self._scratch, trees=trees, times=times)
                grown.reserve(fan_outs, everything=frontier == "all")
                for hop, by_type in enumerate(fan_outs, start=1):
                    keys = {name: stream_of(at, hop, self._edges[name].hash, dependency) for name in by_type}
                    grown.hop(by_type, keys, replace=replace, everything=frontier == "all")
                found = grown.batch(self._keys)
                return found.only() if self._single else found
        finally:
            for node_type, compactor in known.items():
                compactor.reset()
                with self._lock:
                    self._pools[node_type, trees].append(compactor)

    def batches(
        self,
        seeds: Any,
        num_neighbors: Sequence[int] | Mapping[str, Sequence[int]],
        batch_size: int,
        *,
        threads: int = 1,
        **options: Any,
    ) -> Iterator[Any]:
        """Sample ``seeds`` in order, ``batch_size`` at a time. Several ``threads`` work ahead of the consumer, on two
        batches each. ``options``: as for ``sample`` (``batch`` is the number of the first batch, ``input_time`` belongs
        to all seeds). Batches come in order with any number of threads."""
        batch_size, threads = whole("batch_size", batch_size, 1), whole("threads", threads, 1)
        ids, times = integers("seeds", seeds), options.pop("input_time", None)
        first = whole("batch", options.pop("batch", 0), 0, _MOST)
        if times is not None:
            times = integers("input_time", times)
        starts = range(0, len(ids), batch_size)

        def make(numbers: range) -> list[Any]:
            made = []
            for i in numbers:
                part = slice(starts[i], starts[i] + batch_size)
                of_seeds = None if times is None else times[part]
                made.append(self.sample(ids[part], num_neighbors, batch=first + i, input_time=of_seeds, **options))
            return made

        if threads == 1:  # passing a small batch to a thread and back would take a tenth of its time
            yield from (batch for i in range(len(starts)) for batch in make(range(i, i + 1)))
            return
        waiting: deque[Future[list[Any]]] = deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="atta-sample") as pool:
            try:
                for at in range(0, len(starts), _TOGETHER):
                    waiting.append(pool.submit(make, range(at, min(at + _TOGETHER, len(starts)))))
                    if len(waiting) > threads:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _fan_outs(self, num_neighbors: Sequence[int] | Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
        if isinstance(num_neighbors, Mapping):
            given = {name: fan_outs_of(counts) for name, counts in num_neighbors.items()}
        else:
            given = dict.fromkeys(self._edges, fan_outs_of(num_neighbors))
        for name in given:
            known_name("edge type", name, self._edges)
        if len(given) < len(self._edges) or len({len(counts) for counts in given.values()}) > 1:
            raise ConfigError("num_neighbors: give one fan-out per hop for every edge type")
        by_hop: list[dict[str, int]] = []
        for hop in range(len(next(iter(given.values())))):
            counts = {name: check_fan_out(f"num_neighbors, hop {hop + 1}", name, given[name][hop], _MOST_FAN_OUT)
                      for name in self._edges}  # fmt: skip
            by_hop.append({name: count for name, count in counts.items() if count})
        return by_hop

    def _given_times(self, input_time: Any, node_type: str, seeds: int) -> np.ndarray | None:
        """The times that the caller gives ``seeds`` vertices of ``node_type``. None: their own, or none at all."""
        has_own = self.method.temporal and node_type in self._times_of
        if self.method.temporal != (input_time is not None or has_own):
            raise ConfigError("input_time: a temporal method needs the seeds' times, and no other has a use for them")
        if input_time is None:
            return None
        times = integers("input_time", input_time)
        if times.shape != (seeds,):
            raise ConfigError(f"input_time: {times.shape} for {seeds} seeds")
        return times

    def _take(self, node_type: str, *, hashed: bool) -> kernels.Compactor:
        with self._lock:
            free = self._pools.setdefault((node_type, hashed), [])
            return free.pop() if free else kernels.Compactor(0 if hashed else self._keys[node_type].count)
