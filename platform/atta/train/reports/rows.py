"""What trainers have read of each other's rows in an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer in one direction, of all trainers together.

    Attributes:
        layer: number of the layer that reads them, from 0.
        direction: ``forward``: rows; ``backward``: their gradients.
        payload_bytes: bytes of rows that travelled, as they were packed.
        crossed_bytes: the bytes of these that came from other servers.
        pushed_bytes: bytes of rows that trainers pushed to the daemons beside them.
        rows: how many rows of others were read.
        age_min, age_mean, age_max: of these, in epochs; None where none was read.
        broadcasts, skipped: how often trainers sent their rows, and how often they did not.
        predicted_error, stale_error: distances of predicted and of stale rows to those of this epoch, root of the sum
            of squares; None where nothing was predicted and measured.
    """

    layer: int
    direction: str
    payload_bytes: int
    crossed_bytes: int
    pushed_bytes: int
    rows: int
    age_min: int | None
    age_mean: float | None
    age_max: int | None
    broadcasts: int
    skipped: int
    predicted_error: float | None = None
    stale_error: float | None = None


@dataclass(frozen=True)
class RowReport:
    """An epoch's rows.

    Attributes:
        layers: by layer, forward before backward.
        kept_bytes: copies of others' rows that trainers keep for later epochs.
        copied_bytes: second copies of own rows, which the bound on their change needs.
        filled_bytes: what the exact pass before the first epoch sent and pushed to fill the tables; 0 in other epochs.
    """

    layers: list[LayerRows]
    kept_bytes: int = 0
    copied_bytes: int = 0
    filled_bytes: int = 0

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RowReport:
        """The inverse of ``dataclasses.asdict``. Raises TypeError for other fields."""
        layers = [LayerRows(**layer) for layer in saved["layers"]]
        return cls(layers, **{f.name: saved[f.name] for f in fields(cls) if f.name != "layers" and f.name in saved})
