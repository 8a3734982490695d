"""Benchmarks of making and loading mini-batches: ``atta bench loader|scale|scheduler``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from atta.cli.output import DURATION, INTS, NAMES
from atta.scheduler import POLICIES
from atta_bench.commands.measuring import (
    BATCH,
    COUNT,
    SEED,
    THREADS,
    Run,
    link_option,
    measured,
    netns_option,
    split_option,
    vs_option,
    work_option,
    workload,
)

__all__ = ["COMMANDS"]


@click.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one consumer per partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=BATCH, default=1024, show_default=True)
@vs_option
@click.option("--runs", type=COUNT, default=5, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--warm-up", type=COUNT, default=6, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=COUNT, default=2, show_default=True, help="At least this much is measured per round.")
@click.option(
    "--seconds", type=DURATION, default="10s", show_default=True, help="At least this much is measured per round."
)
@split_option
@click.option(
    "--seeds",
    type=click.Choice(["local", "global"]),
    default="local",
    show_default=True,
    help="local: a consumer gets the seeds near it; global: any of them.",
)
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--frontier", type=click.Choice(["new", "all"]), help="What a hop expands  [default: all beside dgl, else new]."
)
@click.option(
    "--deliver",
    type=click.Choice(["arrays", "pyg", "dgl"]),
    help="Form in which consumers take batches  [default: dgl beside dgl, else pyg if installed].",
)
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that Atta's daemons cache, in percent of the HALO vertices; unless 0, Atta also runs without a cache  "
    "[default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per system and round.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sampling.")
@measured("Draw seeds per second.")
def loader(**options: Any) -> tuple[Run, Any]:
    """Mini-batches per second, features included, without training.

    Example: atta bench loader --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json loader.json
    """
    from atta_bench.loader.benchmark import LoaderBench, run

    return run, LoaderBench(workload=workload(options), **options)


@click.command()
@click.option("--parts", type=INTS, default="1,2,4,8,16", show_default=True, help="Numbers of partitions.")
@click.option("--graph", metavar="FOLDER", help="Graph folder  [default: a power-law graph is generated].")
@click.option("--nodes", type=COUNT, default=244_903, show_default=True, help="Vertices of the generated graph.")
@click.option(
    "--edges",
    type=click.IntRange(0),
    default=12_000_000,
    show_default=True,
    help="Edges of the generated graph, about.",
)
@click.option(
    "--features", type=click.IntRange(0), default=100, show_default=True, help="Columns of the generated feature table."
)
@click.option("--method", default="metis", show_default=True, help="Partitioning method.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-sizes", type=INTS, default="1024,128", show_default=True, help="Seeds per batch, one by one.")
@click.option("--caches", type=NAMES, default="on,off", show_default=True, help="With a cache, without one, or both.")
@click.option(
    "--seeds",
    type=click.Choice(["global", "local"]),
    default="global",
    show_default=True,
    help="global: consumers share every epoch's batches, which are the same at all numbers of partitions.",
)
@vs_option
@click.option(
    "--against", metavar="CHECKOUT", help="Another checkout of Atta with its own .venv, measured in the same rounds."
)
@click.option(
    "--rounds", "--runs", "rounds", type=COUNT, default=3, show_default=True, help="Systems alternate in each."
)
@click.option(
    "--warm-up", "--warmup", "warm_up", type=COUNT, default=100, show_default=True, help="Batches per consumer before."
)
@click.option(
    "--batches", "measured", type=COUNT, default=50, show_default=True, help="Measured per consumer, in whole epochs."
)
@click.option(
    "--profiled",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Batches per consumer sampled by perf; 0: none.",
)
@split_option
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--frontier", type=click.Choice(["new", "all"]), default="all", show_default=True, help="What a hop expands."
)
@click.option(
    "--deliver",
    type=click.Choice(["arrays", "pyg", "dgl"]),
    help="Form in which consumers take batches  [default: dgl beside dgl, else arrays].",
)
@click.option("--work", metavar="DIR", help="Keep graphs and partitionings here  [default: atta in the user's cache].")
@click.option("--timeout", "timeout_s", type=DURATION, default="20m", show_default=True, help="Per stretch of batches.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of graph, partitioning and sampling.")
@click.option(
    "--filled/--not-filled",
    "filled",
    default=True,
    show_default=True,
    help="The first batches begin when the caches are filled, or as soon as the daemons serve.",
)
@measured("Draw processor time per seed over the number of partitions.")
def scale(**options: Any) -> tuple[Run, Any]:
    """What a seed costs as the number of partitions grows, with and without a cache.

    Example: atta bench scale --parts 1,2,4,8,16 --vs dgl --json scale.json --plot scale.png
    """
    from atta_bench.scale.benchmark import ScaleBench, run
    from atta_bench.scale.cell import Batches
    from atta_bench.scale.graphs import GraphSource

    source = GraphSource(**{f.name: options[f.name] for f in fields(GraphSource)})
    batches = Batches(**{f.name: options[f.name] for f in fields(Batches) if f.name != "deliver"})
    chosen = {f.name: options[f.name] for f in fields(ScaleBench) if f.name in options}
    return run, ScaleBench(source, batches, **chosen)


@click.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one consumer per partition.")
@click.option("--policies", type=NAMES, default=",".join(POLICIES), show_default=True)
@click.option(
    "--depths", type=INTS, default="4", show_default=True, help="A policy with a depth runs with each of these."
)
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=BATCH, default=1024, show_default=True)
@click.option(
    "--rtt", "rtt_s", type=DURATION, default="0s", help="Delay that is injected into every request to another daemon."
)
@click.option(
    "--think",
    "think_s",
    type=DURATION,
    default="0s",
    help="How long consumers compute on each batch, on another device.",
)
@vs_option
@click.option("--runs", type=COUNT, default=3, show_default=True, help="Rounds; policies alternate within a round.")
@click.option("--warm-up", type=COUNT, default=3, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=COUNT, default=2, show_default=True, help="At least this much is measured per round.")
@click.option(
    "--seconds", type=DURATION, default="5s", show_default=True, help="At least this much is measured per round."
)
@split_option
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that the daemons cache, in percent of the HALO vertices  [default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per policy and round.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sampling.")
@measured("Draw seeds per second.")
def scheduler(rtt_s: float, think_s: float, **options: Any) -> tuple[Run, Any]:
    """Launch policies: the launch score and simpler ones.

    Example: atta bench scheduler --data data/pl-2p --num-neighbors 10,10 --batch-size 128 --rtt 10ms --depths 1,2,4,8
    """
    from atta_bench.scheduler import SchedulerBench, run

    return run, SchedulerBench(workload=workload(options, think_ms=1e3 * think_s), rtt_ms=1e3 * rtt_s, **options)


COMMANDS = [loader, scale, scheduler]
