"""One process of DistDGL, server or trainer as DGL_ROLE says: sample and fetch, no training.

    python -m atta.bench.peers.distdgl.worker '{"rank": 0, ...}'

Runs ``DistNodeDataLoader`` as DGL's documentation does and takes the clock before and after each of the two things that a
training step waits for: the next blocks, and the rows of the vertices in them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from atta.bench.lab.stage import Epoch, Stage
from atta.bench.peers.distdgl.partition import GRAPH_NAME, MASK

__all__ = ["WorkerConfig", "count", "main", "open_loader", "play", "pull"]

Config = TypeVar("Config", bound="WorkerConfig")


@dataclass(frozen=True)
class WorkerConfig:
    """What a trainer is told.

    Attributes:
        config: partition configuration (JSON file).
        rank, world_size: of the trainer.
        rendezvous: ``tcp://host:port`` of rank 0 for gloo.
        num_neighbors: fan-outs, counted from the seeds.
        batch_size: seeds per batch.
        tables: tables to fetch for every vertex; ``y`` only for the seeds.
        warm_up: epochs before measuring.
        threads: threads that torch and DGL may use in this process.
        think_ms: computes on every batch for so long, on a device elsewhere.
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


def main() -> None:
    """Serve or load until told to end."""
    play(lambda told: WorkerConfig(**told), _load)


def play(read: Callable[[dict[str, Any]], Config], run: Callable[[Config, Stage], None]) -> None:
    """Be a server, or a trainer that does ``run`` with what it was told."""
    import dgl

    if os.environ["DGL_ROLE"] == "server":
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # serves, and ends the process
        return
    config = read(json.loads(sys.argv[1]))
    stage = Stage()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    run(config, stage)


def _load(config: WorkerConfig, stage: Stage) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=config.rank, world_size=config.world_size, init_method=config.rendezvous)
    torch.set_num_threads(config.threads)
    graph, loader = open_loader(config)
    for number in range(config.warm_up):
        warm = _epoch(config, graph, loader, number, remote=True)
    dist.barrier()
    for number in range(stage.ready(warm)):
        stage.report(_epoch(config, graph, loader, number, remote=False))
    stage.done()
    dist.barrier()


def open_loader(config: WorkerConfig, *, equal: bool = False) -> tuple[Any, Any]:
    """The graph and the loader of this trainer's share of the seeds; the process group must exist.

    ``equal``: all trainers get equally many seeds. Shares differ by one at most, but that could be a batch, and trainers that
    exchange gradients would wait for it for ever.
    """
    import dgl
    import torch
    import torch.distributed as dist

    graph = dgl.distributed.DistGraph(GRAPH_NAME, part_config=config.config)
    seeds = dgl.distributed.node_split(graph.ndata[MASK], graph.get_partition_book(), force_even=True)
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
        drop_last=False,
    )
    return graph, loader


def _epoch(config: WorkerConfig, graph: Any, loader: Any, number: int, *, remote: bool) -> Epoch:
    """One epoch; with ``remote`` also count rows that another machine holds (costs time)."""
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


def pull(config: WorkerConfig, graph: Any, inputs: Any, seeds: Any) -> dict[str, Any]:
    """Rows of the tables by name: of the ``inputs``, of ``y`` only for the ``seeds``."""
    return {name: graph.ndata[name][seeds if name == "y" else inputs] for name in config.tables}


def count(out: Epoch, blocks: Sequence[Any], rows: Mapping[str, Any], graph: Any | None) -> None:
    """Add a batch to the epoch's figures; with ``graph`` also its rows from other machines."""
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
