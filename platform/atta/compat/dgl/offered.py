"""Says by name what this package does not offer of DGL."""

from __future__ import annotations

from collections.abc import Iterable

from atta.errors import UnknownNameError


class NotOfferedError(UnknownNameError, AttributeError):
    """A name of DGL that ``atta.compat.dgl`` does not have; the message lists those that it has."""


def refuse(where: str, name: str, offered: Iterable[str]) -> AttributeError:
    """The error for ``where.name``. A name with underscores around it gets the plain error that Python expects."""
    if name.startswith("__"):
        return AttributeError(f"module {where!r} has no attribute {name!r}")
    return NotOfferedError(f"{where} does not offer {name!r}; it offers: {', '.join(sorted(offered))}")
