"""A measured process of ``atta bench loader``: iterates over a loader and does nothing else with the batches.

python -m atta_bench.loader.consumer '{"addresses": ["127.0.0.1:7070", ...], "rank": 0, ...}'
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import atta
from atta_bench.lab.workload import Epoch, RankConfig, Reporter


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(RankConfig):
    """Settings of a consumer.

    Attributes:
        addresses: addresses of the daemons, by partition.
        frontier: ``"new"`` or ``"all"``, see ``NeighborLoader``.
        deliver: form in which it takes batches, a key of ``DELIVERIES``.
        aggregate: see ``NeighborLoader``. Who makes means asks for no ids of edges.
    """

    addresses: tuple[str, ...]
    frontier: str
    deliver: str
    aggregate: str | None = None


def _as_dgl(batch: atta.MiniBatch) -> Any:
    """DGL's blocks, and tensors of all rows, as DistDGL's loader and its pulls give them."""
    import torch

    rows = [torch.from_numpy(array) for tables in batch.tables.values() for array in tables.values()]
    return batch.to_dgl(), rows


def _means(batch: atta.MiniBatch) -> Any:
    """The first layer's means, as Atta's own trainer makes them."""
    import torch

    from atta.nn import neighbor_sums
    from atta.train.models import row_starts

    sizes, edges, x = batch.num_sampled_nodes(), batch.edge_index(), batch.table("x")
    last = slice(-batch.num_sampled_edges()[-1] if batch.origin.redrawn[-1] else None, None)
    row, col = (torch.from_numpy(ends[last]) for ends in edges)
    return neighbor_sums(torch.from_numpy(x), row_starts(col, sum(sizes[:-1])), row, "mean")[0]


DELIVERIES: dict[str, Callable[[atta.MiniBatch], Any]] = {
    "arrays": lambda batch: batch,
    "pyg": lambda batch: batch.to_pyg(),
    "dgl": _as_dgl,
    "mean": _means,
}


def main() -> None:
    """Run the epochs that the benchmark asks for."""
    config = ConsumerConfig.read(sys.argv[1])
    reporter = Reporter()
    if config.deliver != "arrays":
        import torch

        torch.set_num_threads(config.threads)
    with atta.connect(config.addresses, wait=True, deadline_s=120.0) as cluster:
        # Users of DGL fetch labels of the seeds only, and so do trainers. Others get the labels of all vertices.
        of_seeds = config.deliver in ("dgl", "mean") or config.aggregate is not None
        edge_ids = config.aggregate is None and config.deliver != "mean"
        seed_tables = labels(cluster) if of_seeds else ()
        loader = open_loader(config, cluster, seed_tables=seed_tables, edge_ids=edge_ids)
        for number in range(config.warm_up):
            warm = _epoch(config, loader, number)
        epochs = config.warm_up
        for measured in reporter.stretches(warm):
            loader.epochs = epochs = epochs + measured
            for number in range(measured):
                epoch = _epoch(config, loader, number)
                if number + 1 == measured:
                    epoch.queue_bytes = cluster.stats()[config.rank]["scheduler_finished_bytes_peak"]
                reporter.report(epoch)


def labels(cluster: atta.Cluster) -> list[str]:
    """Name of the table of labels, if the seeds have one."""
    return [name for name in next(iter(cluster.schema.node_tables.values())) if name == "y"]


def open_loader(config: ConsumerConfig, cluster: atta.Cluster, **options: Any) -> atta.NeighborLoader:
    """The loader of this consumer; ``options`` are further ones of ``NeighborLoader``."""
    return atta.NeighborLoader(
        cluster,
        config.num_neighbors,
        config.split,
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=config.drop_last,
        seed_policy=config.seeds,
        rank=config.rank,
        world_size=config.world_size,
        frontier=config.frontier,
        method=config.method,
        dependency=config.dependency,
        aggregate=config.aggregate,
        seed=config.seed,
        job="bench",
        epochs=config.warm_up,  # daemons prepare no batch of the measured epochs before they begin
        **options,
    )


def _epoch(config: ConsumerConfig, loader: atta.NeighborLoader, number: int) -> Epoch:
    deliver = DELIVERIES[config.deliver]
    out = Epoch(config.rank, number, remote_rows=0.0, remote_bytes=0.0)
    with out.timed():
        for batch in loader:
            deliver(batch)
            count(out, batch)
            if config.think_ms:
                time.sleep(config.think_ms / 1e3)
    return out


def count(out: Epoch, batch: atta.MiniBatch) -> None:
    """Add a batch to the epoch's figures."""
    out.batches += 1
    out.seeds += batch.batch_size
    out.nodes += batch.num_nodes
    out.edges += int(batch.stats["edges"])
    out.feature_bytes += sum(rows.nbytes for tables in batch.tables.values() for rows in tables.values())
    out.feature_bytes += sum(rows.nbytes for tables in batch.aggregates.values() for rows in tables.values())
    out.make_ms.append(batch.stats.get("make_ms", 0.0))
    out.remote_rows = (out.remote_rows or 0.0) + batch.stats.get("remote_rows", 0.0)
    out.remote_bytes = (out.remote_bytes or 0.0) + batch.stats.get("remote_bytes", 0.0)


if __name__ == "__main__":
    main()
