"""Who may connect to a daemon's link socket: whoever has a token that gRPC has given out. Pure: times are passed in."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["SECRET_BYTES", "TOKEN_BYTES", "TOKEN_S", "Grant", "Tokens"]

TOKEN_BYTES = 16
SECRET_BYTES = 32
TOKEN_S = 10.0
"""How long a token is good, in seconds."""
MOST = 1024
"""Most tokens that are good at a time. Beyond that, the oldest ends early."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token is good for.

    Attributes:
        peer: partition of the daemon that got it.
        secret: the key of the connection, which never travels on it; empty: the connection is not encrypted.
    """

    peer: int
    secret: bytes = field(default=b"", repr=False)


class Tokens:
    """Tokens that were given out and not used yet, the oldest first. Each is good once."""

    def __init__(self) -> None:
        self._given: OrderedDict[bytes, tuple[float, Grant]] = OrderedDict()

    def new(self, now: float, grant: Grant) -> bytes:
        """A token that is good until ``now + TOKEN_S``."""
        self._forget(now, room=1)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._given[token] = now + TOKEN_S, grant
        return token

    def take(self, token: bytes, now: float) -> Grant | None:
        """What ``token`` is good for; None: it is not good. It is not afterwards."""
        self._forget(now)
        _, grant = self._given.pop(token, (now, None))
        return grant

    def _forget(self, now: float, *, room: int = 0) -> None:
        """Forget tokens that have ended, and as many as it takes for ``room`` more."""
        while self._given and (len(self._given) + room > MOST or next(iter(self._given.values()))[0] <= now):
            self._given.popitem(last=False)

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert len(self._given) <= MOST, f"{len(self._given)} tokens are good"
        assert all(len(token) == TOKEN_BYTES for token in self._given), "a token has another length"
        ends = [end for end, _ in self._given.values()]
        assert ends == sorted(ends), "tokens are out of order"
