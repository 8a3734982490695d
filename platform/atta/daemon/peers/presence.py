"""Whether a peer is there, and when to log a change. Pure: the caller passes in times and writes the log."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Presence", "Return"]


@dataclass(frozen=True, slots=True)
class Return:
    """A peer is there again: how long it was away (seconds), and whether it has restarted."""

    away_s: float
    restarted: bool


class Presence:
    """One peer, unknown at first."""

    def __init__(self) -> None:
        self.incarnation = ""
        self._lost_at: float | None = None

    def lost(self, now: float) -> bool:
        """The peer does not answer. True only the first time, until it is there again."""
        first = self._lost_at is None
        if first:
            self._lost_at = now
        return first

    def met(self, now: float, incarnation: str) -> Return | None:
        """The peer has told its identity; None: it was neither away nor restarted."""
        restarted = bool(self.incarnation) and incarnation != self.incarnation
        lost_at, self._lost_at, self.incarnation = self._lost_at, None, incarnation
        if lost_at is None and not restarted:
            return None
        return Return(0.0 if lost_at is None else now - lost_at, restarted)
