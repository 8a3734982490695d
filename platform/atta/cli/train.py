"""``atta train``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from atta.cli.options import config_option, settings_options
from atta.cli.output import NODE_RANK, check_folder, echo, json_option, quiet_option, write_json
from atta.observe.extras import need
from atta.train.config import TrainConfig
from atta.train.strategies import STRATEGIES, strategies_with

if TYPE_CHECKING:
    from atta.train import TrainReport

__all__ = ["COMMANDS"]

# Settings that not every strategy has begin with the names of those that have them.
_BELONGS = {f.name: ", ".join(strategies_with(f.name)) for f in dataclasses.fields(TrainConfig)}


@click.command()
@config_option
@settings_options(TrainConfig, groups=_BELONGS)
@click.option("--nnodes", type=int, default=1, show_default=True, help="Machines; give this command on each of them.")
@click.option(
    "--node-rank",
    type=NODE_RANK,
    default="0",
    show_default=True,
    help="Which of the machines this is; auto: the number that Kubernetes, Slurm or the host's name gives it.",
)
@click.option(
    "--rdzv-endpoint", metavar="HOST:PORT", help="Where the machines meet: an address of machine 0, free there."
)
@json_option
@quiet_option
def train(
    *,
    settings: dict[str, Any],
    json_file: str | None,
    quiet: bool,
    nnodes: int,
    node_rank: int,
    rdzv_endpoint: str | None,
) -> None:
    """Train a model on a partitioned graph: sampled mini-batches, or whole servers.

    Example: atta train --data data/demo-2p --model sage --trainers 2 --epochs 5 --num-neighbors 15,10,5

    Example: atta train --data data/demo-2p --strategy full --trainers 4 --trainers-per-server 2 --layers 3 --eas 1,15

    Example: atta train --cluster cluster.toml --trainers 4 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1:29400
    """
    need("training", "torch", "torch_geometric")
    from atta.train import Nodes, fit

    # An engine that numbers the machines also starts daemons and trainers in any order.
    placed = click.get_current_context().get_parameter_source("node_rank") is not ParameterSource.DEFAULT
    nodes = Nodes(nnodes, node_rank, rdzv_endpoint, wait=placed)
    if settings["checkpoint"] and node_rank == 0:
        check_folder("--checkpoint", settings["checkpoint"])
    report = fit(TrainConfig(**settings, verbose=not quiet), nodes)
    if not quiet and json_file != "-":
        _print(report)
    write_json(json_file, report.to_json())


def _print(report: TrainReport) -> None:
    best = report.best
    found = best.metric(report.watched.metric)
    if report.config.task == "classes" and best.test_accuracy is not None:
        validated = "" if best.val_accuracy is None else f"val {best.val_accuracy:.4f}, "
        which = "best" if validated else "last"
        echo(f"{which} epoch {best.epoch}: {validated}test accuracy {best.test_accuracy:.4f}")
    elif found is not None:
        tested = [f"{name[5:]} {value:.4f}" for name, value in best.metrics.items() if name.startswith("test_")]
        test = f"; test {', '.join(tested)}" if tested else ""
        echo(f"best epoch {best.epoch}: {report.watched.metric} {found:.4f}{test}")
    rates = sorted(e.seeds_per_s for e in report.epochs)
    counted = STRATEGIES[report.config.strategy].counted
    echo(f"median throughput {rates[len(rates) // 2]:,.0f} {counted}/s over {len(rates)} epochs")


COMMANDS = [train]
