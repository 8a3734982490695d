"""``atta demo``: a first run, command by command."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from atta.cli.options import command
from atta.cli.output import echo
from atta.observe.packages import need

_STEPS = {
    "a graph of 120,000 vertices and 3 million edges": "generate powerlaw graphs/demo --nodes 120000 --edges 3000000 "
    "--features 64 --classes 16 --seed 1",
    "two partitions, by METIS": "partition graphs/demo data/demo-2p --parts 2 --method metis",
    "what came out": "inspect data/demo-2p",
    "GraphSAGE: two sampler daemons, two trainers": "train --data data/demo-2p --model sage --trainers 2 --epochs 5 "
    "--num-neighbors 15,10,5 --batch-size 512 --hidden 64 --seed 1 --checkpoint runs/demo --overwrite",
}
_NEXT = "predict --data data/demo-2p --checkpoint runs/demo --what classes --out classes/demo"


@command("demo", epilog="Example: atta demo")
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Show a first run: generate a graph, cut it in two, train GraphSAGE on it.

    It takes a minute or two. It writes graphs/demo, data/demo-2p and runs/demo into this folder. The graph and its
    partitions are kept, and used by the next demo."""
    need("atta demo", "torch", "torch_geometric")
    for shows, line in _STEPS.items():
        words = shlex.split(line)
        if words[0] in ("generate", "partition") and Path(words[2]).exists():
            echo(f"\n== {shows}: {words[2]} is there")
            continue
        echo(f"\n== {shows}\n$ atta {line}")
        ctx.find_root().command.main(words, prog_name="atta", standalone_mode=False)
    echo(f"\n== the model is in runs/demo; next, the class of every vertex:\n$ atta {_NEXT}")


COMMANDS: list[click.Command] = [demo]
