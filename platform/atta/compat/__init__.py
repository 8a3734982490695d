"""Interfaces of other systems on Atta's daemons, for scripts that were written for those. Their names are imported when
they are first asked for, and others are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from atta.errors import UnknownNameError


class NotOfferedError(UnknownNameError, AttributeError):
    """A name of another system that Atta does not have in its place; the message lists those that it has."""


def refuse(where: str, name: str, offered: Iterable[str]) -> AttributeError:
    """The error for ``where.name``. A name with underscores around it gets the plain error that Python expects."""
    if name.startswith("__"):
        return AttributeError(f"module {where!r} has no attribute {name!r}")
    return NotOfferedError(f"{where} does not offer {name!r}; it offers: {', '.join(sorted(offered))}")


def front(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package. ``homes``: the module of each name, as a relative import names it.
    A module that is called like the name is offered itself."""

    def find(name: str) -> Any:
        if name not in homes:
            raise refuse(package, name, homes)
        module = import_module(homes[name], package)
        return module if homes[name].lstrip(".") == name else getattr(module, name)

    return find, lambda: [*homes]
