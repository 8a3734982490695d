"""Addresses for what a test starts, or for nobody: they are held, so that no other program gets their ports.

Whoever asks there is refused until a server listens. Servers may come and go. The addresses are let go when the module
of tests ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from atta.observe.machine.held import HeldAddresses

_held: list[HeldAddresses] = []


def held_addresses(count: int) -> list[str]:
    return _hold(count).addresses


def held_port() -> int:
    return _hold(1).ports[0]


def _hold(count: int) -> HeldAddresses:
    from atta.observe.machine.held import HeldAddresses  # not before ``tests.conftest`` has chosen its build

    _held.append(HeldAddresses(count))
    return _held[-1]


@pytest.fixture(scope="module", autouse=True)
def let_go_of_addresses() -> Iterator[None]:
    """Let go of the addresses when the module of tests ends."""
    yield
    while _held:
        _held.pop().close()
