"""What each way to exchange rows must send, as closed formulas: payload of a run, in bytes of float32 rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Shape", "expected_bytes"]

FLOAT = 4


@dataclass(frozen=True)
class Shape:
    """What payload depends on.

    Attributes:
        vertices: of the graph.
        halo: HALO rows of all partitions.
        parts: number of partitions, with a trainer each.
        widths: of the rows that each layer reads, features first.
        epochs: of the run.
    """

    vertices: int
    halo: int
    parts: int
    widths: tuple[int, ...]
    epochs: int


def expected_bytes(shape: Shape, settings: Mapping[str, Any]) -> int | None:
    """Bytes of rows and gradients that all trainers send in a run; None where no formula is known.

    Hidden rows go to all their readers, and their gradients come back. Features have no gradients. With ``rows``
    "all" each other trainer is a reader of each row, as in CAGNET.
    """
    rows = shape.vertices * (shape.parts - 1) if settings.get("rows") == "all" else shape.halo
    features = shape.widths[0] if settings.get("send_features") else 0
    hidden = sum(shape.widths[1:])
    strategy, epochs = settings["strategy"], shape.epochs
    if strategy == "full":
        return 0
    if strategy in ("exchange", "pipegcn"):
        if settings.get("codec", "none") != "none":
            return None
        return rows * FLOAT * epochs * (features + 2 * hidden)
    if strategy == "sancus" and settings.get("bound", "epoch") == "epoch" and not settings.get("codec"):
        warmup, every = settings.get("warmup", 50), int(settings.get("eps", 1)) + 1
        sent = epochs if epochs <= warmup else max(1, warmup) + (epochs - max(1, warmup)) // every
        return rows * FLOAT * (sent * (features + hidden) + epochs * hidden)
    if strategy == "digest" and not settings.get("codec"):
        # The exact pass before the first epoch fills the tables, then every N-th epoch pushes. Readers pull what is new:
        # the first fill, and each push but one that no epoch comes after.
        return rows * FLOAT * hidden * math.ceil(epochs / settings.get("sync_every", 10))
    return None
