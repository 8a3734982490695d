"""``atta bench``: measure Atta against physical limits and peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from atta.cli.output import DURATION, INTS, NAMES, json_option, plot_option, printer, quiet_option, teller, write_json
from atta.cli.variants import SHARE, VARIANT
from atta.kvstore.cache import RANKS
from atta.scheduler import POLICIES
from atta.train.settings import MODELS

if TYPE_CHECKING:
    from atta.bench.lab.workload import BenchWorkload
    from atta.bench.output import Report

__all__ = ["COMMANDS", "hand_out"]

Run = Callable[[Any, Callable[[str], None]], "Report"]
"""Runs a benchmark with these settings; the second argument is told what happens."""

COUNT = click.IntRange(1)
SEED = click.IntRange(0, 2**63 - 1)
BATCH = click.IntRange(1, 1 << 20)
"""Seeds of a batch; daemons make no larger ones."""
THREADS = click.IntRange(1, 1024)
"""Threads of a process, as many as a daemon takes."""


# Options of every benchmark that runs beside a peer.
vs_option = click.option("--vs", type=NAMES, default=(), help="Peers to compare with: dgl (needs root and atta[dgl]).")
split_option = click.option("--split", default="train", show_default=True, help="Split whose vertices are the seeds.")
netns_option = click.option(
    "--netns",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="A network namespace per partition, which needs root; auto: where possible.",
)
link_option = click.option("--link", metavar="RATE", help="Rate of the links between namespaces, e.g. 1gbit.")
work_option = click.option(
    "--work", metavar="DIR", help="Keep converted graphs here  [default: atta in the user's cache folder]."
)


def hand_out(report: Report, json_file: str | None, plot: str | None, *, quiet: bool) -> None:
    """Print a report, write its JSON document and draw it.

    Printing comes first: the figures of hours of measuring are there even if a file cannot be written.
    """
    if not quiet and json_file != "-":
        printer().print(report.show())
    write_json(json_file, report.to_json())
    if plot:
        report.plot(plot)


def _workload(options: dict[str, Any], **more: Any) -> BenchWorkload:
    """The workload that ``options`` describe, which leave the mapping."""
    from atta.bench.lab.workload import BenchWorkload

    return BenchWorkload(**{f.name: options.pop(f.name) for f in fields(BenchWorkload) if f.name in options}, **more)


def _measured(drawn: str) -> Callable[[Callable[..., tuple[Run, Any]]], Callable[..., None]]:
    """Make a command of a function that takes its options and returns a benchmark's ``run`` and settings.

    The command gets ``--plot``, ``--json`` and ``--quiet``, tells on standard error what it does, and hands out the
    report. ``drawn`` says what ``--plot`` draws.
    """

    def command_of(prepare: Callable[..., tuple[Run, Any]]) -> Callable[..., None]:
        @wraps(prepare)
        def command(*, json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
            run, settings = prepare(**options)
            hand_out(run(settings, teller(quiet)), json_file, plot, quiet=quiet)

        made: Callable[..., None] = plot_option(drawn)(json_option(quiet_option(command)))
        return made

    return command_of


@click.group()
def bench() -> None:
    """Measure Atta, physical limits and peers in one run.

    Example: atta bench loader --data data/demo-2p --num-neighbors 15,10,5 --json loader.json
    """


@bench.command()
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
@_measured("Draw seeds per second.")
def loader(**options: Any) -> tuple[Run, Any]:
    """Mini-batches per second, features included, without training.

    Example: atta bench loader --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json loader.json
    """
    from atta.bench.loader.benchmark import LoaderBench, run

    return run, LoaderBench(workload=_workload(options), **options)


@bench.command()
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
@_measured("Draw processor time per seed over the number of partitions.")
def scale(**options: Any) -> tuple[Run, Any]:
    """What a seed costs as the number of partitions grows, with and without a cache.

    Example: atta bench scale --parts 1,2,4,8,16 --vs dgl --json scale.json --plot scale.png
    """
    from atta.bench.scale.benchmark import ScaleBench, run
    from atta.bench.scale.cell import Batches
    from atta.bench.scale.graphs import GraphSource

    source = GraphSource(**{f.name: options[f.name] for f in fields(GraphSource)})
    batches = Batches(**{f.name: options[f.name] for f in fields(Batches) if f.name != "deliver"})
    chosen = {f.name: options[f.name] for f in fields(ScaleBench) if f.name in options}
    return run, ScaleBench(source, batches, **chosen)


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one trainer per partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True, help="One layer per hop.")
@click.option("--batch-size", type=BATCH, default=1024, show_default=True, help="Seeds per trainer and step.")
@click.option("--hidden", type=COUNT, default=32, show_default=True, help="Width of the hidden layers.")
@click.option("--lr", type=float, default=0.003, show_default=True, help="Learning rate of Adam.")
@vs_option
@click.option("--runs", type=COUNT, default=3, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--warm-up", type=COUNT, default=1, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=COUNT, default=3, show_default=True, help="Measured per round.")
@split_option
@click.option(
    "--threads", type=THREADS, default=1, show_default=True, help="Threads of every daemon, trainer and peer process."
)
@netns_option
@link_option
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that Atta's daemons cache, in percent of the HALO vertices  [default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="20m", show_default=True, help="Per system and round.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sampling and the initial weights.")
@_measured("Draw seconds per epoch.")
def train(**options: Any) -> tuple[Run, Any]:
    """Seconds of an epoch that trains GraphSAGE, and where the trainers' time goes.

    Example: atta bench train --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json train.json
    """
    from atta.bench.train.benchmark import TrainBench, run

    return run, TrainBench(workload=_workload(options, seconds=0.0), **options)


@bench.command()
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
@_measured("Draw seeds per second.")
def scheduler(rtt_s: float, think_s: float, **options: Any) -> tuple[Run, Any]:
    """Launch policies: the launch score and simpler ones.

    Example: atta bench scheduler --data data/pl-2p --num-neighbors 10,10 --batch-size 128 --rtt 10ms --depths 1,2,4,8
    """
    from atta.bench.scheduler import SchedulerBench, run

    workload = _workload(options, think_ms=1e3 * think_s)
    return run, SchedulerBench(workload=workload, rtt_ms=1e3 * rtt_s, **options)


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; a server per partition.")
@click.option("--servers", type=COUNT, default=2, show_default=True)
@click.option("--trainers-per-server", type=COUNT, default=2, show_default=True)
@click.option(
    "--strategies",
    type=NAMES,
    default="cooperative,full,minibatch",
    show_default=True,
    help="Also: preload. full exchanges rows between servers. Ratios are about cooperative, or else about the first.",
)
@click.option("--model", type=click.Choice(MODELS), default="sage", show_default=True)
@click.option("--layers", type=COUNT, default=3, show_default=True)
@click.option("--hidden", type=COUNT, default=64, show_default=True)
@click.option("--lr", type=float, default=0.01, show_default=True)
@click.option("--dropout", type=float, default=0.0, show_default=True)
@click.option(
    "--eas",
    type=INTS,
    metavar="MAX_HOP,FANOUT",
    default="1,15",
    show_default=True,
    help="Expansion-aware sampling of cooperative.",
)
@click.option("--co-batches", type=COUNT, default=1, show_default=True, help="Steps per epoch of cooperative.")
@click.option(
    "--num-neighbors",
    type=INTS,
    default="10",
    show_default=True,
    help="Fan-outs of mini-batches: one per layer, or one for all.",
)
@click.option(
    "--batch-size", type=BATCH, default=1024, show_default=True, help="Seeds per trainer and step of mini-batches."
)
@click.option(
    "--variant",
    "variants",
    type=VARIANT,
    multiple=True,
    metavar="NAME='OPTIONS'",
    help="Also run these options of atta train, under this name; may be given several times.",
)
@click.option(
    "--external-share",
    "share",
    type=SHARE,
    metavar="[NAME=]SHARE",
    help="Shape the links between servers so that a strategy or variant (full) spends this share of its time in them; "
    "needs root.",
)
@click.option("--link", metavar="RATE", help="Rate of the links between servers, e.g. 100mbit; needs root.")
@click.option("--eval-every", type=COUNT, help="Epochs between evaluations  [default: after the last one].")
@click.option("--target", type=float, help="Report the time until an evaluation finds this test accuracy.")
@click.option(
    "--prices",
    metavar="FILE",
    help="TOML file with prices of machines and workers: report cost, and value 1/(time x cost).",
)
@click.option(
    "--stop",
    metavar="TRAINER:STOPPED/EVERY",
    help="Stop this trainer for so many seconds, once in so many seconds, e.g. 3:0.5/2.0; seeded, a ninth more or less.",
)
@click.option(
    "--worker-faults",
    metavar="FAULTS",
    help="Links, delays and deaths of the workers of dorylus, seeded, e.g. link=20e6,delay=0.005:0.05,kill=0.1,late=0.1:2.",
)
@vs_option
@click.option("--runs", type=COUNT, default=3, show_default=True, help="Rounds; strategies alternate within a round.")
@click.option("--warm-up", type=COUNT, default=2, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=COUNT, default=10, show_default=True, help="Measured per round.")
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per strategy and round.")
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Seed of the first round; each round takes the next."
)
@_measured("Draw seconds per epoch.")
def strategies(
    share: tuple[str, float] | None, prices: str | None, stop: str | None, **options: Any
) -> tuple[Run, Any]:
    """Training strategies: mini-batches, the full graph and whole servers, over a slow link between servers.

    Example: atta bench strategies --data data/demo-2p --layers 3 --eas 1,15 --external-share 0.65 --json
        strategies.json

    Example: atta bench strategies --data data/demo-2p --strategies full --variant exchange='--strategy exchange' --variant
        sancus='--strategy sancus --eps 1' --external-share exchange=0.8
    """
    from atta.bench.strategies import StopPattern, StrategiesBench, read_prices, run

    name, external_share = share or ("full", None)
    options["prices"] = None if prices is None else read_prices(prices)
    options["stop"] = None if stop is None else StopPattern.parse(stop)
    return run, StrategiesBench(external_share=external_share, share_of=name, **options)


@bench.command()
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
@_measured("Draw edges per second.")
def sampling(**options: Any) -> tuple[Run, Any]:
    """Sampling and compaction alone, in one process, without daemons or features.

    Example: atta bench sampling --dataset data/products-1p --num-neighbors 15,10,5 --vs dgl --json sampling.json
    """
    from atta.bench.sampling.benchmark import SamplingBench, run

    return run, SamplingBench(**options)


@bench.command("partition")
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
@_measured("Draw the edge cuts.")
def partition_(**options: Any) -> tuple[Run, Any]:
    """Time, memory and quality of partitioning methods, from graph folder to dataset.

    Example: atta bench partition --graph graphs/demo --parts 4 --methods metis,ldg --vs dgl --json partition.json
    """
    from atta.bench.partition.benchmark import PartitionBench, run

    return run, PartitionBench(**options)


@bench.command()
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
@_measured("Draw bytes per second of the local gather.")
def kv(**options: Any) -> tuple[Run, Any]:
    """Table rows: gathered in memory, pulled from a daemon, read from mutable tables and pushed to them.

    Example: atta bench kv --rows 2000000 --dim 100 --batch 100000 --vs dgl --link 1gbit --json kv.json
    """
    from atta.bench.kv.benchmark import KvBench, run

    return run, KvBench(**options)


@bench.command("cache")
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
@_measured("Draw hit rates against size.")
def cache_(**options: Any) -> tuple[Run, Any]:
    """Hit rate of the cache of remote rows by size and policy, without daemons.

    Example: atta bench cache --data data/pl-2p --shares 1,5,20,100 --json cache.json --plot cache.png
    """
    from atta.bench.cache.benchmark import CacheBench, run

    return run, CacheBench(**options)


COMMANDS = [bench]
