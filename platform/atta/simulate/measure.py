"""``atta simulate --measure``: a profile of this machine, from real epochs of real daemons.

::

    short runs           with the loader's batches, with batches of a quarter of the size, with few vertices, with the
       |                 first hop alone, with an epoch in a batch, and with one consumer at a time
       |-- counters of the daemons (``cost_*``)         -> CPU per task kind: fixed and per unit of cost
       |-- CPU time of the event loops                  -> CPU per session, batch, task and request
       |-- CPU time of all other threads without tasks  -> CPU per session, batch, request and byte moved
       '-- CPU time with one consumer at a time         -> how much more it is if all parts share the cores
    the same batches again, unmeasured                  -> new vertices per hop, at home and elsewhere

Every daemon counts the CPU time of its tasks, thread by thread (``atta.daemon.engine.runner``). So a machine that
is shared with others gives nearly the same costs as an idle one. Consumers are processes of their own, and do nothing
but take batches (``consumers``). What is in the batches is counted later: consumers that count leave daemons without
work, and processors with less to do work faster. Transfers and queues are not measured, they are simulated. What a
machine lets threads wait although nothing is in their way is measured apart (``atta.observe.machine.threads``).
``fitting`` makes the profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atta.client.cluster import Cluster, connect
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.client.local import LocalCluster, local
from atta.errors import ConfigError
from atta.observe.machine.threads import timer_lateness_s, wake_s
from atta.observe.packages import machine, versions
from atta.partition.dataset import Dataset
from atta.simulate.consumers import Consumers, Start, start_here
from atta.simulate.fitting import (
    MOST_REPEATS,
    BatchOptions,
    Measurements,
    ServedDataset,
    Waits,
    added,
    merged,
    profile_of,
    summed_counters,
)
from atta.simulate.profile import Profile
from atta.simulate.reach import expanded_by_hop, together

SMALLER = 4
"""Factor by which batches of the second run are smaller. Those of the last run have fewer tasks and requests. So the
costs per batch, per request and per byte can be told apart."""
FEWEST = 256
"""Factor by which batches of the third run are smaller. Their vertices lie with few owners, so they have as many tasks,
but fewer requests."""
MOST_FEW = 150
"""Most batches of that run, per rank and epoch."""
OPENINGS = 4
"""Factor by which there are more epochs of a single batch."""
WARM_UP_BATCHES = 24
"""Least number of batches of a consumer before those that are measured: daemons make buffers in the beginning."""
MOST_COUNTED = 1 << 22
"""Largest number of counters per node type and rank."""
Say = Callable[[str], None]


def measure(
    source: str | Path,
    *,
    data: str | Path | None = None,
    batch_size: int = 1024,
    fan_outs: Sequence[int] = (15, 10, 5),
    split: str = "train",
    epochs: int = 2,
    threads: int = 1,
    loader: Mapping[str, Any] | None = None,
    daemon: Sequence[str] = (),
    say: Say = lambda _: None,
    start: Start = start_here,
) -> Profile:
    """Measure the batches of one trainer per partition of ``source``.

    ``source``: a partitioned dataset, or a cluster (file or addresses). ``data``: the dataset that a cluster serves;
    without it only the mean share at home over all hops is known. ``threads``: worker threads of a daemon that is
    started here; ``daemon``: options of its cache. ``loader``: further arguments of ``NeighborLoader``; one that
    aggregates asks for no ids of edges. Every run has a warm-up before its measured ``epochs``. ``start``: starts the
    process of a rank's consumer. It belongs on the machine of its partition's daemon: daemons of other machines would
    make its batches less often than they do for trainers. Raises DataError, ConfigError: the dataset or a setting is
    wrong; AttaError: a daemon or a consumer failed."""
    served = source if Path(source).is_dir() else data
    dataset = None if served is None else Dataset.open(served, parts=[], verify=False)
    hops, loader = tuple(fan_outs), dict(loader or {})
    if loader.get("aggregate") and dataset is None:
        raise ConfigError("--aggregate: needs the dataset, which tells the rows that sums stand for (--data)")
    follows = loader.get("dependency", 1) > 1 or "recent" in daemon
    keeps = (*(() if follows else ("--no-share-pulls",)), "--no-cache-edges", *daemon)
    keeps += () if "--cache-share" in daemon else ("--cache-share", "0")
    runs: list[Measurements] = []
    for run in _runs(batch_size, hops, epochs):
        say(f"measuring {run.name}: fan-outs {','.join(map(str, run.fan_outs))}, {run.epochs} epochs after a warm-up")
        with _opened(source, threads, keeps) as cluster:
            if dataset is not None and cluster.dataset_id != dataset.dataset_id:
                raise ConfigError(f"the cluster serves dataset {cluster.dataset_id}, {served} is {dataset.dataset_id}")
            described = ServedDataset.of(cluster, split)
            window = int(cluster.stats()[0].get("window", 0)) if not loader.get("aggregate") else 0
            by_rank = _of_loaders(run, described, split, loader)
            loaders = [NeighborLoader(cluster, **{**of_loader, "edge_ids": True}) for of_loader in by_rank]
            target = cluster.cluster_file if isinstance(cluster, LocalCluster) else source
            of_epoch = min(len(loaders[0]), run.most or len(loaders[0]))
            warm_up = 1 if run.size is None else -(-WARM_UP_BATCHES // of_epoch)  # in epochs
            with Consumers(str(target), by_rank, start) as consumers:
                found = _measured(cluster, consumers, run, warm_up)
            found.totals["late_rows"] = found.totals.get("cached_rows", 0.0) if window else 0.0
            if not runs:  # the profile's own batches
                measured = range(warm_up, warm_up + run.epochs)
                found = replace(_counted(loaders, dataset, run.size, measured), totals=found.totals, cpu_s=found.cpu_s)
            runs.append(found)
    if "--cache-share" in daemon and not runs[0].rows()[1]:
        say("no row was cached: there may be no memory for a cache (log lines above)")
    *together, alone = runs
    notes = {
        "source": Path(source).name,
        "epochs": epochs,
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
        "dataset_id": described.dataset_id,
        "batches": [run.batches for run in together],
        "cpu_ms_per_batch": 1e3 * runs[0].batch_cpu_s(),
        "loader": loader,
        "daemon": list(daemon),
    }
    waits = Waits(wake_s(), timer_lateness_s())
    how = BatchOptions(loader.get("aggregate", ""), window, follows or window > 0)
    return profile_of(together, described, batch_size, hops, alone=alone, waits=waits, measured=notes, how=how)


@dataclass(frozen=True)
class _MeasuredRun:
    name: str
    size: int | None
    """Seeds of a batch; None: all of an epoch."""
    fan_outs: tuple[int, ...]
    epochs: int
    most: int | None = None
    """Batches of an epoch; None: all."""
    alone: bool = False
    """Whether only one consumer works at a time."""


def _runs(batch_size: int, hops: tuple[int, ...], epochs: int) -> list[_MeasuredRun]:
    """The profile's own batches first, and last the same with one consumer at a time."""
    found = [
        _MeasuredRun("batches", batch_size, hops, epochs),
        _MeasuredRun("small batches", max(1, batch_size // SMALLER), hops, epochs),
        _MeasuredRun("few vertices", max(1, batch_size // FEWEST), (1,) * len(hops), epochs, most=MOST_FEW),
        _MeasuredRun("epochs of one batch", None, (1,), OPENINGS * epochs),
    ]
    if len(hops) > 1:
        found.append(_MeasuredRun("one hop", batch_size, hops[:1], epochs))
    return [*found, _MeasuredRun("one consumer at a time", batch_size, hops, epochs, alone=True)]


def _opened(source: str | Path, threads: int, keeps: Sequence[str]) -> Cluster:
    """Running daemons, or new ones with the options ``keeps``."""
    if not Path(source).is_dir():
        return connect(source if isinstance(source, Path) else str(source))
    return local(source, threads=threads, verify=False, options=tuple(keeps))


def _of_loaders(
    run: _MeasuredRun, described: ServedDataset, split: str, loader: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Arguments of ``NeighborLoader`` by rank. Two loaders with the same ones have the same batches."""
    size, ranks = run.size or max(1, described.epoch_seeds), described.parts
    about = {"num_neighbors": [*run.fan_outs], "input_nodes": split, "batch_size": size, "shuffle": True, **loader}
    about["edge_ids"] = not loader.get("aggregate")
    return [{**about, "rank": rank, "world_size": ranks, "job": "measure"} for rank in range(ranks)]


def _measured(cluster: Cluster, consumers: Consumers, run: _MeasuredRun, warm_up: int) -> Measurements:
    """What batches cost after ``warm_up`` epochs."""
    consumers.take(warm_up, run.most, alone=run.alone)
    before = summed_counters(cluster.stats())
    taken = consumers.take(run.epochs, run.most, alone=run.alone)
    after = summed_counters(cluster.stats())
    totals = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = Measurements(batches=taken.batches, totals=totals, cpu_s=taken.cpu_s)
    if found.of("seed", "cpu", "n") == 0:
        raise ConfigError(f"{cluster.addresses[0]}: this daemon has counted no tasks; it stood still")
    return found


def _counted(
    loaders: Sequence[NeighborLoader], dataset: Dataset | None, size: int | None, epochs: range
) -> Measurements:
    """What is in the measured batches, rank by rank side by side. ``loaders`` have these batches, too."""

    def count(rank: int) -> Measurements:
        seen = Measurements()
        for epoch in epochs:
            for batch in loaders[rank].resume(epoch, 0):
                _count(seen, batch, dataset, rank, size)
        return seen

    with ThreadPoolExecutor(len(loaders)) as pool:
        return merged(list(pool.map(count, range(len(loaders)))))


def _count(seen: Measurements, batch: MiniBatch, dataset: Dataset | None, rank: int, size: int | None) -> None:
    fresh, home = np.zeros(0), np.zeros(0)
    mine_of: dict[str, np.ndarray] = {}
    for node_type in batch.node_types:
        steps = np.asarray(batch.num_sampled_nodes(node_type), dtype=np.float64)
        fresh = added(fresh, steps)
        if dataset is not None:
            internal = dataset.to_internal(node_type, batch.n_id(node_type))
            owners = dataset.book.owner(node_type, internal)
            if batch.batch_size == size and len(seen.sizes) < MOST_REPEATS:
                remote, known = internal[owners != rank], dataset.schema.node_counts[node_type]
                step = -(-known // MOST_COUNTED)  # if there are many, every n-th vertex stands for the others
                counts = seen.wanted.setdefault(node_type, np.zeros(-(-known // step), dtype=np.int32))
                counts[remote[remote % step == 0] // step] += 1
            seen.owners = added(seen.owners, np.bincount(owners, minlength=dataset.num_parts))
            mine = mine_of[node_type] = (owners == rank).astype(np.float64)
            ends = np.cumsum(steps).astype(np.int64)
            home = added(home, np.array([part.sum() for part in np.split(mine, ends[:-1])]))
    if dataset is not None:
        seen.expanded = together(seen.expanded, expanded_by_hop(batch, mine_of))
    seen.batches += 1
    seen.fresh, seen.home = list(added(seen.fresh, fresh)), list(added(seen.home, home))
    seen.nbytes += sum(rows.nbytes for tables in batch.tables.values() for rows in tables.values())
    if batch.aggregates:  # trainers get no vertices and edges of the last hop
        known = sum(map(batch.num_known, batch.node_types))
        last = sum(batch.num_sampled_edges(edge_type)[-1] for edge_type in batch.edge_types)
        seen.nbytes += sum(sums.nbytes for tables in batch.aggregates.values() for sums in tables.values())
        seen.nbytes += 8.0 * known + 16.0 * (batch.num_edges - last)
    else:
        seen.nbytes += 8.0 * batch.num_nodes + 24.0 * batch.num_edges  # n_id; row, col and edge id
    if batch.batch_size == size:
        seen.sizes.append(float(batch.num_nodes))
