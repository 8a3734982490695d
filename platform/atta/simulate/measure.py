"""``atta simulate --measure``: a profile of this machine, from real epochs of real daemons.

::

    three short runs      with the loader's batches, with batches of a quarter of the size, and with the first hop alone
       |-- counters of the daemons (``cost_*``, see ``atta.daemon.engine.task_costs``)  -> CPU per task kind: fixed and per unit of cost
       |-- CPU time of all processes without that of tasks                       -> CPU per batch, per request and per byte moved
       '-- the batches themselves                                                -> new vertices per hop, at home and elsewhere

Every daemon counts the CPU time of its tasks, thread by thread, so a machine that is shared with others, or by several daemons,
gives the same costs as an idle one. Waiting and transfer times are not measured: they are what is simulated.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from atta.client.cluster import Cluster, connect
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.client.local import local
from atta.errors import ConfigError
from atta.observe.versions import machine, versions
from atta.partition.dataset import Dataset
from atta.scheduler.costs import Line
from atta.simulate.drawn import Expanded, added, draws_of, expanded_by_hop, together
from atta.simulate.profile import LOCAL_KINDS, HopSize, Linear, Profile, Remote

__all__ = ["measure"]

ID_BYTES = 4.0
"""A vertex in a request."""
SMALLER = 4
"""Batches of the second run are so many times smaller, those of the third have fewer requests: so the costs per batch, per request
and per byte can be told apart."""
MOST_REPEATS = 256
"""Batches of a rank whose remote vertices are counted."""
MOST_COUNTED = 1 << 22
"""Counters per node type and rank."""
Say = Callable[[str], None]


@dataclass
class _Seen:
    """What consumers saw of one run's batches, and what its daemons counted meanwhile."""

    batches: int = 0
    nbytes: float = 0.0
    fresh: list[float] = field(default_factory=list)  # vertices by hop, seeds first
    home: list[float] = field(default_factory=list)  # those of them at home; empty: unknown
    expanded: list[Expanded] = field(default_factory=list)  # vertices by hop, with what they sampled; empty: unknown
    sizes: list[float] = field(default_factory=list)  # vertices of each full batch
    owners: np.ndarray = field(default_factory=lambda: np.zeros(0))  # vertices by owner; empty: unknown
    wanted: dict[str, np.ndarray] = field(default_factory=dict)  # full batches that had a remote vertex, by node type
    by_rank: list[_Seen] = field(default_factory=list)  # what was added up
    totals: dict[str, float] = field(default_factory=dict)  # counters of all daemons: growth in the measured epochs
    cpu_s: float = 0.0  # of the consumers' waiting and taking

    def of(self, kind: str, lane: str, name: str) -> float:
        return self.totals.get(f"cost_{kind}_{lane}_{name}", 0.0)

    def unaccounted_s(self) -> float:
        """CPU time of all processes that belongs to no task."""
        tasks = math.fsum(self.of(kind, "cpu", "y") for kind in LOCAL_KINDS)
        return max(0.0, self.totals["cpu_s"] + self.cpu_s - tasks)

    def requests(self) -> float:
        return self.of("neighborhood", "net", "n") + self.of("feature", "net", "n")

    def hit(self) -> float:
        """Share of the remote rows that a cache had; only daemons that were running have one."""
        rows, cached, shared = (self.totals.get(f"{name}_rows", 0.0) for name in ("remote", "cached", "shared"))
        return cached / (rows + cached + shared) if cached else 0.0

    def at_hand(self) -> float:
        """Share of the remote rows that a cache had, or another batch brought."""
        rows, cached, shared = (self.totals.get(f"{name}_rows", 0.0) for name in ("remote", "cached", "shared"))
        return (cached + shared) / (rows + cached + shared) if cached or shared else 0.0

    def moved(self) -> float:
        return self.of("neighborhood", "net", "y") + self.of("feature", "net", "y")


def measure(
    source: str | Path,
    *,
    data: str | Path | None = None,
    batch_size: int = 1024,
    fan_outs: Sequence[int] = (15, 10, 5),
    split: str = "train",
    epochs: int = 2,
    threads: int = 1,
    say: Say = lambda _: None,
) -> Profile:
    """Measure the batches of one trainer per partition of ``source``: a partitioned dataset, or a cluster (file or addresses).

    ``data``: the dataset that a cluster serves; without it the shares at home are known as a mean over all hops only.
    ``threads``: worker threads of a daemon that is started here. Every run has one more epoch before its measured ``epochs``.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        RemoteError: a daemon failed.
    """
    served = source if Path(source).is_dir() else data
    dataset = None if served is None else Dataset.open(served, parts=[], verify=False)
    hops = tuple(fan_outs)
    settings = [("batches", batch_size, hops), ("small batches", max(1, batch_size // SMALLER), hops)]
    if len(hops) > 1:
        settings.append(("one hop", batch_size, hops[:1]))
    runs = []
    for name, size, some in settings:
        say(f"measuring {name}: {size} seeds, fan-outs {','.join(map(str, some))}, {epochs} epochs after a warm-up")
        with _opened(source, threads) as cluster:
            if dataset is not None and cluster.dataset_id != dataset.dataset_id:
                raise ConfigError(f"the cluster serves dataset {cluster.dataset_id}, {served} is {dataset.dataset_id}")
            runs.append(_run(cluster, dataset, some, split, size=size, epochs=epochs))
            described = _Described.of(cluster, split)
    return _profile(runs, described, batch_size, hops, measured=_provenance(source, epochs, threads))


def _opened(source: str | Path, threads: int) -> Cluster:
    """Running daemons, or new ones that keep no rows of others: what moves is what batches ask for."""
    if not Path(source).is_dir():
        return connect(source if isinstance(source, Path) else str(source), wait=True)
    return local(source, threads=threads, verify=False, options=("--cache-share", "0", "--no-share-pulls"))


@dataclass(frozen=True)
class _Described:
    """What a cluster says of its dataset."""

    dataset_id: str
    parts: int
    mean_degree: float
    epoch_seeds: int
    nodes: int = 0

    @property
    def vertices(self) -> tuple[float, float]:
        """Of a machine, and of all others."""
        own = self.nodes / self.parts
        return own, self.nodes - own

    @classmethod
    def of(cls, cluster: Cluster, split: str) -> _Described:
        schema = cluster.schema
        edges, nodes = sum(schema.edge_counts.values()), sum(schema.node_counts.values())
        seeds = next((schema.splits[t][split] for t in schema.node_types if split in schema.splits[t]), 0)
        return cls(cluster.dataset_id, cluster.num_parts, edges / max(1, nodes), seeds, nodes)


def _run(
    cluster: Cluster, dataset: Dataset | None, fan_outs: Sequence[int], split: str, *, size: int, epochs: int
) -> _Seen:
    """One warm-up epoch, then the measured ones; a thread per rank."""
    ranks = cluster.num_parts
    loaders = [
        NeighborLoader(
            cluster, list(fan_outs), split, batch_size=size, shuffle=True, rank=rank, world_size=ranks, job="measure"
        )
        for rank in range(ranks)
    ]
    _side_by_side(loaders, [_Seen() for _ in loaders], dataset, size)
    before = _totals(cluster)
    parts = [_Seen() for _ in loaders]
    for _ in range(epochs):
        _side_by_side(loaders, parts, dataset, size)
    whole = _merged(parts)
    after = _totals(cluster)
    whole.totals = {name: value - before.get(name, 0.0) for name, value in after.items()}
    if whole.of("seed", "cpu", "n") == 0:
        raise ConfigError(
            f"{cluster.addresses[0]}: this daemon does not count what tasks cost; it is too old, or stood still"
        )
    return whole


def _side_by_side(loaders: Sequence[NeighborLoader], seen: Sequence[_Seen], dataset: Dataset | None, size: int) -> None:
    failures: list[BaseException] = []

    def consume(rank: int) -> None:
        try:
            batches, cpu = iter(loaders[rank]), time.thread_time()
            for batch in batches:
                seen[rank].cpu_s += time.thread_time() - cpu
                _count(seen[rank], batch, dataset, rank, size)
                cpu = time.thread_time()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=consume, args=(rank,), daemon=True) for rank in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _count(seen: _Seen, batch: MiniBatch, dataset: Dataset | None, rank: int, size: int) -> None:
    fresh, home = np.zeros(0), np.zeros(0)
    mine_of: dict[str, np.ndarray] = {}
    for node_type in batch.node_types:
        steps = np.asarray(batch.num_sampled_nodes(node_type), dtype=np.float64)
        fresh = added(fresh, steps)
        if dataset is not None:
            internal = dataset.to_internal(node_type, batch.n_id(node_type))
            owners = dataset.book.owner(node_type, internal)
            if batch.batch_size == size and len(seen.sizes) < MOST_REPEATS:
                _count_remote(seen, node_type, internal[owners != rank], dataset.schema.node_counts[node_type])
            seen.owners = added(seen.owners, np.bincount(owners, minlength=dataset.num_parts))
            mine = mine_of[node_type] = (owners == rank).astype(np.float64)
            ends = np.cumsum(steps).astype(np.int64)
            home = added(home, np.array([part.sum() for part in np.split(mine, ends[:-1])]))
    if dataset is not None:
        seen.expanded = together(seen.expanded, expanded_by_hop(batch, mine_of))
    seen.batches += 1
    seen.fresh, seen.home = list(added(seen.fresh, fresh)), list(added(seen.home, home))
    seen.nbytes += sum(rows.nbytes for tables in batch.tables.values() for rows in tables.values())
    seen.nbytes += 8.0 * batch.num_nodes + 24.0 * batch.num_edges  # n_id; row, col and edge id
    if batch.batch_size == size:
        seen.sizes.append(float(batch.num_nodes))


def _count_remote(seen: _Seen, node_type: str, vertices: np.ndarray, known: int) -> None:
    """Count a batch's remote vertices (internal ids); of many, every n-th one stands for the others."""
    step = -(-known // MOST_COUNTED)
    counts = seen.wanted.setdefault(node_type, np.zeros(-(-known // step), dtype=np.int32))
    counts[vertices[vertices % step == 0] // step] += 1


def _merged(parts: Sequence[_Seen]) -> _Seen:
    whole = _Seen(by_rank=list(parts))
    for part in parts:
        whole.batches += part.batches
        whole.nbytes += part.nbytes
        whole.cpu_s += part.cpu_s
        whole.fresh = list(added(whole.fresh, part.fresh))
        whole.home = list(added(whole.home, part.home))
        whole.sizes += part.sizes
        whole.expanded = together(whole.expanded, part.expanded)
    return whole


def _totals(cluster: Cluster) -> dict[str, float]:
    total: dict[str, float] = {}
    for counters in cluster.stats():
        for name, value in counters.items():
            total[name] = total.get(name, 0.0) + value
    return total


# -- from sums to a profile ------------------------------------------------------------------------------------------------


def _profile(
    runs: Sequence[_Seen],
    described: _Described,
    batch_size: int,
    fan_outs: tuple[int, ...],
    *,
    measured: Mapping[str, Any],
) -> Profile:
    main, all_runs = runs[0], _sum_of(runs)
    batches = max(1, main.batches)
    local_costs = {kind: _cost(all_runs, kind) for kind in LOCAL_KINDS}
    serve = {kind: local_costs[kind] for kind in ("neighborhood", "feature")}
    batch_s, request_s, byte_s = _overheads(runs, serve)
    fetched = main.of("feature", "cpu", "x") + main.of("feature", "net", "x")
    row_bytes = fetched / max(1.0, sum(main.fresh))
    frontier = sum(main.fresh[:-1]) - main.totals.get("remote_frontier", 0.0)
    repeats = _repeats(main.by_rank)
    at_hand = main.at_hand()
    asked = {
        "neighborhood": (main.of("neighborhood", "net", "x"), ID_BYTES / max(1.0, described.mean_degree)),
        "feature": (main.of("feature", "net", "x") * (1 - at_hand), ID_BYTES / max(1.0, row_bytes)),
    }
    remote = {}
    for kind, (units, request_bytes) in asked.items():
        answer = main.of(kind, "net", "y") / units if units else 0.0
        each = Linear(1e6 * request_s / 2, 1e6 * byte_s * answer / 2)  # half of moving bytes at either end
        own = serve[kind]
        remote[kind] = Remote(
            request_bytes, answer, Linear(own.fixed_us + each.fixed_us, own.us_per_unit + each.us_per_unit), each
        )
    return Profile(
        batch_size=batch_size,
        fan_outs=fan_outs,
        hops=_hops(main, fan_outs, batches, fetched),
        local=local_costs,
        remote=remote if described.parts > 1 else {},
        parts=described.parts,
        placement=_placement(main.by_rank),
        spread=float(np.std(np.log(main.sizes))) if len(main.sizes) > 1 else 0.0,
        degree=main.of("neighborhood", "cpu", "x") / frontier if frontier > 0 else described.mean_degree,
        mean_degree=described.mean_degree,
        row_bytes=row_bytes,
        batch_bytes=main.nbytes / batches,
        batch_us=1e6 * batch_s,
        cache_hit=main.hit() if repeats else at_hand,
        repeats=repeats,
        draws=draws_of(main.expanded, fan_outs),
        vertices=described.vertices if main.expanded else (),
        epoch_seeds=described.epoch_seeds,
        cores=len(os.sched_getaffinity(0)),
        measured={**measured, "dataset_id": described.dataset_id, "batches": [run.batches for run in runs]},
    )


def _placement(ranks: Sequence[_Seen]) -> tuple[tuple[float, ...], ...]:
    """See ``Profile.placement``; empty where owners are unknown."""
    if len(ranks) < 2 or any(not len(seen.owners) for seen in ranks):
        return ()
    rows = np.array([seen.owners / max(1, seen.batches) for seen in ranks])
    np.fill_diagonal(rows, 0.0)
    mean = rows.sum() / len(rows)
    return tuple(tuple(map(float, row / mean)) for row in rows) if mean else ()


def _repeats(ranks: Sequence[_Seen]) -> tuple[float, ...]:
    """See ``Profile.repeats``: the mean over the ranks; empty where owners are unknown."""
    batches = min((min(MOST_REPEATS, len(seen.sizes)) for seen in ranks if seen.wanted), default=0)
    if batches < 2 or any(not seen.wanted for seen in ranks):
        return ()
    found = np.zeros(batches)
    for counts in (counts for seen in ranks for counts in seen.wanted.values()):
        found += np.bincount(np.minimum(counts[counts > 0], batches) - 1, minlength=batches)
    return tuple(map(float, found / len(ranks)))


def _sum_of(runs: Sequence[_Seen]) -> _Seen:
    """Counters of all runs: different sizes of tasks tell fixed costs from those per unit."""
    whole = _Seen()
    for run in runs:
        for name, value in run.totals.items():
            whole.totals[name] = whole.totals.get(name, 0.0) + value
    return whole


def _cost(seen: _Seen, kind: str) -> Linear:
    fixed, slope = Line(*(seen.of(kind, "cpu", name) for name in ("n", "x", "xx", "y", "xy"))).fit()
    return Linear(1e6 * fixed, 1e6 * slope)


def _overheads(runs: Sequence[_Seen], serve: Mapping[str, Linear]) -> tuple[float, float, float]:
    """CPU seconds per batch, per request and per byte that explain what no task and no serving accounts for, none negative.

    Answering a request costs what the same task costs at home, besides the transport.
    """
    rows, rest = [], []
    for run in runs:
        served = 0.0
        for kind, cost in serve.items():
            units = run.of(kind, "net", "x") * (1.0 - run.at_hand() if kind == "feature" else 1.0)
            served += 1e-6 * (cost.fixed_us * run.of(kind, "net", "n") + cost.us_per_unit * units)
        rows.append([float(run.batches), run.requests(), run.moved()])
        rest.append(max(0.0, run.unaccounted_s() - served))
    table = np.array(rows)
    scale = np.where(
        table.max(axis=0) > 0, table.max(axis=0), 1.0
    )  # columns of like size: bytes outnumber batches by millions
    if len(runs) < 3:
        table[:, 1] = 0.0  # two runs do not tell requests from batches
    found, _ = nnls(table / scale, np.array(rest))
    batch_s, request_s, byte_s = (float(v) for v in found / scale)
    return batch_s, request_s, byte_s


def _hops(main: _Seen, fan_outs: Sequence[int], batches: int, fetched: float) -> tuple[HopSize, ...]:
    everywhere = main.of("feature", "cpu", "x") / fetched if fetched else 1.0
    found = []
    for hop in range(len(fan_outs) + 1):
        fresh = main.fresh[hop] if hop < len(main.fresh) else 0.0
        at_home = main.home[hop] / fresh if hop < len(main.home) and fresh else (1.0 if hop == 0 else everywhere)
        found.append(HopSize(fresh / batches, min(1.0, at_home)))
    return tuple(found)


def _provenance(source: str | Path, epochs: int, threads: int) -> dict[str, Any]:
    return {
        "source": Path(source).name,
        "epochs": epochs,
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
    }
