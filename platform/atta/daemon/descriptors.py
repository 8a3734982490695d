"""File descriptors: a daemon takes as many as the system lets it have, and does not start where those are too few."""

from __future__ import annotations

import os
import resource

from atta.errors import ConfigError

__all__ = ["check_descriptors", "ensure_descriptors"]

OTHER = 64
"""For the server itself, peers, memory files and operators, beside one connection per session."""


def check_descriptors(limit: int, used: int, max_sessions: int) -> None:
    """ConfigError where ``limit`` files (-1: any number) are too few, with ``used`` open, for ``max_sessions`` consumers. Pure."""
    wanted = used + OTHER + max_sessions
    if 0 <= limit < wanted:
        possible = limit - used - OTHER
        lower = f"lower --max-sessions from {max_sessions} to {possible}, or " if possible > 0 else ""
        raise ConfigError(
            f"{limit} files may be open, {wanted} are needed for {max_sessions} sessions (--max-sessions): "
            f"{lower}raise the limit (ulimit -Hn)"
        )


def ensure_descriptors(max_sessions: int) -> None:
    """Raise the limit of this process as far as it goes; ConfigError if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    check_descriptors(-1 if hard == resource.RLIM_INFINITY else hard, len(os.listdir("/proc/self/fd")), max_sessions)
