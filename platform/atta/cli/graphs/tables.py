"""``atta schema``, ``atta export`` and ``atta deploy``."""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path

import click

from atta.cli.options import command
from atta.cli.output import overwrite_option, quiet_option, say, size, work_progress
from atta.errors import ConfigError, DataError, near_path
from atta.partition.deploy import deploy
from atta.partition.disk.store import path_here
from atta.partition.exporters import EXPORTERS, PARTITIONED, export_graph
from atta.partition.importers import import_graph
from atta.partition.importers.table.graphstorm import schema_from_graphstorm
from atta.partition.importers.table.guess import guess_schema
from atta.partition.importers.table.schema import SCHEMA
from atta.partition.names import lonely

_CHECKED_BYTES = 256 << 20
"""Folders up to this size are imported once, to see whether the schema fits."""


@command("schema", epilog="Example: atta schema tables/social --labels segment")
@click.argument("folder", type=click.Path())
@click.option("--labels", metavar="COLUMN", help="Column of vertices to be predicted: COLUMN, TYPE/COLUMN, or none.")
@click.option("--from", "origin", metavar="FILE", help="Do not guess: take what GraphStorm's gconstruct JSON says.")
@click.option("--overwrite", is_flag=True, help="Replace FOLDER/schema.json if there is one.")
@quiet_option
def schema(folder: str, *, labels: str | None, origin: str | None, overwrite: bool, quiet: bool) -> None:
    """Guess FOLDER/schema.json, which `atta import table` needs, from the Parquet and CSV files in FOLDER.

    Files with ids become vertices, files with two columns of such ids edges. Read the file, and edit what it guessed.
    With --from, paths are relative to the current folder, as for GraphStorm.
    """
    where = path_here(folder, "schema")
    if not where.is_dir():
        missing = f"no such folder{near_path(where)}"
        raise DataError(where, "is a file: name the folder that it is in" if where.exists() else missing)
    path = where / SCHEMA
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; --overwrite replaces it")
    if origin is not None and labels is not None:
        raise ConfigError("--labels: not with --from, whose file names them")
    guess = guess_schema(where, labels) if origin is None else schema_from_graphstorm(Path(origin), where)
    for line in (*guess.lines, *lonely(guess.schema["nodes"], guess.schema["edges"])):
        say(quiet, line)
    path.write_text(json.dumps(guess.schema, indent=1, ensure_ascii=False) + "\n")
    say(quiet, f"{path}: written{_verdict(where)}")


def _verdict(folder: Path) -> str:
    if sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) > _CHECKED_BYTES:
        return "; not tried, for the files are large"
    with tempfile.TemporaryDirectory() as place:
        try:
            import_graph("table", folder, Path(place) / "graph")
        except (ConfigError, DataError) as error:
            return f"; edit it, for this is refused: {error}"
    return f"; tried: {shlex.join(('atta', 'import', 'table', str(folder), 'GRAPH'))} works"


@command("export", epilog="Example: atta export table graphs/cora cora-tables")
@click.argument("format_", metavar="FORMAT", type=click.Choice(sorted([*EXPORTERS, *PARTITIONED])))
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--overwrite", is_flag=True, help="Replace DST: a file, or a folder in this format.")
@quiet_option
def export_(format_: str, src: str, dst: str, *, overwrite: bool, quiet: bool) -> None:
    """Write the graph folder SRC (for pyg-parts: the partitioned dataset SRC) in FORMAT to DST, ids and order of edges
    kept.

    DST is a file for dgl and pyg, a folder for the others. A graph is refused if FORMAT would lose a part of it."""
    with work_progress(quiet) as progress:
        export_graph(format_, src, dst, overwrite=overwrite, progress=progress)
    say(quiet, f"{dst}: exported from {src}")


@command("deploy", epilog="Example: atta deploy data/big-2p --part 0 /mnt/machine-0/big-2p")
@click.argument("src", type=click.Path(), metavar="DATA")
@click.argument("dst", type=click.Path())
@click.option(
    "--part",
    "parts",
    type=click.IntRange(0),
    multiple=True,
    required=True,
    help="Partition that will be served there; may be given several times.",
)
@overwrite_option
@quiet_option
def deploy_(src: str, dst: str, *, parts: tuple[int, ...], overwrite: bool, quiet: bool) -> None:
    """Copy what the daemon of one partition needs of the dataset DATA into the folder DST.

    These are the manifest, the files that all daemons read, and the partition. Every checksum is verified. DST appears
    when the copy is complete."""
    with work_progress(quiet) as progress:
        copied = deploy(src, dst, parts, overwrite=overwrite, progress=progress)
    told = f"partition{'s' if len(parts) > 1 else ''} {', '.join(map(str, parts))}"
    say(quiet, f"{dst}: {told} of {src}, {size(copied)}, checksums verified")


COMMANDS: list[click.Command] = [schema, export_, deploy_]
