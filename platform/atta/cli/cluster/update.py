"""``atta update``: publishes new rows of a dataset's tables, and new edges, while daemons serve them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from atta.cli.options import CommandGroup
from atta.cli.output import cluster_option, echo, json_option, quiet_option, refuse_given, say, write_json
from atta.client.tables.versions import EdgeUpdater, TakenUpdates, publish, publish_edges
from atta.wire.clusterfile import credentials_for, resolve_target


@click.group(cls=CommandGroup)
def update() -> None:
    """New versions of a dataset's tables and edges, while its daemons serve.

    Example: atta update features --cluster cluster.toml --data products-2p --table x --from x.npy"""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        quiet_option,
        json_option,
        click.option("--keep", type=click.IntRange(1), default=2, help="Versions that stay on the disk if unread."),
        click.option("--data", required=True, metavar="FOLDER", help="Folder of the dataset."),
        cluster_option,
    ):
        command = option(command)
    return command


@update.command()
@click.option("--table", required=True, help="NAME or NODETYPE/NAME of the table.")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="PATH",
    help="FILE.npy: a row for each vertex, by ascending id; or a folder with NAME.npy and ids.npy: rows of some.",
)
@_options
def features(target: str, data: str, table: str, source: str, *, keep: int, json_file: str | None, quiet: bool) -> None:
    """Publish new rows of a node table.

    Writes them beside the dataset (DATA.versions), where the daemons read them. Sessions that are open go on with what
    they have begun with; later ones get the new rows. If one daemon cannot take them, none does.

    Example: atta update features --cluster cluster.toml --data products-2p --table x --from x.npy"""

    done = publish(data, table, source, resolve_target(target), credentials=credentials_for(target), keep=keep)
    _warn(done.untold)
    removed = {"removed": done.removed, "untold": done.untold}
    write_json(json_file, {"schema": 1, "version": done.number, "table": done.table, "rows": done.rows, **removed})
    if json_file != "-":
        say(quiet, f"{done.table}: version {done.number}, {done.rows:,} new rows")


@update.command()
@click.option("--edge-type", help="Type of the edges; not needed if there is one only.")
@click.option(
    "--from",
    "added",
    metavar="FOLDER",
    help="Edges to add: src.npy and dst.npy (vertex ids), and a file per edge table.",
)
@click.option(
    "--watch",
    metavar="FOLDER",
    help="Stay, and add the edges of each folder that is renamed into this one, several as one version.",
)
@click.option("--remove", "gone", metavar="FILE", help="FILE.npy: ids of edges to remove.")
@click.option("--replace", is_flag=True, help="Remove all edges that there are; those of --from take their place.")
@_options
def edges(
    target: str,
    data: str,
    *,
    edge_type: str | None,
    added: str | None,
    watch: str | None,
    gone: str | None,
    replace: bool,
    keep: int,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Publish new edges, between vertices that there are.

    Writes the edges of the type beside the dataset (DATA.versions), where the daemons read them. Sessions that are open
    go on with what they have begun with; later ones draw from the new edges. If one daemon cannot take them, none does.

    Example: atta update edges --cluster cluster.toml --data products-2p --from new-edges/

    Example: atta update edges --cluster cluster.toml --data products-2p --watch arriving/"""

    to, known = resolve_target(target), credentials_for(target)
    if watch is not None:
        refuse_given({"added", "gone", "replace"}, "goes without --watch")
        with closing(EdgeUpdater(data, watch, to, edge_type=edge_type, credentials=known, keep=keep)) as updater:
            for taken in updater.follow():
                _tell(taken, json_file, quiet=quiet)
    done = publish_edges(data, edge_type, to, added=added, removed=gone, replaces=replace, credentials=known, keep=keep)
    _warn(done.untold)
    name = done.table.rpartition("/")[0]
    removed = {"removed": done.removed, "untold": done.untold}
    counts = {"added": done.rows, "gone": done.gone, "replaced": replace}
    write_json(json_file, {"schema": 1, "version": done.number, "edge_type": name, **counts, **removed})
    if json_file != "-":
        lost = "all others removed" if replace else f"{done.gone:,} removed"
        say(quiet, f"{name}: version {done.number}, {done.rows:,} edges added, {lost}")


def _tell(taken: TakenUpdates, json_file: str | None, *, quiet: bool) -> None:
    """Say what was taken, in lines."""
    _warn(taken.untold)
    if json_file is not None:
        with click.open_file(json_file, "a") as lines:
            lines.write(json.dumps({"schema": 1, **asdict(taken)}) + "\n")
    for name, cause in taken.refused.items():
        echo(f"atta: warning: {name}: refused: {cause}", err=True)
    if taken.version is not None and json_file != "-":
        edges = "" if taken.edges is None else f", {taken.edges:,} edges added"
        say(quiet, f"version {taken.version}{edges}: {' '.join(taken.updates)}")


def _warn(untold: Sequence[str]) -> None:
    for reason in untold:
        echo(f"atta: warning: committed, but not all daemons were told: {reason}", err=True)


COMMANDS = [update]
