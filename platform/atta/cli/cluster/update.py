"""``atta update``: publishes new rows of a dataset's tables while daemons serve them."""

from __future__ import annotations

import click

from atta.cli.output import json_option, quiet_option, write_json
from atta.cli.work import say

__all__ = ["COMMANDS"]


@click.group()
def update() -> None:
    """New versions of a dataset's tables, while its daemons serve.

    Example: atta update features --cluster cluster.toml --data products-2p --table x --from x.npy
    """


@update.command()
@click.option("--cluster", "target", required=True, help="Cluster file, or host:port,host:port.")
@click.option("--data", required=True, metavar="FOLDER", help="Folder of the dataset.")
@click.option("--table", required=True, help="NAME or NODETYPE/NAME of the table.")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="PATH",
    help="FILE.npy: a row for each vertex, by ascending id; or a folder with NAME.npy and ids.npy: rows of some.",
)
@click.option(
    "--keep", type=click.IntRange(1), default=2, show_default=True, help="Versions that stay on the disk if unread."
)
@json_option
@quiet_option
def features(target: str, data: str, table: str, source: str, *, keep: int, json_file: str | None, quiet: bool) -> None:
    """Publish new rows of a node table.

    Writes them beside the dataset (DATA.versions), where the daemons read them. Sessions that are open go on with what
    they have begun with; later ones get the new rows. If one daemon cannot take them, none does.

    Example: atta update features --cluster cluster.toml --data products-2p --table x --from x.npy
    """
    from atta.client.cluster import credentials_for, resolve_target
    from atta.client.tables.versions import publish

    done = publish(data, table, source, resolve_target(target), credentials=credentials_for(target), keep=keep)
    for reason in done.untold:
        click.echo(f"atta: warning: committed, but not all daemons were told: {reason}", err=True)
    removed = {"removed": done.removed, "untold": done.untold}
    write_json(json_file, {"schema": 1, "version": done.number, "table": done.table, "rows": done.rows, **removed})
    if json_file != "-":
        say(quiet, f"{done.table}: version {done.number}, {done.rows:,} new rows")


COMMANDS = [update]
