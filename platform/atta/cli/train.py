"""``atta train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atta.cli.output import INTS, SIZE, check_folder, json_option, quiet_option, write_json
from atta.observe.extras import need

if TYPE_CHECKING:
    from atta.train import TrainReport

__all__ = ["COMMANDS"]


@click.command()
@click.option("--data", help="Partitioned dataset; its daemons are started for the run.")
@click.option("--cluster", help="Cluster file (or addresses) of daemons that run already.")
@click.option(
    "--model",
    type=click.Choice(["sage", "gcn", "gat", "resgcn+", "deepergcn"]),
    default="sage",
    show_default=True,
    help="The last two are deep ones.",
)
@click.option(
    "--strategy",
    type=click.Choice(["minibatch", "full", "cooperative"]),
    default="minibatch",
    show_default=True,
    help="Sampled batches per trainer; all vertices in one step; large batches shared by the trainers of a server.",
)
@click.option("--trainers", type=int, default=1, show_default=True, help="Trainer processes, on all machines together.")
@click.option("--epochs", type=int, default=10, show_default=True)
@click.option(
    "--num-neighbors",
    type=INTS,
    default="15,10,5",
    show_default=True,
    help="minibatch: fan-outs from the seeds; -1 = all.",
)
@click.option(
    "--layers", type=int, help="Model layers  [default: one per hop, or 3]; with a single fan-out it holds for all."
)
@click.option("--batch-size", type=int, default=1024, show_default=True, help="minibatch: seeds per trainer and step.")
@click.option(
    "--trainers-per-server",
    type=int,
    help="full, cooperative: trainers that share a subgraph  [default: all]; a server has one partition, or all.",
)
@click.option(
    "--eas",
    type=INTS,
    metavar="MAX_HOP,FANOUT",
    help="full, cooperative: sample outside the server's own vertices, such as 1,15  [default: exact closure].",
)
@click.option(
    "--resample-every",
    type=int,
    default=0,
    show_default=True,
    help="full, cooperative: epochs after which --eas draws anew; 0 = never.",
)
@click.option("--co-batches", type=int, help="cooperative: steps per epoch.")
@click.option("--memory", type=SIZE, help="cooperative: memory per trainer, from which --co-batches follows.")
@click.option(
    "--checkpoint-layers", is_flag=True, help="Deep models: recompute activations in backward, to save memory."
)
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
    help="minibatch: seeds from near, or of all.",
)
@click.option("--eval-every", type=int, default=1, show_default=True, help="Epochs between evaluations.")
@click.option(
    "--eval-num-neighbors",
    type=INTS,
    help="minibatch: fan-outs of validation and test  [default: --num-neighbors].",
)
@click.option("--eval-batch-size", type=int, help="minibatch: [default: --batch-size]")
@click.option("--patience", type=int, help="Stop after so many evaluations without a better validation accuracy.")
@click.option("--nnodes", type=int, default=1, show_default=True, help="Machines; give this command on each of them.")
@click.option("--node-rank", type=int, default=0, show_default=True, help="Which of the machines this is.")
@click.option(
    "--rdzv-endpoint", metavar="HOST:PORT", help="Where the machines meet: an address of machine 0, free there."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=int, help="Worker threads per daemon started here.")
@click.option("--checkpoint", metavar="DIR", help="Write a checkpoint after every epoch.")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint, if there is one.")
@json_option
@quiet_option
def train(
    json_file: str | None, quiet: bool, nnodes: int, node_rank: int, rdzv_endpoint: str | None, **options: Any
) -> None:
    """Train a model on a partitioned graph: sampled mini-batches, or whole servers.

    Example: atta train --data data/demo-2p --model sage --trainers 2 --epochs 5 --num-neighbors 15,10,5

    Example: atta train --data data/demo-2p --strategy full --trainers 4 --trainers-per-server 2 --layers 3 --eas 1,15

    Example: atta train --cluster cluster.toml --trainers 4 --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1:29400
    """
    from atta.train import Nodes, TrainConfig, fit

    need("training", "torch", "torch_geometric")
    nodes = Nodes(nnodes, node_rank, rdzv_endpoint)
    if options["checkpoint"] and node_rank == 0:
        check_folder("--checkpoint", options["checkpoint"])
    report = fit(TrainConfig(**options, verbose=not quiet), nodes)
    if not quiet and json_file != "-":
        _print(report)
    write_json(json_file, report.to_json())


def _print(report: TrainReport) -> None:
    best = report.best
    if best.test_accuracy is not None:
        click.echo(f"best epoch {best.epoch}: val {best.val_accuracy or 0:.4f}, test accuracy {best.test_accuracy:.4f}")
    rates = sorted(e.seeds_per_s for e in report.epochs)
    what = "seeds" if report.config.strategy == "minibatch" else "training vertices"
    click.echo(f"median throughput {rates[len(rates) // 2]:,.0f} {what}/s over {len(rates)} epochs")


COMMANDS = [train]
