"""``atta export``: write graph folders in other formats."""

from __future__ import annotations

import click

from atta.cli.output import quiet_option
from atta.cli.work import say, work_progress
from atta.partition.exporters import EXPORTERS, PARTITIONED, export_graph


@click.command("export", epilog="Example: atta export table graphs/cora cora-tables")
@click.argument("format_", metavar="FORMAT", type=click.Choice(sorted([*EXPORTERS, *PARTITIONED])))
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace DST: a file, or a folder in this format.")
@quiet_option
def export_(format_: str, src: str, dst: str, *, overwrite: bool, quiet: bool) -> None:
    """Write the graph folder SRC (for pyg-parts: the partitioned dataset SRC) in FORMAT to DST, ids and order of edges
    kept.

    DST is a file for dgl and pyg, a folder for the others. A graph is refused if FORMAT would lose a part of it.
    """
    with work_progress(quiet) as progress:
        export_graph(format_, src, dst, overwrite=overwrite, progress=progress)
    say(quiet, f"{dst}: exported from {src}")


COMMANDS: list[click.Command] = [export_]
