"""The representation table: where rows of a layer wait between the trainer that computes them and those that read them.

A row is published with the epoch that computed it as its version. An epoch ends with three steps: each trainer flushes
what it has published, all trainers wait for each other, each trainer commits the epoch. Rules that ask for committed
rows see the rows of an epoch all at once, when it is committed. So what they give does not depend on timing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch

from atta.errors import ConfigError, NonFiniteError, QuotaExceededError, StaleRowError
from atta.train.stale.rules import NEVER, Rule

__all__ = ["Direction", "Fetched", "RepTable", "TableShape", "all_finite", "check_finite", "chosen", "refused"]

Direction = Literal["forward", "backward"]
"""Rows travel forward, the gradients of the loss with respect to them backward."""


class Fetched(NamedTuple):
    """Rows as a reader gets them.

    Attributes:
        values: [n, d]; of a rule with ``count`` k [k, n, d], the oldest first.
        versions: int64 [n], or [k, n].
    """

    values: torch.Tensor
    versions: torch.Tensor


class RepTable(Protocol):
    """Rows by layer and direction, with a version per row."""

    def publish(self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """Store ``values`` [n, d] of distinct ``rows`` (int64 [n]) that epoch ``version`` has computed.

        Rows that have a newer version keep it. Rows of a committed epoch stay as they are. Nothing is stored if an
        error is raised.

        Raises:
            NonFiniteError: a value is infinite or NaN.
            ConfigError: the table has no such layer or row, or an earlier epoch is not committed yet.
        """

    def fetch(self, layer: int, direction: Direction, rows: torch.Tensor, rule: Rule) -> Fetched:
        """The newest version of each of ``rows`` (int64 [n], may repeat) that ``rule`` admits.

        Where ``rule`` takes several versions and a row has fewer, its oldest one is repeated.

        Raises:
            StaleRowError: ``rule`` admits no version of a row.
        """

    def flush(self) -> None:
        """Wait until all that was published has arrived."""

    def commit(self, version: int) -> None:
        """Let committed rules see epoch ``version``. All trainers must have flushed it before."""


@dataclass(frozen=True)
class TableShape:
    """How large a representation table is.

    Attributes:
        rows: rows of every layer.
        widths: numbers per row, by layer and direction.
        history: how many committed versions of a row are kept; 0: a new version replaces it at once.
        dtype: of the values.
    """

    rows: int
    widths: Mapping[tuple[int, Direction], int]
    history: int = 1
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.rows < 0 or self.history < 0 or min(self.widths.values(), default=1) < 1:
            raise ConfigError(f"representation table: {self.rows} rows, {self.history} versions, widths {self.widths}")

    @property
    def slots(self) -> int:
        """Places for a row: one per committed version, and one that an epoch may write without touching them."""
        return self.history + 1

    @property
    def nbytes(self) -> int:
        """Bytes of values and versions."""
        return self.slots * self.rows * sum(width * self.dtype.itemsize + 8 for width in self.widths.values())

    def check_quota(self, quota_bytes: int | None) -> None:
        """Raise QuotaExceededError, which names the bytes, unless the table fits; None: there is no limit."""
        if quota_bytes is not None and self.nbytes > quota_bytes:
            raise QuotaExceededError(
                f"stale rows need {self.nbytes} bytes ({self.slots} versions of {self.rows} rows in "
                f"{len(self.widths)} layers and directions); {quota_bytes} are allowed"
            )

    def width(self, layer: int, direction: Direction) -> int:
        """Numbers per row; raises ConfigError for a layer and direction that the table does not have."""
        if (layer, direction) not in self.widths:
            raise ConfigError(f"representation table: has no rows of layer {layer}, {direction}")
        return self.widths[layer, direction]

    def check_values(self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Raise ConfigError unless ``values`` [n, d] are values of ``rows`` int64 [n]."""
        wanted = (len(rows), self.width(layer, direction))
        if tuple(values.shape) != wanted or values.dtype != self.dtype:
            found = f"{list(values.shape)} of {values.dtype}"
            raise ConfigError(
                f"layer {layer}, {direction}: values {found}; the table takes {list(wanted)} of {self.dtype}"
            )
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self.rows):
            raise ConfigError(f"layer {layer}, {direction}: a row is outside the rows 0..{self.rows - 1}")


def check_finite(values: torch.Tensor, *, trainer: int, epoch: int, layer: int, direction: Direction) -> None:
    """Raise NonFiniteError if rows that ``trainer`` publishes have an infinity or NaN."""
    if not all_finite(values):
        raise NonFiniteError(trainer, epoch, layer, "rows" if direction == "forward" else "gradients of rows")


def all_finite(values: torch.Tensor) -> bool:
    """Whether no number is an infinity or NaN.

    A sum of numbers that are not all finite is not finite, and takes a tenth of the time of asking each. Only a sum that
    is not finite may come from large numbers.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def chosen(stamps: torch.Tensor, rule: Rule, committed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which slot of each row ``rule`` gives: slots and versions, int64 [count, n], the oldest first.

    ``stamps``: int64 [slots, n], the versions in the slots. Rows without an admitted version get the version -1.
    """
    admitted = torch.where(rule.admits(stamps, committed), stamps, NEVER)
    if rule.count == 1:
        versions, slots = admitted.max(0, keepdim=True)
        return slots, versions
    versions, slots = admitted.topk(rule.count, dim=0)
    found = (versions != NEVER).sum(0, keepdim=True)
    place = torch.arange(rule.count - 1, -1, -1, device=stamps.device).unsqueeze(1)
    take = torch.minimum(place, (found - 1).clamp(min=0))
    return slots.gather(0, take), versions.gather(0, take)


def refused(
    layer: int, direction: Direction, rule: Rule, *, row: int, versions: list[int], committed: int
) -> StaleRowError:
    """The error of a reader whose rule admits none of the ``versions`` that the table has of ``row``."""
    has = ", ".join(str(v) for v in sorted(versions) if v != NEVER) or "none"
    wanted = f"{rule.oldest} to {min(rule.newest, committed) if rule.committed else rule.newest}"
    return StaleRowError(f"layer {layer}, {direction}: row {row} has versions {has}; the reader may use {wanted}")
