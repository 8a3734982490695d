"""Switches on the checks of state machines: after every call of a public method, ``validate`` looks at all invariants.

Nothing of this is in the programs themselves, so it costs them nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["watch"]


def watch(monkeypatch: pytest.MonkeyPatch, machine: type, *methods: str) -> None:
    """Validate every object of class ``machine`` after each call of ``methods`` (default: all public ones)."""
    for name in methods or _events(machine):
        monkeypatch.setattr(machine, name, _validated(vars(machine)[name]))


def _events(machine: type) -> list[str]:
    """The public methods; not those that are for tests or make something else of the object."""
    found = (name for name, value in vars(machine).items() if inspect.isfunction(value))
    return [name for name in found if not name.startswith("_") and name not in {"validate", "close"}]


def _validated(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def later(self: Any, *args: Any, **options: Any) -> Any:
            result = await method(self, *args, **options)
            self.validate()
            return result

        return later

    @functools.wraps(method)
    def now(self: Any, *args: Any, **options: Any) -> Any:
        result = method(self, *args, **options)
        self.validate()
        return result

    return now
