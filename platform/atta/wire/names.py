"""Waits for the names of hosts that an engine is still starting, so that nobody fails because it came first."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence

from atta.errors import UnavailableError

__all__ = ["await_names", "resolves"]

RETRY_S = 0.5
"""How long to wait before names are asked for again."""


def resolves(host: str) -> bool:
    """Whether the name of a host has an address now."""
    try:
        socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return True


def await_names(
    addresses: Iterable[str],
    within_s: float,
    tell: Callable[[str], None],
    *,
    known: Callable[[str], bool] = resolves,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when the hosts of all ``addresses`` (``host:port``) have been resolved, each once.

    Args:
        addresses: of daemons, or of a meeting point.
        within_s: how long to wait.
        tell: gets one sentence if there is something to wait for.
        known, clock, sleep: of the system; tests have others.

    Raises:
        UnavailableError: a name has no address after ``within_s``.
    """
    missing = _without([*dict.fromkeys(a.rpartition(":")[0] for a in addresses)], known)
    if not missing:
        return
    until = clock() + within_s
    tell(f"waiting up to {within_s:g} s for the host names {_listed(missing)}")
    while missing:
        left = until - clock()
        if left <= 0:
            cause = f"the host name has no address after {within_s:g} s"
            raise UnavailableError(_listed(missing), cause)
        sleep(min(RETRY_S, left))
        missing = _without(missing, known)


def _without(hosts: Sequence[str], known: Callable[[str], bool]) -> list[str]:
    return [host for host in hosts if not known(host)]


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
