"""Waiting for the work of another process."""

from __future__ import annotations

import socket

from atta_bench.waiting import eventually

__all__ = ["connected", "eventually"]


def connected(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
