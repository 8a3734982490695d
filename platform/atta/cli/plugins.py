"""``atta plugins``: the names of all kinds, and where each comes from."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from atta.cli.options import command, plugin_option
from atta.cli.output import json_option, printer, write_json
from atta.errors import ConfigError
from atta.observe.packages import __version__
from atta.observe.plugins import OpenRegistry, Plugin, named, registries, use


@command(epilog="Example: atta plugins --plugin my_methods:first")
@plugin_option
@click.option("--check", is_flag=True, help="Load each plug-in, and say why one does not load.")
@json_option
def plugins(json_file: str | None, *, check: bool) -> None:
    """List strategies, methods, models, formats and operators: those of Atta, and those of installed packages."""
    kinds = [(registry, p) for registry in registries() for p in registry.plugins().values() if p.group]
    found = [_described(registry, p, _fault(registry, p) if check or not p.place else "") for registry, p in kinds]
    found += [_described(None, plugin, _fault(None, plugin)) for plugin in named() if not plugin.group]
    taken = "not used, as Atta has one of this name: announce yours by another"
    found += [_described(each, plugin, taken) for each in registries() for plugin in each.hidden()]
    names = {registry.kind: [*registry] for registry in registries()}
    write_json(json_file, {"schema": 1, "names": names, "plugins": found})
    if json_file != "-":
        table = Table("kind", "name", "from", box=None)
        own = {kind: (", ".join(known), f"atta {__version__}") for kind, known in names.items()}
        for kind, row in {**own, "?": ()}.items():
            if row:
                table.add_row(kind, *row)
            for one in found:
                if one["kind"] == kind:
                    origin = one["fault"] or f"{one['package'] or '--plugin'} ({one['place']})"
                    table.add_row("" if row else kind, one["name"], origin)
        printer().print(table)


def _fault(registry: OpenRegistry[Any] | None, plugin: Plugin) -> str:
    """Why a plug-in cannot be used; empty: it can. It is loaded."""
    try:
        if registry is not None:
            registry[plugin.name]
        else:
            use(plugin.place)
    except ConfigError as error:
        return str(error)
    return ""


def _described(registry: OpenRegistry[Any] | None, plugin: Plugin, fault: str) -> dict[str, Any]:
    """A plug-in as JSON has it. ``registry``: of its kind; None: it has none."""
    about = {"name": plugin.name, "package": plugin.package, "place": plugin.place}
    return {"kind": "?" if registry is None else registry.kind, **about, "fault": fault}


COMMANDS: list[click.Command] = [plugins]
