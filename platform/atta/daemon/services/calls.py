"""Counts what is asked of a daemon: requests, errors and bytes of bulk data by method."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from atta.wire.rpc import METHODS, Bulk

__all__ = ["Calls"]


class Calls:
    """The counters; ``counted`` wraps the handlers of a service. All on the event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def stats(self) -> dict[str, float]:
        """``requests_SERVICE.METHOD``, ``request_errors_...`` and ``sent_bytes_...`` of methods that have been called."""
        return {name: float(value) for name, value in self._counts.items()}

    def counted(self, service: str, methods: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """The same handlers, counted."""
        return {name: self._wrap(f"{service}.{name}", handler) for name, handler in methods.items()}

    def _wrap(self, name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def unary(request: Any, context: Any) -> Any:
            self._begun(name)
            try:
                reply = await handler(request, context)
                if isinstance(reply, bytes):
                    self._counts[f"sent_bytes_{name}"] += len(reply)
                return reply
            except Exception:
                self._counts[f"request_errors_{name}"] += 1
                raise

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            self._begun(name)
            try:
                async for reply in handler(request, context):
                    self._counts[f"sent_bytes_{name}"] += _bulk_bytes(reply)
                    yield reply
            except Exception:
                self._counts[f"request_errors_{name}"] += 1
                raise

        return stream if METHODS[name].streams else unary

    def _begun(self, name: str) -> None:
        self._counts[f"requests_{name}"] += 1
        self._counts[f"request_errors_{name}"] += 0  # a counter that is there before it counts shows its first step


def _bulk_bytes(reply: Any) -> int:
    if isinstance(reply, Bulk):
        return sum(memoryview(payload).nbytes for payload in reply.payloads.values())
    return len(reply) if isinstance(reply, bytes) else 0
