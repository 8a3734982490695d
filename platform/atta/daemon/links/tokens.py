"""Who may connect to a daemon's link socket: whoever has a token that gRPC has given out. Pure: times are passed in."""

from __future__ import annotations

import secrets
from collections import OrderedDict

__all__ = ["TOKEN_BYTES", "TOKEN_S", "Tokens"]

TOKEN_BYTES = 16
TOKEN_S = 10.0
"""How long a token is good, in seconds."""
MOST = 1024
"""Most tokens that are good at a time. Beyond that, the oldest ends early."""


class Tokens:
    """Tokens that were given out and not used yet, the oldest first. Each is good once."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def new(self, now: float) -> bytes:
        """A token that is good until ``now + TOKEN_S``."""
        self._forget(now, room=1)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._ends[token] = now + TOKEN_S
        return token

    def take(self, token: bytes, now: float) -> bool:
        """Whether ``token`` is good. It is not afterwards."""
        self._forget(now)
        return self._ends.pop(token, None) is not None

    def _forget(self, now: float, *, room: int = 0) -> None:
        """Forget tokens that have ended, and as many as it takes for ``room`` more."""
        while self._ends and (len(self._ends) + room > MOST or next(iter(self._ends.values())) <= now):
            self._ends.popitem(last=False)

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert len(self._ends) <= MOST, f"{len(self._ends)} tokens are good"
        assert all(len(token) == TOKEN_BYTES for token in self._ends), "a token has another length"
        ends = [*self._ends.values()]
        assert ends == sorted(ends), "tokens are out of order"
