"""``atta check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atta.cli.output import echo, json_option, write_json
from atta.errors import ConfigError
from atta.observe.extras import need

if TYPE_CHECKING:
    from atta.client.cluster import Cluster


@click.command()
@click.argument("model", metavar="MODULE:NAME")
@click.option("--data", type=click.Path(file_okay=False), help="Partitioned dataset; its daemons are started here.")
@click.option("--cluster", "target", help="Cluster file, or host:port,host:port, of running daemons.")
@click.option("--hops", type=click.IntRange(1, 32), help="Hops of the batches.  [default: as many as the model reads]")
@click.option("--features", default="x", show_default=True, metavar="TABLE", help="Node table that the model reads.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the choice of vertices.")
@json_option
def check(
    *,
    model: str,
    data: str | None,
    target: str | None,
    hops: int | None,
    features: str,
    seed: int,
    json_file: str | None,
) -> None:
    """Say whether a model gives on batches what it gives on the graph.

    NAME is a torch module in the Python file or package MODULE, or a function or class that gives one without
    arguments. It is called as model(x, edge_index). Where a form of batch differs, the table names the first layer that
    does, and the remedies that were tried and work. Exit code 1: something differs.

    Example: atta check models:net --data data/demo-2p

    Example: atta check models:net --cluster cluster.toml --hops 2 --json report.json
    """
    need("checking a model", "torch", "torch_geometric")
    import atta
    from atta.train.launching.check import imported_model

    own = imported_model(model)
    with _connected(data, target) as cluster:
        report = atta.check(own, cluster, hops=hops, features=features, seed=seed)
    if json_file != "-":
        echo(str(report))
    write_json(json_file, report.to_json())
    if not report.ok:
        click.get_current_context().exit(1)


def _connected(data: str | None, target: str | None) -> Cluster:
    import atta

    if data is not None and target is None:
        return atta.local(data)
    if target is not None and data is None:
        return atta.connect(target)
    raise ConfigError("give either --data (a partitioned dataset) or --cluster (running daemons)")


COMMANDS = [check]
