"""``atta schema``: a first ``schema.json`` for a folder of tables."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from atta.cli.output import quiet_option
from atta.cli.work import overwrite_option, say
from atta.errors import ConfigError, DataError
from atta.partition.disk.store import path_here
from atta.partition.importers import import_graph
from atta.partition.importers.table.guess import guess_schema
from atta.partition.importers.table.rules import SCHEMA

__all__ = ["COMMANDS"]

_CHECKED_BYTES = 256 << 20
"""Folders up to this size are imported once, to see whether the schema fits."""


@click.command("schema", epilog="Example: atta schema tables/social && atta import table tables/social graphs/social")
@click.argument("folder", type=click.Path())
@overwrite_option
@quiet_option
def schema(folder: str, *, overwrite: bool, quiet: bool) -> None:
    """Guess FOLDER/schema.json, which `atta import table` needs, from the Parquet and CSV files in FOLDER.

    Files with ids become vertices, files with two columns of such ids edges. Read the file, and edit what it guessed.
    """
    where = path_here(folder, "schema")
    if not where.is_dir():
        raise DataError(where, "no such folder")
    path = where / SCHEMA
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; --overwrite replaces it")
    guess = guess_schema(where)
    for line in guess.lines:
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
    return f"; tried: atta import table {folder} GRAPH works"


COMMANDS: list[click.Command] = [schema]
