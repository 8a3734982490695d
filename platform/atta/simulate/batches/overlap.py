"""Remote rows that batches have in common. While one batch waits for a row, others need not ask for it
(``daemon.peers.underway``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

__all__ = ["Overlap"]

STEPS = 4
"""Number of points per batch under way at which the curve is computed. Between them it is a line."""
MOST_OTHERS = 64
"""Largest number of other batches under way that the curve covers."""


class Overlap:
    """How much of what a batch pulls is under way already, from how often rows occurred in measured batches."""

    def __init__(self, repeats: Sequence[float], hit: float = 0.0) -> None:
        """``repeats``: entry i is the number of rows that i + 1 of ``len(repeats)`` batches wanted.

        The hottest rows make up a share ``hit`` of all wanted ones. They are in a cache and never pulled.
        """
        batches, numbers = len(repeats), np.arange(1, len(repeats) + 1, dtype=np.float64)
        wanted = numbers * np.asarray(repeats, dtype=np.float64)
        hotter = np.cumsum(wanted[::-1])[::-1] - wanted  # than those of an entry
        pulled = wanted - np.clip(hit * wanted.sum() - hotter, 0.0, wanted)
        self._curve = np.zeros(1)
        if batches > 1 and pulled.sum() > 0:
            others = np.arange(0, min(MOST_OTHERS, batches - 1) + 0.5 / STEPS, 1 / STEPS)
            self._curve = (1.0 - _none_has(batches, numbers[:, None], others)).T @ pulled / pulled.sum()

    def share(self, others: float) -> float:
        """Share of a batch's pulled rows that at least one of ``others`` other batches has asked for.

        May be a fraction.
        """
        at = min(max(0.0, others * STEPS), len(self._curve) - 1.0)
        below = int(at)
        above = min(below + 1, len(self._curve) - 1)
        return float(self._curve[below] + (at - below) * (self._curve[above] - self._curve[below]))


def _none_has(batches: int, numbers: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Probability [numbers, others] that none of ``others`` batches wants a row which one more wants.

    All are drawn from the measured ``batches``, of which ``numbers`` want it: C(batches - numbers, others) over
    C(batches - 1, others), between whole numbers by the gamma function.
    """
    left = batches - numbers - others + 1
    log = (
        gammaln(batches - numbers + 1) - gammaln(np.maximum(left, 1e-9)) - gammaln(batches) + gammaln(batches - others)
    )
    return np.where(left > 0, np.exp(np.minimum(log, 0.0)), 0.0)
