"""Packages that only some commands need, and the extra of ``atta`` that installs each."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from atta.errors import ConfigError

EXTRAS = {
    "torch": "train",
    "torch_geometric": "train",
    "dgl": "dgl",
    "yaml": "dgl",
    "matplotlib": "bench",
    "pyarrow": "table",
    "lightning": "lightning",
    "ray": "ray",
    "fsspec": "storage",
}
"""The extra that installs a package."""


def missing(*packages: str) -> list[str]:
    """The ``packages`` that are not installed. None of them is imported."""
    return [package for package in packages if not _installed(package)]


def not_installed(*packages: str) -> str:
    """A message about missing ``packages``: their names and the extras to install."""
    extras = sorted({f"atta[{EXTRAS[package]}]" for package in packages if package in EXTRAS})
    return f"not installed: {', '.join(packages)}" + (f": install {' and '.join(extras)}" if extras else "")


def need(what: str, *packages: str) -> None:
    """Check that the ``packages`` for ``what``, all of one extra, are installed.

    ConfigError names the extra to install.
    """
    if missing(*packages):
        raise ConfigError(f"{what} needs {' and '.join(packages)}: install atta[{EXTRAS[packages[0]]}]")


def load(what: str, *modules: str) -> Any:
    """Import ``modules``, whose packages belong to one extra, and return the first.

    Raises ConfigError: one cannot be imported; says what to install for ``what``.
    """
    packages = list(dict.fromkeys(name.split(".")[0] for name in modules))
    try:
        found = [import_module(name) for name in modules]
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {' and '.join(packages)}: install atta[{EXTRAS[packages[0]]}] ({error})"
        ) from None
    return found[0]


def member(what: str, module: str, name: str) -> Any:
    """What a user's own ``module`` calls ``name``. Raises ConfigError: it cannot be imported; begins with ``what``."""
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # the module runs, so this may be anything
        text = " ".join(str(error).split())
        raise ConfigError(f"{what}: cannot be imported: {text or type(error).__name__}") from None


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # half imported, or blocked
        return False
