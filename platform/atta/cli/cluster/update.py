"""``atta update``: publishes new rows of a dataset's tables, new edges and new vertices, while daemons serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from atta.cli.options import CommandGroup
from atta.cli.output import cluster_option, echo, json_option, quiet_option, refuse_given, say, write_json
from atta.client.tables.versions import (
    PublishedVersion,
    publish,
    publish_edges,
    publish_vertices,
    publishing,
    taking_edges,
)
from atta.observe.lastwords import counted
from atta.wire.clusterfile import credentials_for, resolve_target


@click.group(cls=CommandGroup)
def update() -> None:
    """New versions of a dataset's tables, edges and vertices, while its daemons serve.

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
        say(quiet, f"{done.table}: version {done.number}, {counted(done.rows, 'new row')}")


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

    def published() -> Iterator[PublishedVersion]:
        if watch is None:
            how: dict[str, Any] = {"replaces": replace, "credentials": known, "keep": keep}
            yield publish_edges(data, edge_type, to, added=added, removed=gone, **how)
            return
        refuse_given({"added", "gone", "replace"}, "goes without --watch")
        with publishing(data, to, known, keep) as publisher, taking_edges(publisher, watch, edge_type) as updater:
            yield from updater.follow()

    for done in published():
        _warn(done.untold)
        name = done.table.rpartition("/")[0]
        removed = {"removed": done.removed, "untold": done.untold}
        counts = {"added": done.rows, "gone": done.gone, "replaced": replace}
        taken = {} if watch is None else {"updates": done.updates, "refused": done.refused}
        document = {"schema": 1, "version": done.number, "edge_type": name, **counts, **removed, **taken}
        write_json(json_file, document, line=watch is not None)
        for update, cause in done.refused.items():
            echo(f"atta: warning: {update}: refused: {cause}", err=True)
        if json_file != "-" and done.number:
            lost = "all others removed" if replace else f"{done.gone:,} removed"
            of = "".join(f", {update}" for update in done.updates)
            say(quiet, f"{name}: version {done.number}, {counted(done.rows, 'edge')} added, {lost}{of}")


@update.command()
@click.option(
    "--from", "source", required=True, metavar="FOLDER", help="Graph folder with the new vertices and their edges."
)
@_options
def nodes(target: str, data: str, source: str, *, keep: int, json_file: str | None, quiet: bool) -> None:
    """Publish new vertices, with their edges.

    The folder is one that atta import writes. Its vertices that the dataset does not have, by their ids, take vertices of
    the room (atta partition --room) with rows of all tables. All edges of the folder are added. It is one version: if one
    daemon cannot take it, none does.

    Example: atta update nodes --cluster cluster.toml --data products-2p --from graphs/new"""

    to, known = resolve_target(target), credentials_for(target)
    done = publish_vertices(data, source, to, credentials=known, keep=keep)
    _warn(done.untold)
    ids = {node_type: numbers.tolist() for node_type, numbers in done.ids.items()}
    removed = {"removed": done.removed, "untold": done.untold}
    write_json(json_file, {"schema": 1, "version": done.number, "ids": ids, "edges": done.edges, **removed})
    if json_file != "-":
        came = "; ".join(
            f"{t}: {counted(len(n), 'new vertex', 'new vertices')}, ids {_span(n)}" for t, n in ids.items()
        )
        say(quiet, f"version {done.number}: {came}; {counted(sum(done.edges.values()), 'edge')} added")


def _span(ids: Sequence[int]) -> str:
    return f"{min(ids)}" if len(ids) == 1 else f"{min(ids)} to {max(ids)}"


def _warn(untold: Sequence[str]) -> None:
    for reason in untold:
        echo(f"atta: warning: committed, but not all daemons were told: {reason}", err=True)


COMMANDS = [update]
