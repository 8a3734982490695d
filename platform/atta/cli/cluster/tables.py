"""``atta tables``: lists, deletes, saves and loads the mutable tables of a running cluster."""

from __future__ import annotations

import warnings

import click
from rich.table import Table

from atta.cli.options import CommandGroup
from atta.cli.output import cluster_option, echo, json_option, printer, quiet_option, say, size, write_json
from atta.client.cluster import connect
from atta.client.tables.cluster import promote as promoted
from atta.errors import UnknownNameError


@click.group(cls=CommandGroup)
def tables() -> None:
    """Mutable tables (embeddings, states) of a running cluster.

    Example: atta tables list --cluster cluster.toml"""


@tables.command("list")
@cluster_option
@json_option
def list_(target: str, json_file: str | None) -> None:
    """Show the tables, with the rows that they have now, and the memory that they take.

    Example: atta tables list --cluster cluster.toml"""

    with connect(target, deadline_s=10.0) as cluster:
        found, stats = cluster.tables.listed(), cluster.stats()
    entries = [
        {**spec.to_dict(), "rows": rows, "bytes": spec.nbytes(rows)} for _, (spec, rows) in sorted(found.items())
    ]
    used = [int(s.get("table_bytes", 0)) for s in stats]
    write_json(json_file, {"schema": 1, "tables": entries, "used_bytes": used})
    if json_file == "-":
        return
    table = Table("name", "rows", "row", "policy", "optimiser", "memory", title="Mutable tables")
    for entry in entries:
        optimiser = entry["optimiser"]
        table.add_row(
            entry["name"],
            f"{entry['rows']:,}",
            f"{entry['dtype'][1:]}{entry['row_shape'] or ''}",
            entry["policy"],
            f"{optimiser['kind']} lr {optimiser['lr']:g}" if optimiser else "",
            size(entry["bytes"]),
        )
    printer().print(table)
    printer().print("in memory of the daemons: " + ", ".join(f"part {p} {size(b)}" for p, b in enumerate(used)))


@tables.command()
@cluster_option
@click.argument("name")
@quiet_option
def save(target: str, name: str, *, quiet: bool) -> None:
    """Write all tables, with optimiser states, into the snapshot NAME of every daemon.

    Training may go on meanwhile. An older snapshot of that name stays until the new one is complete on all daemons.

    Example: atta tables save --cluster cluster.toml epoch-10"""

    with connect(target) as cluster:
        names = cluster.tables.save(name)
    say(quiet, f"{name}: saved {', '.join(names) or 'no tables'}")


@tables.command()
@cluster_option
@click.argument("name")
@quiet_option
def load(target: str, name: str, *, quiet: bool) -> None:
    """Replace the tables of all daemons by those of the snapshot NAME.

    If one daemon cannot load its part, none does. Daemons save the snapshot 'shutdown' when they stop.

    Example: atta tables load --cluster cluster.toml epoch-10"""

    with connect(target) as cluster, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        names = cluster.tables.load(name)
    for warning in told:
        echo(f"atta: warning: {warning.message}", err=True)
    say(quiet, f"{name}: loaded {', '.join(names) or 'no tables'}")


@tables.command()
@cluster_option
@click.argument("name")
@quiet_option
def delete(target: str, name: str, *, quiet: bool) -> None:
    """Delete the table NAME on all daemons.

    Example: atta tables delete --cluster cluster.toml users"""

    with connect(target) as cluster:
        if not cluster.tables.delete(name):
            raise UnknownNameError.of("mutable table", name, cluster.tables.specs())
    say(quiet, f"{name}: deleted")


@tables.command()
@cluster_option
@click.option("--part", type=int, required=True, help="The partition whose tables move.")
@click.option("--to", "address", metavar="HOST:PORT", show_default="the partition's other daemon", help="The backup.")
@quiet_option
def promote(target: str, part: int, address: str | None, *, quiet: bool) -> None:
    """Let the backup of a partition hold its tables from now on.

    Do this when the daemon that holds them is lost with its disk. If it comes back, it knows that it is stale, and
    acknowledges nothing. The cluster file then names the backup first, so that clients find the tables there.

    Example: atta tables promote --cluster cluster.toml --part 0"""

    at, found = promoted(target, part, address)
    say(quiet, f"{at}: holds the {found} tables of partition {part} now")


COMMANDS = [tables]
