"""Parts of one's own: strategies, methods, models and others that are found by name like Atta's.

A package announces a part by an entry point in the group of its kind. ``--plugin`` names one that is not installed, and the
variable ``ATTA_PLUGINS`` hands the name on to the daemons and trainers that a command starts. Nothing of a plug-in is
imported before somebody asks for it, and no code travels: a process runs what is installed, or named, where it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from atta.errors import PluginError, UnknownNameError

VARIABLE = "ATTA_PLUGINS"
"""Environment variable: what ``--plugin`` takes, several with commas between them."""
_HOMES = (
    *("atta.partition.importers", "atta.partition.methods", "atta.samplers.methods", "atta.samplers.operators"),
    *("atta.train.settings", "atta.train.strategies"),
)
"""Modules with the registries, by name: they stand above this one."""
_REGISTRIES: list[OpenRegistry[Any]] = []
T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """A part that does not come with Atta: ``place`` is ``module:object``. ``package``: its name and release; empty: somebody
    has named the place. ``group``: of entry points; empty: of a place whose part was not loaded yet."""

    name: str
    place: str
    package: str = ""
    group: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.place}, {f'of {self.package}' if self.package else 'by --plugin'})"

    @property
    def text(self) -> str:
        """What ``named`` reads."""
        return f"{self.group}/{self.name}={self.place}"

    def load(self) -> Any:
        """The part. Raises PluginError: it cannot be imported, or two packages have one of this name."""
        if not self.place:
            raise PluginError(f"plug-in {self.name!r}: {self.package} announce it: remove one of them")
        try:
            return _loaded(self.place, here=not self.package)
        except Exception as error:  # a user's module may raise anything while it is imported
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            raise PluginError(f"plug-in {self} does not load: {cause}") from error


class OpenRegistry(dict[str, T]):
    """Parts of one kind by name. It holds those that come with Atta, and iteration gives no others. ``[name]`` and ``in``
    know plug-ins, too; ``plugins`` has all. A plug-in never takes the place of a part of Atta.

    Attributes:
        kind: for people.
        group: of entry points.
        what: what a part has to be, for people; ``fits`` tells whether something is."""

    def __init__(self, kind: str, group: str, own: Mapping[str, T], what: str, fits: Callable[[Any], bool]) -> None:
        super().__init__(own)
        self.kind, self.group, self.what, self.fits = kind, group, what, fits
        _REGISTRIES.append(self)

    def __missing__(self, name: str) -> T:
        """Raises UnknownNameError: there is none of this name; PluginError: it does not load, or is something else."""
        plugin = self.plugins().get(name)
        if plugin is None:
            raise self.unknown(name)
        part: T = plugin.load()
        if not self.fits(part):
            raise PluginError(f"plug-in {plugin} is not {self.what}")
        return part

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.plugins()

    def plugins(self) -> dict[str, Plugin]:
        """Plug-ins by name: those that are named, else those of packages. None is loaded."""
        mine = [*_installed(self.group), *(plugin for plugin in named() if plugin.group in ("", self.group))]
        return {plugin.name: plugin for plugin in mine if not dict.__contains__(self, plugin.name)}

    def hidden(self) -> list[Plugin]:
        """Plug-ins of packages that nobody can use: Atta has a part of their name."""
        return [plugin for plugin in _installed(self.group) if dict.__contains__(self, plugin.name)]

    def unknown(self, name: object) -> UnknownNameError:
        """The error about a name that is not there. It lists those that are."""
        known = [*self, *(plugin.name for plugin in self.plugins().values() if plugin.group)]
        found = str(UnknownNameError.of(self.kind, name, known))
        end = "" if found.endswith("?") else ";"
        return UnknownNameError(f"{found}{end} one of your own needs its package or --plugin: atta plugins lists all")


def unknown_name(what: str, name: object, known: Collection[str]) -> UnknownNameError:
    """The error about a name that is not among the ``known``, which may be a registry."""
    return known.unknown(name) if isinstance(known, OpenRegistry) else UnknownNameError.of(what, name, known)


def use(text: str) -> Plugin:
    """Make the part at ``text``, ``MODULE:OBJECT`` or ``NAME=MODULE:OBJECT``, known here and in processes that are started
    from here. Its name is that of the object unless one is given. The module may lie in the current folder.

    Raises PluginError: the text is not such, the part does not load or is of no kind, or Atta has one of this name."""
    plugin = _parsed(text)
    registry = next(_fitting(plugin.load()), None)
    if registry is None:
        kinds = ", ".join(each.what for each in registries())
        raise PluginError(f"plug-in {plugin} is none of these: {kinds}")
    placed = _of_kind(plugin, registry)
    others = [other.text for other in named() if (other.group, other.name) != (placed.group, placed.name)]
    os.environ[VARIABLE] = ",".join((*others, placed.text))
    return placed


def named() -> list[Plugin]:
    """The plug-ins of ``ATTA_PLUGINS``. One without a kind, as people write it, is loaded to find out; if that fails, it may
    be of any. Raises PluginError: one is not ``MODULE:OBJECT``, or Atta has one of its name."""
    return [_placed(text) for text in os.environ.get(VARIABLE, "").split(",") if text.strip()]


def registries() -> list[OpenRegistry[Any]]:
    """The registries of all kinds."""
    for home in _HOMES:
        import_module(home)
    return sorted(_REGISTRIES, key=lambda registry: registry.kind)


def _fitting(part: Any) -> Iterator[OpenRegistry[Any]]:
    return (registry for registry in registries() if registry.fits(part))


def _of_kind(plugin: Plugin, registry: OpenRegistry[Any]) -> Plugin:
    if dict.__contains__(registry, plugin.name):
        raise PluginError(f"Atta has a {registry.kind} {plugin.name!r}: call yours NAME={plugin.place}")
    return Plugin(plugin.name, plugin.place, group=registry.group)


@cache
def _placed(text: str) -> Plugin:
    plugin = _parsed(text)
    if plugin.group:
        return plugin
    try:
        found = next(_fitting(plugin.load()), None)
    except PluginError:
        return plugin
    return plugin if found is None else _of_kind(plugin, found)


def _parsed(text: str) -> Plugin:
    before, equals, place = text.strip().rpartition("=")
    group, _, name = before.rpartition("/")
    module, _, part = place.partition(":")
    if not all(word.isidentifier() for word in (*module.split("."), *part.split("."))) or (equals and not name):
        raise PluginError(f"plug-in {text!r}: give MODULE:OBJECT or NAME=MODULE:OBJECT")
    if module.endswith(".py"):
        raise PluginError(f"plug-in {text!r}: a module is named without .py: {module.removesuffix('.py')}:{part}")
    return Plugin(name or part, place, group=group)


@cache
def _loaded(place: str, *, here: bool) -> Any:
    from importlib.metadata import EntryPoint

    if here and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # behind all others: a file of the folder hides no package
    return EntryPoint("", place, "").load()


@cache
def _installed(group: str) -> tuple[Plugin, ...]:
    """What packages announce. A name that two of them announce has no place."""
    from importlib.metadata import entry_points

    found: dict[str, Plugin] = {}
    for point in entry_points(group=group):
        package = "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        if (other := found.get(point.name)) is not None:
            found[point.name] = Plugin(point.name, "", f"{other.package} and {package}", group)
        else:
            found[point.name] = Plugin(point.name, point.value, package, group)
    return tuple(found.values())
