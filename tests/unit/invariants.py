"""Switches on the checks of state machines: after every event, ``validate`` checks all invariants.

The programs themselves have none of this, so it costs them nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["watch"]


def watch(monkeypatch: pytest.MonkeyPatch, machine: type, *events: str) -> None:
    """Validate every object of class ``machine`` after each call of the methods ``events``."""
    for name in events:
        monkeypatch.setattr(machine, name, _validated(vars(machine)[name]))


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
