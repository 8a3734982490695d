"""``atta simulate --measure``: a profile of this machine, from real epochs of real daemons.

::

    four short runs      with the loader's batches, with batches of a quarter of the size, with few vertices, and with
       |                 the first hop alone
       |-- counters of the daemons (``cost_*``)         -> CPU per task kind: fixed and per unit of cost
       |-- CPU time of the event loops                  -> CPU per batch, per task and per request
       |-- CPU time of all other threads without tasks  -> CPU per batch, per request and per byte moved
       '-- the batches themselves                       -> new vertices per hop, at home and elsewhere

Every daemon counts the CPU time of its tasks, thread by thread (``atta.daemon.engine.task_costs``). So a machine that
is shared with others, or by several daemons, gives the same costs as an idle one. Waiting and transfer times are not
measured, they are simulated. ``fitting`` makes the profile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from atta.client.cluster import Cluster, connect
from atta.client.loaders.minibatch import MiniBatch
from atta.client.loaders.neighbor import NeighborLoader
from atta.client.local import local
from atta.errors import ConfigError
from atta.observe.versions import machine, versions
from atta.partition.dataset import Dataset
from atta.simulate.drawn import added, expanded_by_hop, together
from atta.simulate.fitting import MOST_REPEATS, Measurements, ServedDataset, merged, profile_of
from atta.simulate.profile import Profile

__all__ = ["measure"]

SMALLER = 4
"""Factor by which batches of the second run are smaller. Those of the last run have fewer tasks and requests. So the
costs per batch, per request and per byte can be told apart."""
FEWEST = 256
"""Factor by which batches of the third run are smaller. Their vertices lie with few owners, so they have as many tasks,
but fewer requests."""
MOST_FEW = 300
"""Most batches of that run, per rank and epoch."""
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
    say: Say = lambda _: None,
) -> Profile:
    """Measure the batches of one trainer per partition of ``source``.

    ``source``: a partitioned dataset, or a cluster (file or addresses).
    ``data``: the dataset that a cluster serves; without it only the mean share at home over all hops is known.
    ``threads``: worker threads of a daemon that is started here. Every run has a warm-up epoch before its measured
    ``epochs``.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        RemoteError: a daemon failed.
    """
    served = source if Path(source).is_dir() else data
    dataset = None if served is None else Dataset.open(served, parts=[], verify=False)
    hops = tuple(fan_outs)
    settings = [
        ("batches", batch_size, hops, None),
        ("small batches", max(1, batch_size // SMALLER), hops, None),
        ("few vertices", max(1, batch_size // FEWEST), (1,) * len(hops), MOST_FEW),
    ]
    if len(hops) > 1:
        settings.append(("one hop", batch_size, hops[:1], None))
    runs = []
    for name, size, some, most in settings:
        say(f"measuring {name}: {size} seeds, fan-outs {','.join(map(str, some))}, {epochs} epochs after a warm-up")
        with _opened(source, threads) as cluster:
            if dataset is not None and cluster.dataset_id != dataset.dataset_id:
                raise ConfigError(f"the cluster serves dataset {cluster.dataset_id}, {served} is {dataset.dataset_id}")
            runs.append(_run(cluster, dataset, some, split, size=size, epochs=epochs, most=most))
            described = ServedDataset.of(cluster, split)
    return profile_of(runs, described, batch_size, hops, measured=_provenance(source, epochs, threads))


def _opened(source: str | Path, threads: int) -> Cluster:
    """Running daemons, or new ones that keep no rows of others, so that all rows that batches ask for are sent."""
    if not Path(source).is_dir():
        return connect(source if isinstance(source, Path) else str(source), wait=True)
    return local(source, threads=threads, verify=False, options=("--cache-share", "0", "--no-share-pulls"))


def _run(
    cluster: Cluster,
    dataset: Dataset | None,
    fan_outs: Sequence[int],
    split: str,
    *,
    size: int,
    epochs: int,
    most: int | None,
) -> Measurements:
    """One warm-up epoch, then the measured ones; a thread per rank. ``most``: batches of an epoch, None for all."""
    ranks = cluster.num_parts
    loaders = [
        NeighborLoader(
            cluster, list(fan_outs), split, batch_size=size, shuffle=True, rank=rank, world_size=ranks, job="measure"
        )
        for rank in range(ranks)
    ]
    _side_by_side(loaders, [Measurements() for _ in loaders], dataset, size, most)
    before = _totals(cluster)
    parts = [Measurements() for _ in loaders]
    for _ in range(epochs):
        _side_by_side(loaders, parts, dataset, size, most)
    whole = merged(parts)
    after = _totals(cluster)
    whole.totals = {name: value - before.get(name, 0.0) for name, value in after.items()}
    if whole.of("seed", "cpu", "n") == 0:
        raise ConfigError(
            f"{cluster.addresses[0]}: this daemon does not count what tasks cost; it is too old, or stood still"
        )
    return whole


def _side_by_side(
    loaders: Sequence[NeighborLoader],
    seen: Sequence[Measurements],
    dataset: Dataset | None,
    size: int,
    most: int | None,
) -> None:
    failures: list[BaseException] = []

    def consume(rank: int) -> None:
        try:
            batches, cpu = iter(loaders[rank]), time.thread_time()
            for batch in islice(batches, most):
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


def _count(seen: Measurements, batch: MiniBatch, dataset: Dataset | None, rank: int, size: int) -> None:
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


def _count_remote(seen: Measurements, node_type: str, vertices: np.ndarray, known: int) -> None:
    """Count a batch's remote vertices (internal ids). If there are many, every n-th one stands for the others."""
    step = -(-known // MOST_COUNTED)
    counts = seen.wanted.setdefault(node_type, np.zeros(-(-known // step), dtype=np.int32))
    counts[vertices[vertices % step == 0] // step] += 1


def _totals(cluster: Cluster) -> dict[str, float]:
    total: dict[str, float] = {}
    for counters in cluster.stats():
        for name, value in counters.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _provenance(source: str | Path, epochs: int, threads: int) -> dict[str, Any]:
    return {
        "source": Path(source).name,
        "epochs": epochs,
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
    }
