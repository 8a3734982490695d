"""``atta bench``: measure Atta against physical limits and peers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from atta.cli.output import DURATION, INTS, NAMES, json_option, plot_option, printer, quiet_option, write_json
from atta.scheduler import POLICIES

__all__ = ["COMMANDS"]


# Options of every benchmark that runs beside a peer.
vs_option = click.option("--vs", type=NAMES, default=(), help="Peers to run beside it: dgl (needs root and atta[dgl]).")
split_option = click.option("--split", default="train", show_default=True, help="Whose vertices are the seeds.")
netns_option = click.option(
    "--netns",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="A network namespace per partition: needs root; auto: where possible.",
)
link_option = click.option("--link", metavar="RATE", help="Shape the links between namespaces, e.g. 1gbit.")
work_option = click.option(
    "--work", metavar="DIR", help="Keep converted graphs here  [default: atta in the user's cache folder]."
)


def _hand_out(report: Any, json_file: str | None, plot: str | None, *figure: str, quiet: bool) -> None:
    """Print first: whatever fails afterwards, the figures of hours of measuring are there."""
    if not quiet and json_file != "-":
        printer().print(report.show())
    write_json(json_file, report.to_json())
    if plot:
        report.plot(plot, *figure)


@click.group()
def bench() -> None:
    """Measure against physical limits and peers, all in one run.

    Example: atta bench loader --data data/demo-2p --num-neighbors 15,10,5 --json loader.json
    """


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one consumer per partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=int, default=1024, show_default=True)
@vs_option
@click.option("--runs", type=int, default=5, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--warm-up", type=int, default=6, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=int, default=2, show_default=True, help="Measured per round, at least.")
@click.option("--seconds", type=DURATION, default="10s", show_default=True, help="Measured per round, at least.")
@split_option
@click.option("--threads", type=int, default=1, show_default=True, help="Of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--frontier", type=click.Choice(["new", "all"]), help="What a hop expands  [default: all beside dgl, else new]."
)
@click.option(
    "--deliver",
    type=click.Choice(["arrays", "pyg", "dgl"]),
    help="What consumers turn batches into  [default: dgl beside dgl, else pyg if installed].",
)
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that Atta's daemons keep, in percent of the HALO vertices; unless 0, Atta also runs without that cache  "
    "[default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per system and round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@plot_option("Draw seeds per second.")
@json_option
@quiet_option
def loader(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """Mini-batches per second, features included, with nobody training.

    Example: atta bench loader --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json loader.json
    """
    from rich.console import Console

    from atta.bench.lab.workload import Workload
    from atta.bench.loader.benchmark import LoaderBench, run

    console = Console(stderr=True, quiet=quiet)
    workload = Workload(**{f.name: options.pop(f.name) for f in fields(Workload) if f.name in options})
    report = run(LoaderBench(workload=workload, **options), console.print)
    _hand_out(report, json_file, plot, "seeds_per_s", quiet=quiet)


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one trainer per partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True, help="One layer per hop.")
@click.option("--batch-size", type=int, default=1024, show_default=True, help="Seeds per trainer and step.")
@click.option("--hidden", type=int, default=32, show_default=True, help="Width of the hidden layers.")
@click.option("--lr", type=float, default=0.003, show_default=True, help="Learning rate of Adam.")
@vs_option
@click.option("--runs", type=int, default=3, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--warm-up", type=int, default=1, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=int, default=3, show_default=True, help="Measured per round.")
@split_option
@click.option("--threads", type=int, default=1, show_default=True, help="Of every daemon, trainer and peer process.")
@netns_option
@link_option
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that Atta's daemons keep, in percent of the HALO vertices  [default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="20m", show_default=True, help="Per system and round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling and the initial weights.")
@plot_option("Draw seconds per epoch.")
@json_option
@quiet_option
def train(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """An epoch of training GraphSAGE from end to end, and where the trainers' time goes.

    Example: atta bench train --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json train.json
    """
    from rich.console import Console

    from atta.bench.lab.workload import Workload
    from atta.bench.train.benchmark import TrainBench, run

    console = Console(stderr=True, quiet=quiet)
    chosen = {f.name: options.pop(f.name) for f in fields(Workload) if f.name in options}
    report = run(TrainBench(workload=Workload(**chosen, seconds=0.0), **options), console.print)
    _hand_out(report, json_file, plot, "epoch_s", quiet=quiet)


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; one daemon and one consumer per partition.")
@click.option("--policies", type=NAMES, default=",".join(POLICIES), show_default=True)
@click.option("--depths", type=INTS, default="4", show_default=True, help="`prefetch` runs with each of these.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=int, default=1024, show_default=True)
@click.option("--rtt", "rtt_s", type=DURATION, default="0s", help="Injected into every request to another daemon.")
@click.option(
    "--think", "think_s", type=DURATION, default="0s", help="Consumers compute so long on every batch, elsewhere."
)
@vs_option
@click.option("--runs", type=int, default=3, show_default=True, help="Rounds; policies alternate within a round.")
@click.option("--warm-up", type=int, default=3, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=int, default=2, show_default=True, help="Measured per round, at least.")
@click.option("--seconds", type=DURATION, default="5s", show_default=True, help="Measured per round, at least.")
@split_option
@click.option("--threads", type=int, default=1, show_default=True, help="Of every daemon and peer process.")
@netns_option
@link_option
@click.option(
    "--cache-share",
    type=click.FloatRange(0, 100),
    help="Rows that the daemons keep, in percent of the HALO vertices  [default: what fits into 1 GiB].",
)
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per policy and round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@plot_option("Draw seeds per second.")
@json_option
@quiet_option
def scheduler(
    json_file: str | None, plot: str | None, quiet: bool, rtt_s: float, think_s: float, **options: Any
) -> None:
    """When to begin a batch: the launch score beside simpler policies.

    Example: atta bench scheduler --data data/pl-2p --num-neighbors 10,10 --batch-size 128 --rtt 10ms --depths 1,2,4,8
    """
    from rich.console import Console

    from atta.bench.lab.workload import Workload
    from atta.bench.scheduler import SchedulerBench, run

    console = Console(stderr=True, quiet=quiet)
    chosen = {f.name: options.pop(f.name) for f in fields(Workload) if f.name in options}
    workload = Workload(**chosen, think_ms=1e3 * think_s)
    bench = SchedulerBench(workload=workload, rtt_ms=1e3 * rtt_s, **options)
    report = run(bench, console.print)
    _hand_out(report, json_file, plot, "seeds_per_s", quiet=quiet)


@bench.command()
@click.option("--data", required=True, help="Partitioned dataset; a server per partition.")
@click.option("--servers", type=int, default=2, show_default=True)
@click.option("--trainers-per-server", type=int, default=2, show_default=True)
@click.option(
    "--strategies",
    type=NAMES,
    default="cooperative,full,minibatch",
    show_default=True,
    help="Also: preload. full exchanges rows between servers; ratios are about cooperative, or the first.",
)
@click.option(
    "--model", type=click.Choice(["sage", "gcn", "gat", "resgcn+", "deepergcn"]), default="sage", show_default=True
)
@click.option("--layers", type=int, default=3, show_default=True)
@click.option("--hidden", type=int, default=64, show_default=True)
@click.option("--lr", type=float, default=0.01, show_default=True)
@click.option("--dropout", type=float, default=0.0, show_default=True)
@click.option("--eas", type=INTS, metavar="MAX_HOP,FANOUT", default="1,15", show_default=True, help="Of cooperative.")
@click.option("--co-batches", type=int, default=1, show_default=True, help="Steps per epoch of cooperative.")
@click.option(
    "--num-neighbors", type=INTS, default="10", show_default=True, help="Of mini-batches, per layer or for all."
)
@click.option(
    "--batch-size", type=int, default=1024, show_default=True, help="Of mini-batches: seeds per trainer and step."
)
@click.option(
    "--external-share",
    type=float,
    help="Shape the links between servers so that full spends this share of its time in them: needs root.",
)
@click.option("--link", metavar="RATE", help="Shape them to this rate, e.g. 100mbit: needs root.")
@click.option("--eval-every", type=int, help="Epochs between evaluations  [default: after the last one].")
@click.option("--target", type=float, help="Report the time to this test accuracy, as --eval-every sees it.")
@vs_option
@click.option("--runs", type=int, default=3, show_default=True, help="Rounds; strategies alternate within a round.")
@click.option("--warm-up", type=int, default=2, show_default=True, help="Epochs before measuring, per round.")
@click.option("--epochs", type=int, default=10, show_default=True, help="Measured per round.")
@work_option
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Per strategy and round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first round; each round takes the next.")
@plot_option("Draw seconds per epoch.")
@json_option
@quiet_option
def strategies(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """An epoch by mini-batches, by the whole graph, and by whole servers, over a slow link between servers.

    Example: atta bench strategies --data data/demo-2p --layers 3 --eas 1,15 --external-share 0.65 --json strategies.json
    """
    from rich.console import Console

    from atta.bench.strategies import StrategiesBench, run

    report = run(StrategiesBench(**options), Console(stderr=True, quiet=quiet).print)
    _hand_out(report, json_file, plot, "epoch_seconds", quiet=quiet)


@bench.command()
@click.option("--dataset", required=True, help="Dataset of one partition.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=int, default=1024, show_default=True)
@click.option("--threads", type=INTS, default="1,2", show_default=True, help="Every system runs with each of these.")
@click.option("--batches", type=int, default=40, show_default=True, help="Measured per system and round.")
@click.option("--vs", type=NAMES, default=(), help="Libraries to run beside it: dgl, pyg (needs pyg_lib).")
@click.option(
    "--variants",
    type=NAMES,
    default=(),
    help="Other ways: a neighbour method by name, disjoint, untyped, hetero, hetero-16.",
)
@click.option("--runs", type=int, default=5, show_default=True, help="Rounds; systems alternate within a round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the seeds.")
@plot_option("Draw edges per second.")
@json_option
@quiet_option
def sampling(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """Sampling and compaction alone, in one process, without daemons or features.

    Example: atta bench sampling --dataset data/products-1p --num-neighbors 15,10,5 --vs dgl --json sampling.json
    """
    from rich.console import Console

    from atta.bench.sampling.benchmark import SamplingBench, run

    report = run(SamplingBench(**options), Console(stderr=True, quiet=quiet).print)
    _hand_out(report, json_file, plot, "edges_per_s", quiet=quiet)


@bench.command("partition")
@click.option("--graph", required=True, help="Graph folder.")
@click.option("--parts", type=int, default=4, show_default=True)
@click.option(
    "--methods",
    type=NAMES,
    default="metis,metis:tame=no,ldg,fennel,block,random",
    show_default=True,
    help="NAME or NAME:KEY=VALUE+KEY=VALUE each; ratios are about the first.",
)
@click.option("--vs", type=NAMES, default=(), help="Peers: dgl (dgl.distributed.partition_graph; needs atta[dgl]).")
@click.option("--runs", type=int, default=1, show_default=True, help="Rounds; methods alternate within a round.")
@plot_option("Draw the edge cuts.")
@json_option
@quiet_option
def partition_(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """Time, memory and quality of partitioning methods, from graph folder to dataset.

    Example: atta bench partition --graph graphs/demo --parts 4 --methods metis,ldg --vs dgl --json partition.json
    """
    from rich.console import Console

    from atta.bench.partition.benchmark import PartitionBench, run

    report = run(PartitionBench(**options), Console(stderr=True, quiet=quiet).print)
    _hand_out(report, json_file, plot, "edge_cut", quiet=quiet)


@bench.command()
@click.option("--rows", type=int, default=2_000_000, show_default=True, help="Of the table, float32.")
@click.option("--dim", type=int, default=100, show_default=True, help="Columns of the table.")
@click.option("--batch", type=int, default=100_000, show_default=True, help="Rows at a time, distinct and random.")
@click.option(
    "--threads", type=INTS, default="1,2", show_default=True, help="Of the local gather; all else: the first."
)
@click.option("--repeats", type=int, default=10, show_default=True, help="Timed operations per way and round.")
@click.option("--runs", type=int, default=5, show_default=True, help="Rounds; the ways alternate within a round.")
@click.option("--vs", type=NAMES, default=(), help="Peers beside torch and numpy: dgl (needs atta[dgl]).")
@click.option("--link", metavar="RATE", help="Pull over a link of this rate, too, e.g. 1gbit: needs root.")
@click.option(
    "--work", metavar="DIR", help="Keep the generated table here  [default: atta in the user's cache folder]."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of rows and values.")
@plot_option("Draw bytes per second of the local gather.")
@json_option
@quiet_option
def kv(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """Table rows: gathered in memory, pulled from a daemon, read from and pushed to mutable tables.

    Example: atta bench kv --rows 2000000 --dim 100 --batch 100000 --vs dgl --link 1gbit --json kv.json
    """
    from rich.console import Console

    from atta.bench.kv.benchmark import KvBench, run

    report = run(KvBench(**options), Console(stderr=True, quiet=quiet).print)
    _hand_out(report, json_file, plot, "gather/bytes_per_s", quiet=quiet)


@bench.command("cache")
@click.option("--data", required=True, help="Partitioned dataset, all of it on this machine.")
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", type=int, default=1024, show_default=True)
@split_option
@click.option(
    "--shares", type=INTS, default="1,2,5,10,20,50,100", show_default=True, help="Sizes, percent of the HALO vertices."
)
@click.option("--ranks", type=NAMES, default="degree,access,recent", show_default=True, help="Policies.")
@click.option("--epochs", type=int, default=2, show_default=True, help="The first fills the caches, the others count.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffling and sampling.")
@plot_option("Draw hit rates against size.")
@json_option
@quiet_option
def cache_(json_file: str | None, plot: str | None, quiet: bool, **options: Any) -> None:
    """Hit rate of the cache of remote rows against its size, by policy, without daemons.

    Example: atta bench cache --data data/pl-2p --shares 1,5,20,100 --json cache.json --plot cache.png
    """
    from rich.console import Console

    from atta.bench.cache.benchmark import CacheBench, run

    report = run(CacheBench(**options), Console(stderr=True, quiet=quiet).print)
    _hand_out(report, json_file, plot, quiet=quiet)


COMMANDS = [bench]
