"""Run DistDGL alone and print what every rank reports, one JSON object per rank and epoch.

python -m atta.bench.peers.distdgl GRAPH [--parts 2] [--num-neighbors 15,10,5] [--batch-size 1024] [--rate 1gbit]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from atta.bench.lab.netlab import NetLab
from atta.bench.lab.workload import Workload
from atta.bench.peers.distdgl.launch import run_distdgl
from atta.bench.peers.distdgl.partition import prepare
from atta.cli.output import INTS
from atta.errors import AttaError


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--parts", default=2, show_default=True)
@click.option("--num-neighbors", type=INTS, default="15,10,5", show_default=True)
@click.option("--batch-size", default=1024, show_default=True)
@click.option("--epochs", default=2, show_default=True)
@click.option("--seconds", default=0.0, show_default=True)
@click.option("--rate", help="Rate of every host's link, e.g. 1gbit.")
@click.option("--cache", type=click.Path(path_type=Path), default=Path("data/peers"), show_default=True)
def main(  # noqa: PLR0917 - one parameter per option
    graph: Path,
    parts: int,
    num_neighbors: tuple[int, ...],
    batch_size: int,
    epochs: int,
    seconds: float,
    rate: str | None,
    cache: Path,
) -> None:
    """Sample and fetch GRAPH (graph folder or partitioned dataset) with DistDGL."""
    workload = Workload(num_neighbors, batch_size, epochs=epochs, seconds=seconds)
    try:
        partitions = prepare(graph, parts, workload.split, cache.resolve())
        with NetLab(parts, rate=rate) as lab, tempfile.TemporaryDirectory(prefix="atta-distdgl-") as folder:
            measured = run_distdgl(partitions, workload, lab.hosts, Path(folder))
    except AttaError as error:
        click.echo(json.dumps({"error": str(error)}))
        raise SystemExit(1) from None
    for epoch in measured.epochs:
        click.echo(json.dumps(epoch))


if __name__ == "__main__":
    main()
