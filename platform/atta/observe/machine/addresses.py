"""Addresses of this machine that nobody else is given, for processes that are still to start."""

from __future__ import annotations

import socket
from types import TracebackType


class HeldAddresses:
    """Addresses whose ports the kernel gives to nobody else until ``close``.

    A socket that is bound and does not listen holds each port at all addresses of this machine, for a server may listen
    at all of them, as the store of torch does. Callers are refused, until a server listens there, and again when it has
    ended. A server may listen there if it binds its socket with SO_REUSEADDR, as gRPC, that store and the servers of
    Python do.

    Attributes:
        ports: of each address.
        addresses: each as ``host:port``.
    """

    def __init__(self, count: int = 1, host: str = "127.0.0.1") -> None:
        """Hold ``count`` ports; ``host``: where callers reach this machine. Raises OSError if no port is free."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(socket.socket(family))
                self._sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._sockets[-1].bind(("", 0))
        except OSError:
            self.close()
            raise
        self.ports: list[int] = [held.getsockname()[1] for held in self._sockets]
        self.addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for port in self.ports]

    def close(self) -> None:
        """Let go of the addresses. A server that listens at one of them still has it."""
        for held in self._sockets:
            held.close()

    def __enter__(self) -> HeldAddresses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
