"""A process of DistDGL that loads without training: one of its servers, or a trainer, as DGL_ROLE says.

    python -m atta_bench.peers.distdgl.worker '{"rank": 0, ...}'

A trainer runs ``DistNodeDataLoader`` as in DGL's documentation. It times the two things that a training step waits for:
the next blocks, and the rows of their vertices.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from atta_bench.lab.reporter import Epoch, Reporter
from atta_bench.peers.distdgl.partition import GRAPH_NAME, MASK

__all__ = ["DistDglConfig", "count", "main", "open_loader", "pull", "serve_or_run"]

Config = TypeVar("Config", bound="DistDglConfig")


@dataclass(frozen=True)
class DistDglConfig:
    """Settings of a trainer.

    Attributes:
        config: partition configuration (a JSON file).
        rank, world_size: number of this trainer, and how many there are.
        rendezvous: ``tcp://host:port`` of rank 0 for gloo.
        num_neighbors: fan-outs, counted from the seeds.
        batch_size: seeds per batch.
        tables: tables to fetch for every vertex; ``y`` only for the seeds.
        warm_up: epochs before measuring.
        threads: number of threads that torch and DGL may use in this process.
        think_ms: how long it computes on each batch, on another device.
        seeds: ``"local"``: those near it; ``"global"``: an equal share of a permutation of all seeds.
        drop_last: leave out the last batch of an epoch if it is not full.
        seed: of that permutation.
    """

    config: str
    rank: int
    world_size: int
    rendezvous: str
    num_neighbors: tuple[int, ...]
    batch_size: int
    tables: tuple[str, ...]
    warm_up: int
    threads: int
    think_ms: float
    seeds: str
    drop_last: bool
    seed: int


def main() -> None:
    """Serve, or load until the benchmark ends it."""
    serve_or_run(lambda settings: DistDglConfig(**settings), _load)


def serve_or_run(read: Callable[[dict[str, Any]], Config], run: Callable[[Config, Reporter], None]) -> None:
    """Be a server of DistDGL, or a trainer that does ``run`` with the settings that ``read`` makes of its argument."""
    import dgl

    if os.environ["DGL_ROLE"] == "server":
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # serves, and ends the process
        return
    config = read(json.loads(sys.argv[1]))
    reporter = Reporter()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    run(config, reporter)


def _load(config: DistDglConfig, reporter: Reporter) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=config.rank, world_size=config.world_size, init_method=config.rendezvous)
    torch.set_num_threads(config.threads)
    graph, loader = open_loader(config)
    for number in range(config.warm_up):
        warm = _epoch(config, graph, loader, number, remote=True)
    dist.barrier()
    for measured in reporter.stretches(warm):
        for number in range(measured):
            reporter.report(_epoch(config, graph, loader, number, remote=False))
    dist.barrier()


def open_loader(config: DistDglConfig, *, equal: bool = False) -> tuple[Any, Any]:
    """The graph, and the loader of this trainer's share of the seeds. The process group must exist.

    With ``equal`` all trainers get equally many seeds. Otherwise shares may differ by one seed, and so by one batch,
    for which trainers that exchange gradients would wait for ever.
    """
    import dgl
    import torch
    import torch.distributed as dist

    graph = dgl.distributed.DistGraph(GRAPH_NAME, part_config=config.config)
    seeds = _seeds(config, graph)
    if equal:
        fewest = torch.tensor(len(seeds))
        dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
        seeds = seeds[: int(fewest)]
    loader = dgl.dataloading.DistNodeDataLoader(
        graph,
        seeds,
        dgl.dataloading.NeighborSampler(list(config.num_neighbors[::-1])),  # DGL counts hops from the input side
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=config.drop_last,
    )
    return graph, loader


def _seeds(config: DistDglConfig, graph: Any) -> Any:
    """The seeds of this trainer."""
    import dgl
    import torch

    if config.seeds == "local":
        return dgl.distributed.node_split(graph.ndata[MASK], graph.get_partition_book(), force_even=True)
    everything = graph.ndata[MASK][torch.arange(graph.num_nodes())].nonzero().reshape(-1)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(config.seed))
    return everything[order[config.rank :: config.world_size]]


def _epoch(config: DistDglConfig, graph: Any, loader: Any, number: int, *, remote: bool) -> Epoch:
    """One epoch; with ``remote`` also count the rows that another machine holds, which costs time."""
    out, sampling, fetching = Epoch(config.rank, number), 0.0, 0.0
    with out.timed():
        before = time.monotonic()
        for inputs, seeds, blocks in loader:
            sampled = time.monotonic()
            rows = pull(config, graph, inputs, seeds)
            fetched = time.monotonic()
            sampling += sampled - before
            fetching += fetched - sampled
            count(out, blocks, rows, graph if remote else None)
            if config.think_ms:
                time.sleep(config.think_ms / 1e3)
            before = time.monotonic()
    out.sampling_s, out.fetch_s = sampling, fetching
    return out


def pull(config: DistDglConfig, graph: Any, inputs: Any, seeds: Any) -> dict[str, Any]:
    """Rows by table: those of ``inputs``, of ``y`` only those of ``seeds``."""
    return {name: graph.ndata[name][seeds if name == "y" else inputs] for name in config.tables}


def count(out: Epoch, blocks: Sequence[Any], rows: Mapping[str, Any], graph: Any | None) -> None:
    """Add a batch to the figures of the epoch; with ``graph`` also its rows from other machines."""
    out.batches += 1
    out.seeds += blocks[-1].num_dst_nodes()
    out.nodes += blocks[0].num_src_nodes()
    out.edges += sum(block.num_edges() for block in blocks)
    out.feature_bytes += sum(r.numel() * r.element_size() for r in rows.values())
    if graph is not None:
        import dgl

        book = graph.get_partition_book()
        elsewhere = book.nid2partid(blocks[0].srcdata[dgl.NID]) != book.partid
        out.remote_rows = (out.remote_rows or 0) + int(elsewhere.sum())


if __name__ == "__main__":
    main()
