"""Whether a peer is there, and what is worth saying of it. Pure: the caller passes in times and writes the lines."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Presence", "Return"]


@dataclass(frozen=True, slots=True)
class Return:
    """A peer is there again: how long it has been away (seconds), and whether it has been started anew."""

    away_s: float
    restarted: bool


class Presence:
    """One peer, unknown at first."""

    def __init__(self) -> None:
        self.incarnation = ""
        self._lost_at: float | None = None

    def lost(self, now: float) -> bool:
        """It does not answer. True the first time, however often it is tried until it is there again."""
        first = self._lost_at is None
        if first:
            self._lost_at = now
        return first

    def met(self, now: float, incarnation: str) -> Return | None:
        """It has said who it is; None: nothing is new about that."""
        restarted = bool(self.incarnation) and incarnation != self.incarnation
        lost_at, self._lost_at, self.incarnation = self._lost_at, None, incarnation
        if lost_at is None and not restarted:
            return None
        return Return(0.0 if lost_at is None else now - lost_at, restarted)
