"""Benchmarks of single pieces: ``atta bench sampling|partition|kv|cache``."""

from __future__ import annotations

from typing import Any

import click

from atta.cli.output import INTS, NAMES
from atta.kvstore.cache import RANKS
from atta_bench.commands.measuring import (
    BATCH,
    COUNT,
    SEED,
    Run,
    measured,
    split_option,
)

__all__ = ["COMMANDS"]


@click.command()
@click.option("--dataset", required=True, help="Dataset of one partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=BATCH, default=1024, show_default=True)
@click.option("--threads", type=INTS, default="1,2", show_default=True, help="Every system runs with each of these.")
@click.option("--batches", type=COUNT, default=40, show_default=True, help="Measured per system and round.")
@click.option("--vs", type=NAMES, default=(), help="Libraries to compare with: dgl, pyg (needs pyg_lib).")
@click.option(
    "--variants",
    type=NAMES,
    default=(),
    help="Other ways to sample: a neighbour method by name, disjoint, untyped, hetero, hetero-16.",
)
@click.option("--runs", type=COUNT, default=5, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the choice of vertices.")
@measured("Draw edges per second.")
def sampling(**options: Any) -> tuple[Run, Any]:
    """Sampling and compaction alone, in one process, without daemons or features.

    Example: atta bench sampling --dataset data/products-1p --num-neighbors 15,10,5 --vs dgl --json sampling.json
    """
    from atta_bench.sampling.benchmark import SamplingBench, run

    return run, SamplingBench(**options)


@click.command("partition")
@click.option("--graph", required=True, help="Graph folder.")
@click.option("--parts", type=COUNT, default=4, show_default=True)
@click.option(
    "--methods",
    type=NAMES,
    default="metis,metis:tame=no,ldg,fennel,block,random",
    show_default=True,
    help="NAME or NAME:KEY=VALUE+KEY=VALUE each; ratios are about the first.",
)
@click.option("--vs", type=NAMES, default=(), help="Peers: dgl (dgl.distributed.partition_graph; needs atta[dgl]).")
@click.option("--runs", type=COUNT, default=1, show_default=True, help="Rounds; methods alternate within a round.")
@measured("Draw the edge cuts.")
def partition_(**options: Any) -> tuple[Run, Any]:
    """Time, memory and quality of partitioning methods, from graph folder to dataset.

    Example: atta bench partition --graph graphs/demo --parts 4 --methods metis,ldg --vs dgl --json partition.json
    """
    from atta_bench.partition.benchmark import PartitionBench, run

    return run, PartitionBench(**options)


@click.command()
@click.option("--rows", type=COUNT, default=2_000_000, show_default=True, help="Rows of the float32 table.")
@click.option("--dim", type=COUNT, default=100, show_default=True, help="Columns of the table.")
@click.option(
    "--batch", type=COUNT, default=100_000, show_default=True, help="Rows per operation, distinct and random."
)
@click.option(
    "--threads",
    type=INTS,
    default="1,2",
    show_default=True,
    help="Threads of the local gather; all else takes the first number.",
)
@click.option("--repeats", type=COUNT, default=10, show_default=True, help="Timed operations per way and round.")
@click.option("--runs", type=COUNT, default=5, show_default=True, help="Rounds; the ways alternate within a round.")
@click.option("--vs", type=NAMES, default=(), help="Peers besides torch and numpy: dgl (needs atta[dgl]).")
@click.option("--link", metavar="RATE", help="Also pull over a link of this rate, e.g. 1gbit; needs root.")
@click.option(
    "--work", metavar="DIR", help="Keep the generated table here  [default: atta in the user's cache folder]."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of rows and values.")
@measured("Draw bytes per second of the local gather.")
def kv(**options: Any) -> tuple[Run, Any]:
    """Table rows: gathered in memory, pulled from a daemon, read from mutable tables and pushed to them.

    Example: atta bench kv --rows 2000000 --dim 100 --batch 100000 --vs dgl --link 1gbit --json kv.json
    """
    from atta_bench.kv.benchmark import KvBench, run

    return run, KvBench(**options)


@click.command("cache")
@click.option("--data", required=True, help="Partitioned dataset, all of it on this machine.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=BATCH, default=1024, show_default=True)
@split_option
@click.option(
    "--shares",
    type=INTS,
    default="1,2,5,10,20,50,100",
    show_default=True,
    help="Sizes of the cache in percent of the HALO vertices.",
)
@click.option("--ranks", type=NAMES, default=",".join(RANKS), show_default=True, help="Policies of the cache.")
@click.option(
    "--epochs",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="The first epoch fills the caches, the others count.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the shuffling and sampling.")
@measured("Draw hit rates against size.")
def cache_(**options: Any) -> tuple[Run, Any]:
    """Hit rate of the cache of remote rows by size and policy, without daemons.

    Example: atta bench cache --data data/pl-2p --shares 1,5,20,100 --json cache.json --plot cache.png
    """
    from atta_bench.cache.benchmark import CacheBench, run

    return run, CacheBench(**options)


COMMANDS = [sampling, partition_, kv, cache_]
