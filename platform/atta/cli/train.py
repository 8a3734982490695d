"""``atta train``."""

from __future__ import annotations

from typing import Any

import click

from atta.cli.output import INTS, json_option, quiet_option, write_json

__all__ = ["COMMANDS"]


@click.command()
@click.option("--data", help="Partitioned dataset; its daemons are started for the run.")
@click.option("--cluster", help="Cluster file (or addresses) of daemons that run already.")
@click.option("--model", type=click.Choice(["sage", "gcn", "gat"]), default="sage", show_default=True)
@click.option("--strategy", type=click.Choice(["minibatch"]), default="minibatch", show_default=True)
@click.option("--trainers", type=int, default=1, show_default=True, help="Trainer processes on this machine.")
@click.option("--epochs", type=int, default=10, show_default=True)
@click.option(
    "--num-neighbors", type=INTS, default="15,10,5", show_default=True, help="Fan-outs from the seeds; -1 = all."
)
@click.option(
    "--layers", type=int, help="Model layers  [default: one per hop]; with a single fan-out it holds for all."
)
@click.option("--batch-size", type=int, default=1024, show_default=True, help="Seeds per trainer and step.")
@click.option("--hidden", type=int, default=256, show_default=True)
@click.option("--heads", type=int, default=4, show_default=True, help="Attention heads (gat).")
@click.option("--lr", type=float, default=0.01, show_default=True)
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--dropout", type=float, default=0.5, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--seeds",
    type=click.Choice(["local", "global"]),
    default="local",
    show_default=True,
    help="Seeds from near, or of all.",
)
@click.option("--eval-every", type=int, default=1, show_default=True, help="Epochs between evaluations.")
@click.option("--eval-num-neighbors", type=INTS, help="Fan-outs of validation and test  [default: --num-neighbors].")
@click.option("--eval-batch-size", type=int, help="[default: --batch-size]")
@click.option("--patience", type=int, help="Stop after so many evaluations without a better validation accuracy.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=int, help="Worker threads per daemon started here.")
@click.option("--checkpoint", metavar="DIR", help="Write a checkpoint after every epoch.")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint, if there is one.")
@json_option
@quiet_option
def train(json_file: str | None, quiet: bool, **options: Any) -> None:
    """Train a model with distributed sampling, one hop per layer.

    Example: atta train --data data/demo-2p --model sage --trainers 2 --epochs 5 --num-neighbors 15,10,5
    """
    from atta.train import TrainConfig, fit

    report = fit(TrainConfig(**options, verbose=not quiet))
    write_json(json_file, report.to_json())
    if not quiet and json_file != "-":
        best = report.best
        if best.test_accuracy is not None:
            click.echo(
                f"best epoch {best.epoch + 1}: val {best.val_accuracy or 0:.4f}, test accuracy {best.test_accuracy:.4f}"
            )
        rates = sorted(e.seeds_per_s for e in report.epochs)
        click.echo(f"median throughput {rates[len(rates) // 2]:,.0f} seeds/s over {len(rates)} epochs")


COMMANDS = [train]
