"""Makes sure that a daemon may open as many files as it needs, and has no more connections than that leaves."""

from __future__ import annotations

import os
import resource

from atta.errors import ConfigError

__all__ = ["check_descriptors", "connections_that_fit", "ensure_descriptors", "within_descriptors"]

PER_SESSION = 2
"""Connections of a session: one of gRPC, and the socket of a consumer on this machine."""
OTHER = 64
"""Number of files that a daemon needs apart from those: for peers, memory files and operators."""


def check_descriptors(limit: int, used: int, max_sessions: int) -> None:
    """Check that ``limit`` open files (-1: any number) are enough for ``max_sessions``, with ``used`` already open.
    Pure.

    Raises:
        ConfigError: they are not; says how to change that.
    """
    wanted = used + OTHER + PER_SESSION * max_sessions
    if 0 <= limit < wanted:
        possible = (limit - used - OTHER) // PER_SESSION
        lower = f"lower --max-sessions from {max_sessions} to {possible}, or " if possible > 0 else ""
        raise ConfigError(
            f"{limit} files may be open, {wanted} are needed for {max_sessions} sessions (--max-sessions): "
            f"{lower}raise the limit (ulimit -Hn)"
        )


def within_descriptors(limit: int, used: int, max_connections: int) -> int:
    """How many of ``max_connections`` fit into ``limit`` open files (-1: any number), with ``used`` already open or
    spoken for. Pure."""
    return max_connections if limit < 0 else max(1, min(max_connections, limit - used - OTHER))


def connections_that_fit(max_connections: int, max_sessions: int) -> int:
    """How many of ``max_connections`` of gRPC this process may have.

    Then it can still open memory files, reach peers, and answer consumers of ``max_sessions`` sessions on this machine.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _open_files() + max_sessions
    return within_descriptors(-1 if limit == resource.RLIM_INFINITY else limit, used, max_connections)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def ensure_descriptors(max_sessions: int) -> None:
    """Raise the limit of this process to the highest allowed; raises ConfigError if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    check_descriptors(-1 if hard == resource.RLIM_INFINITY else hard, _open_files(), max_sessions)
