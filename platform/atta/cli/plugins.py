"""``atta plugins``: the names of all kinds, and where each comes from."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from atta.cli.options import command, plugin_option
from atta.cli.output import json_option, printer, write_json
from atta.errors import ConfigError
from atta.observe.packages import __version__
from atta.observe.plugins import Plugin, Registry, registries


@command(epilog="Example: atta plugins --plugin my_methods:first")
@plugin_option
@json_option
def plugins(json_file: str | None) -> None:
    """List strategies, methods, models, formats and operators: those of Atta, and those of installed packages.

    Every plug-in is loaded, and the reason is told if one cannot be."""
    found = [_described(registry, plugin) for registry in registries() for plugin in registry.plugins().values()]
    if json_file != "-":
        table = Table("kind", "name", "from", box=None)
        for registry in registries():
            table.add_row(registry.kind, ", ".join(registry), f"atta {__version__}")
            for one in found:
                if one["kind"] == registry.kind:
                    table.add_row("", one["name"], f"{one['package'] or '--plugin'} ({one['place']}) {one['fault']}")
        printer().print(table)
    write_json(json_file, {"schema": 1, "plugins": found})


def _described(registry: Registry[Any], plugin: Plugin) -> dict[str, Any]:
    fault = ""
    try:
        registry[plugin.name]
    except ConfigError as error:
        fault = str(error)
    about = {"name": plugin.name, "package": plugin.package, "place": plugin.place}
    return {"kind": registry.kind, **about, "fault": fault}


COMMANDS: list[click.Command] = [plugins]
