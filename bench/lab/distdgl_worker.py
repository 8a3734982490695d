"""A process of DistDGL: one of its servers, or a trainer, as DGL_ROLE says. With a recipe it trains, else it only loads.

    python -m atta_bench.lab.distdgl_worker '{"rank": 0, ...}'

A trainer runs ``DistNodeDataLoader`` as in DGL's documentation. It times the two things that a training step waits for:
the next blocks, and the rows of their vertices.

It loads as ``worker`` does and trains as Atta's trainer does, with the same model, optimiser, gradient exchange and
clocks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atta_bench.lab.workload import Epoch, RankConfig, Recipe, Reporter

if TYPE_CHECKING:
    from atta_bench.train.worker import Learner, TrainingEpoch

GRAPH_NAME = "peer"
MASK = "is_seed"


def mask_of(split: str) -> str:
    """Name of the table that marks the vertices of a split."""
    return f"is_in_{split}"


@dataclass(frozen=True, kw_only=True)
class DistDglConfig(RankConfig):
    """Settings of a trainer. With the seeds ``global`` it has an equal share of a permutation of all of them.

    Attributes:
        config: partition configuration (a JSON file).
        tables: tables to fetch for every vertex; ``y`` only for the seeds.
        eval_every: epochs between evaluations, counted with the warm-up; the last epoch is always evaluated. 0: no
            evaluations.
        means: whether to make the first layer's means of the rows that have come, by DGL's own kernel.
    """

    config: str
    tables: tuple[str, ...]
    eval_every: int
    means: bool = False


def main() -> None:
    """Be a server, or a trainer that loads or trains until the benchmark ends it."""
    import dgl

    if os.environ["DGL_ROLE"] == "server":
        dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])  # serves, and ends the process
        return
    config, reporter = DistDglConfig.read(sys.argv[1]), Reporter()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    if config.recipe is None:
        _load(config, reporter)
    else:
        _train(config, config.recipe, reporter)


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
            if config.means:
                means(blocks[0], rows["x"])
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


def means(block: Any, x: Any) -> Any:
    """Of the rows of each vertex' in-neighbours."""
    from dgl import function

    with block.local_scope():
        block.srcdata["x"] = x
        block.update_all(function.copy_u("x", "m"), function.mean("m", "mean"))
        return block.dstdata["mean"]


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


_EVALUATED = 8192
"""Seeds per batch of an evaluation. With all neighbours, even a few seeds reach most of a small graph."""


def _train(config: DistDglConfig, recipe: Recipe, reporter: Reporter) -> None:
    import torch.distributed as dist

    from atta_bench.train.worker import DglSage, Learner, exit_on_failure, join

    with exit_on_failure():
        join(config.rank, config.world_size, config.rendezvous, config.threads)
        graph, loader = open_loader(config, equal=True)
        learner = Learner(DglSage, recipe)
        for number in range(config.warm_up):
            warm = _train_epoch(config, graph, loader, learner, number, remote=True)
            _evaluate(config, graph, learner, warm, number + 1)
        dist.barrier()
        trained = config.warm_up
        for measured in reporter.stretches(warm):
            for number in range(measured):
                trained += 1
                epoch = _train_epoch(config, graph, loader, learner, number, remote=False)
                _evaluate(config, graph, learner, epoch, trained, last=number + 1 == measured)
                reporter.report(epoch)
        dist.barrier()


def _train_epoch(config: DistDglConfig, graph: Any, loader: Any, learner: Any, number: int, *, remote: bool) -> Any:
    """One epoch; with ``remote`` also count the rows that another machine holds, which costs time."""
    from atta.train.steps.timing import awaited
    from atta_bench.lab.processes import sent_bytes

    host = os.getpid(), os.environ["GLOO_SOCKET_IFNAME"]
    sent = sent_bytes(*host)
    with learner.epoch(config.rank, number) as epoch:
        watch = learner.watch
        for inputs, seeds, blocks in awaited(loader, watch):
            sampled = watch.now()
            rows = pull(config, graph, inputs, seeds)
            fetched = watch.now()
            learner.learn(epoch, (blocks, rows["x"].float()), rows["y"].reshape(-1).long())
            watch.add("wait", sampled, fetched)
            watch.add("fetch", sampled, fetched)
            count(epoch, blocks, rows, graph if remote else None)
    epoch.sampling_s = epoch.wait_s - epoch.fetch_s
    epoch.sent_bytes = sent_bytes(*host) - sent
    return epoch


def _evaluate(
    config: DistDglConfig, graph: Any, learner: Learner, epoch: TrainingEpoch, trained: int, *, last: bool = False
) -> None:
    """If an evaluation is due after ``trained`` epochs, fill in the accuracies, with all neighbours of every vertex."""
    import torch.distributed as dist

    if config.eval_every and (last or trained % config.eval_every == 0):
        epoch.val_accuracy = _accuracy(config, graph, learner, "val")
        epoch.test_accuracy = _accuracy(config, graph, learner, "test")
        dist.barrier()  # the next epoch begins for all of them at once


def _accuracy(config: DistDglConfig, graph: Any, learner: Learner, split: str) -> float | None:
    """Accuracy over the vertices of all trainers; None: the split is empty or missing."""
    import dgl
    import torch
    import torch.distributed as dist

    if mask_of(split) not in graph.ndata:
        return None
    mine = dgl.distributed.node_split(graph.ndata[mask_of(split)], graph.get_partition_book(), force_even=True)
    sampler = dgl.dataloading.NeighborSampler([-1] * len(config.num_neighbors))
    counts = torch.zeros(2, dtype=torch.int64)
    for inputs, seeds, blocks in dgl.dataloading.DistNodeDataLoader(
        graph, mine, sampler, batch_size=_EVALUATED, shuffle=False, drop_last=False
    ):
        rows = pull(config, graph, inputs, seeds)
        counts[0] += learner.right((blocks, rows["x"].float()), rows["y"].reshape(-1).long())
        counts[1] += len(seeds)
    dist.all_reduce(counts)
    right, seen = counts.tolist()
    return right / seen if seen else None


if __name__ == "__main__":
    main()
