"""Makes sure that a daemon may open as many files as it needs: at least one connection per session."""

from __future__ import annotations

import os
import resource

from atta.errors import ConfigError

__all__ = ["check_descriptors", "ensure_descriptors"]

OTHER = 64
"""Number of files that a daemon needs apart from one connection per session: for peers, memory files and operators."""


def check_descriptors(limit: int, used: int, max_sessions: int) -> None:
    """Check that ``limit`` open files (-1: any number) are enough for ``max_sessions``, with ``used`` already open.
    Pure.

    Raises:
        ConfigError: they are not; says how to change that.
    """
    wanted = used + OTHER + max_sessions
    if 0 <= limit < wanted:
        possible = limit - used - OTHER
        lower = f"lower --max-sessions from {max_sessions} to {possible}, or " if possible > 0 else ""
        raise ConfigError(
            f"{limit} files may be open, {wanted} are needed for {max_sessions} sessions (--max-sessions): "
            f"{lower}raise the limit (ulimit -Hn)"
        )


def ensure_descriptors(max_sessions: int) -> None:
    """Raise the limit of this process to the highest allowed; raises ConfigError if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    check_descriptors(-1 if hard == resource.RLIM_INFINITY else hard, len(os.listdir("/proc/self/fd")), max_sessions)
