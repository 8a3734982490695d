"""Which piece is filled in next, and when. Pure: the caller passes in the time.

Three rules. Owners take turns, so that none is asked for everything at once. The bytes of all pieces together stay
below a rate, so that batches keep the links and the processors. An owner that is away is left alone for a time that
doubles, and its piece is tried again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["FillPiece", "PieceQueue"]

FIRST_RETRY_S = 0.05
"""How long an owner is left alone that is away, the first time. Daemons of a cluster start at about the same time."""
LAST_RETRY_S = 10.0
"""The longest of these times."""


@dataclass(frozen=True, slots=True)
class FillPiece:
    """A part of what is to be filled in that its owner answers with one message or a few.

    ``fetch`` asks the owner and puts the answer into place. It returns the bytes that came: 0 if the piece is here by
    now. It raises AttaError if the owner is away or refuses. A piece is fetched again then.
    """

    owner: int
    fetch: Callable[[], Awaitable[int]]


@dataclass(slots=True)
class _Owner:
    pieces: deque[FillPiece]
    due: float = -math.inf  # when it may be asked
    retry_s: float = FIRST_RETRY_S  # from FIRST_RETRY_S to LAST_RETRY_S


class PieceQueue:
    """The pieces that are left, by owner in the order in which they are wanted.

    ``next`` names a piece. ``came`` or ``failed`` says what became of it before ``next`` is called again.
    """

    def __init__(self, pieces: Mapping[int, Iterable[FillPiece]], *, bytes_per_s: float) -> None:
        """``pieces`` by owner, in the order in which the owners are asked first. ``bytes_per_s``: above 0."""
        self._owners = {owner: _Owner(deque(of)) for owner, of in pieces.items()}
        self._turns = deque(owner for owner, state in self._owners.items() if state.pieces)  # those with pieces left
        self._bytes_per_s = bytes_per_s
        self._due = -math.inf  # when the rate allows another piece
        self._asked: tuple[FillPiece, float] | None = None  # named by ``next``, and when: the first piece of its owner

    @property
    def left(self) -> int:
        """Number of pieces that are not here."""
        return sum(len(state.pieces) for state in self._owners.values())

    def next(self, now: float) -> FillPiece | float | None:
        """The piece to fetch now, or the seconds until there may be one; None: nothing is left."""
        if not self._turns:
            return None
        at = max(self._due, min(self._owners[owner].due for owner in self._turns))
        if at > now:
            return at - now
        while self._owners[self._turns[0]].due > now:
            self._turns.rotate(-1)
        piece = self._owners[self._turns[0]].pieces[0]
        self._asked = piece, now
        return piece

    def came(self, nbytes: int) -> None:
        """The piece is here; ``nbytes`` came for it."""
        state, asked_at = self._answered()
        state.pieces.popleft()
        state.retry_s = FIRST_RETRY_S
        self._due = asked_at + nbytes / self._bytes_per_s
        if state.pieces:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()

    def failed(self, now: float) -> None:
        """The owner is away or refuses."""
        state, _ = self._answered()
        state.due, state.retry_s = now + state.retry_s, min(2 * state.retry_s, LAST_RETRY_S)
        self._turns.rotate(-1)

    def _answered(self) -> tuple[_Owner, float]:
        assert self._asked is not None, "no piece was asked for"
        (piece, at), self._asked = self._asked, None
        return self._owners[piece.owner], at

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold; for tests."""
        assert len(set(self._turns)) == len(self._turns), f"an owner has two turns: {list(self._turns)}"
        assert set(self._turns) == {owner for owner, state in self._owners.items() if state.pieces}
        for owner, state in self._owners.items():
            assert all(piece.owner == owner for piece in state.pieces), f"owner {owner} has a piece of another"
            assert FIRST_RETRY_S <= state.retry_s <= LAST_RETRY_S, f"owner {owner} is left alone for {state.retry_s} s"
        if self._asked is not None:
            assert self._owners[self._turns[0]].pieces[0] is self._asked[0], "the piece that was asked for is not first"
