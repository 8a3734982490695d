"""``atta train``, and ``atta worker``, which trainers of --strategy dorylus start."""

from __future__ import annotations

import math
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import atta
from atta.cli.options import STRATEGY, StrategyCommand, command, config_option, plugin_option, settings_options
from atta.cli.output import (
    NODE_RANK,
    check_folder,
    echo,
    json_option,
    need_torch,
    plot_option,
    quiet_option,
    write_json,
)
from atta.errors import ConfigError, DataError
from atta.observe.lastwords import counted
from atta.train.config import TrainConfig
from atta.train.settings.servers import ServerSettings
from atta.train.strategies import STRATEGIES

if TYPE_CHECKING:
    from atta.train import TrainReport

OPTION_GROUPS = {
    "Data": "data cluster task target class-weights regression-loss edge-type reverse-type edge-split split-by",
    "Model": "model embed layers hidden heads dropout decoder checkpoint-layers",
    "Optimisation": "epochs batch-size lr weight-decay lr-schedule lr-every lr-factor embedding-lr clip-grad-norm "
    "accumulate precision compile eval-every patience early-stop seed",
    "Sampling": "strategy plugin accuracy-loss num-neighbors num-neighbors-by-type eval-num-neighbors eval-batch-size "
    "aggregate seed-policy negatives negatives-per-edge walk-length eval-negatives evaluate-by",
    "Cluster": "trainers trainers-per-server device threads nnodes node-rank rdzv-endpoint rank-timeout",
    "Checkpoints": "checkpoint resume overwrite checkpoint-every checkpoint-steps max-restarts init-from",
    "Output": "explain json plot quiet logger metrics config help",
}


@command(cls=StrategyCommand, groups=OPTION_GROUPS, strategies=STRATEGIES)
@config_option
@plugin_option
@settings_options(TrainConfig)
@click.option(
    "--strategy",
    type=STRATEGY,
    default=TrainConfig.strategy,
    metavar="NAME[:SETTING=VALUE,...]",
    help=f"{', '.join(STRATEGIES)}; more: --strategy NAME --help.",
)
@click.option("--nnodes", type=int, default=1, help="Machines; give this command on each.")
@click.option("--node-rank", type=NODE_RANK, default="0", help="Which; auto: by Kubernetes, Slurm, host name.")
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="Where machines meet, on machine 0.")
@click.option("--explain", is_flag=True, help="Say what the strategy decides, and train nothing.")
@json_option
@plot_option("Draw the curves, also of a run that is interrupted.")
@quiet_option
def train(
    *,
    settings: dict[str, Any],
    strategy: dict[str, Any],
    explain: bool,
    json_file: str | None,
    plot: str | None,
    quiet: bool,
    nnodes: int,
    node_rank: int,
    rdzv_endpoint: str | None,
) -> None:
    """Train a model on sampled mini-batches, or on whole servers.

    \b
    Example: atta train --data data/demo-2p --trainers 2 --num-neighbors 15,10,5
             atta train --data data/demo-2p --strategy full:eas=1,15 --trainers 4
             atta train --cluster cluster.toml --trainers 4 --nnodes 2 \\
                 --node-rank 0 --rdzv-endpoint 10.0.0.1:29400"""
    need_torch("training", quiet=quiet)
    config = TrainConfig.from_dict({**settings, **strategy, "verbose": not quiet})
    if settings["checkpoint"] and node_rank == 0:
        check_folder("--checkpoint", settings["checkpoint"])
    config.check_named()
    # An engine that numbers the machines also starts daemons and trainers in any order.
    placed = click.get_current_context().get_parameter_source("node_rank") is not ParameterSource.DEFAULT
    if config.cluster is not None and not placed and nnodes == 1 and not explain:
        atta.connect(config.cluster).close()  # loading torch takes seconds
    from atta.train import Nodes, TrainReport, fit
    from atta.train.launching.launch import checked

    nodes = Nodes(nnodes, node_rank, rdzv_endpoint, wait=placed)
    if explain:
        _explain(checked(config, nodes))
        return
    report = TrainReport(config)
    try:
        report = fit(config, nodes, report)
    except BaseException as error:
        report.ended = error
        raise
    finally:
        _write(report, json_file, plot, first=node_rank == 0)
    if not quiet and json_file != "-":
        _print(report)


def _write(report: TrainReport, json_file: str | None, plot: str | None, *, first: bool) -> None:
    if report.epochs or not isinstance(report.ended, ConfigError | DataError):  # else a report of before stays
        write_json(json_file, found := report.to_json())
        if report.config.checkpoint is not None and first and report.epochs:  # else its folder may not be there yet
            from atta.partition.disk.mirror import Mirror
            from atta.train.reports.run import REPORT

            place = Mirror(report.config.checkpoint)
            write_json(str(place.path / REPORT), found)
            place.push(REPORT)
    if plot is not None and report.epochs:
        from atta.cli.pictures import draw_run

        draw_run(plot, report.epochs, report.watched)


def _explain(config: TrainConfig) -> None:
    from atta.train.exchange.policies import Cut, doubt

    record, own = STRATEGIES[config.strategy], config.own
    echo(f"{config.strategy}: {record.sentence}")
    for line in record.explain(own):
        echo(line)
    if isinstance(own, ServerSettings) and (said := doubt(own, Cut(math.nan))):
        echo(f"warning: {said}")


def _print(report: TrainReport) -> None:
    best = report.best
    found = best.metric(report.watched.metric)
    if report.config.task == "classes" and best.test_accuracy is not None:
        validated = "" if best.val_accuracy is None else f"val {100 * best.val_accuracy:.2f} %, "
        which = "best" if validated else "last"
        echo(f"{which} epoch {best.epoch}: {validated}test accuracy {100 * best.test_accuracy:.2f} %")
    elif found is not None:
        tested = [f"{name[5:]} {value:.4f}" for name, value in best.metrics.items() if name.startswith("test_")]
        test = f"; test {', '.join(tested)}" if tested else ""
        echo(f"best epoch {best.epoch}: {report.watched.metric} {found:.4f}{test}")
    rates = sorted(e.seeds_per_s for e in report.epochs)
    echo(f"median throughput {rates[len(rates) // 2]:,.0f} seeds/s over {counted(len(rates), 'epoch')}")


_MOST_TEXT = 1024


@command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--number", type=int, default=-1, help="That the trainer gave it; -1: somebody else has started it.")
def worker(address: str, number: int) -> None:
    """Compute tasks of the trainer at HOST:PORT until it needs no more.

    Trainers of atta train --strategy dorylus start their workers themselves. They write the key of the job, in
    hexadecimal, into their standard input.

    Example: atta worker 10.0.0.1:40123"""
    if number >= 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which then ends its workers
    try:
        key = bytes.fromhex(sys.stdin.readline(_MOST_TEXT))
    except ValueError:
        key = b""
    if not key:
        raise ConfigError("standard input holds no key; trainers start their workers, with a key of the job")
    need_torch("a worker", quiet=True)
    from atta.train.dorylus.worker import work_for

    work_for(address, key, number)


COMMANDS: list[click.Command] = [train, worker]
