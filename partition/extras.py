"""Packages that are not always there: asked for before any work is done, and named with the extra that brings them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from atta.errors import ConfigError

__all__ = ["need"]


def need(what: str, extra: str, *modules: str) -> Any:
    """Import ``modules`` and return the first; raises ConfigError saying what to install for ``what``."""
    try:
        found = [import_module(name) for name in modules]
    except ImportError as error:
        packages = " and ".join(dict.fromkeys(name.split(".")[0] for name in modules))
        raise ConfigError(f"{what} needs {packages}: install atta[{extra}] ({error})") from None
    return found[0]
