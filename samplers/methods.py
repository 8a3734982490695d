"""Sampling methods beside the uniform one. Each is a function of a row alone, so an owner can answer for its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atta import _native

__all__ = ["AliasTables"]


@dataclass(frozen=True)
class AliasTables:
    """What weighted draws need: 16 bytes per edge, made once.

    Attributes:
        weights: float64 [E], in the order of the CSC's edges.
        slots: uint64 [E], Walker's alias slots.
        positive: int64 [n], edges of positive weight per row.
    """

    weights: np.ndarray
    slots: np.ndarray
    positive: np.ndarray

    @classmethod
    def build(cls, indptr: np.ndarray, weights: np.ndarray, *, threads: int = 1) -> AliasTables:
        """Build for the rows of ``indptr`` int64 [n + 1]. ValueError names an edge whose weight is NaN, infinite or negative."""
        double = np.ascontiguousarray(weights, dtype=np.float64)
        return cls(double, *_native.alias_tables(np.ascontiguousarray(indptr), double, threads))

    def pick(
        self,
        indptr: np.ndarray,
        vertex_keys: np.ndarray,
        rows: np.ndarray,
        *,
        fan_out: int,
        replace: bool,
        stream_key: int,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw edges of ``rows`` by weight: counts int32 [m] and positions int64 [sum(counts)] in the CSC.

        With replacement every draw has probability weight / sum. Without, edges are drawn one after another, each by its weight
        among those left (successive sampling); an edge of weight 0 never comes.
        """
        return _native.pick_weighted_edges(
            indptr, self.weights, self.slots, self.positive, vertex_keys, rows, fan_out, replace, stream_key, threads
        )
