"""Benchmarks of training: ``atta bench train|strategies``."""

from __future__ import annotations

from typing import Any

import click

from atta.cli.output import DURATION, INTS, NAMES
from atta.train.settings import MODELS
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
from atta_bench.commands.variants import SHARE, VARIANT

__all__ = ["COMMANDS"]


@click.command()
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
@measured("Draw seconds per epoch.")
def train(**options: Any) -> tuple[Run, Any]:
    """Seconds of an epoch that trains GraphSAGE, and where the trainers' time goes.

    Example: atta bench train --data data/pl-2p --num-neighbors 15,10,5 --batch-size 1024 --vs dgl --json train.json
    """
    from atta_bench.train.benchmark import TrainBench, run

    return run, TrainBench(workload=workload(options, seconds=0.0), **options)


@click.command()
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
@measured("Draw seconds per epoch.")
def strategies(
    share: tuple[str, float] | None, prices: str | None, stop: str | None, **options: Any
) -> tuple[Run, Any]:
    """Training strategies: mini-batches, the full graph and whole servers, over a slow link between servers.

    Example: atta bench strategies --data data/demo-2p --layers 3 --eas 1,15 --external-share 0.65 --json
        strategies.json

    Example: atta bench strategies --data data/demo-2p --strategies full --variant exchange='--strategy exchange' --variant
        sancus='--strategy sancus:eps=1' --external-share exchange=0.8
    """
    from atta_bench.strategies import StopPattern, StrategiesBench, read_prices, run

    name, external_share = share or ("full", None)
    options["prices"] = None if prices is None else read_prices(prices)
    options["stop"] = None if stop is None else StopPattern.parse(stop)
    return run, StrategiesBench(external_share=external_share, share_of=name, **options)


COMMANDS = [train, strategies]
