"""A representation table in the reader's memory: owners send it their rows, so reading them asks nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from atta.errors import ConfigError
from atta.train.stale.rules import NEVER, Rule
from atta.train.stale.table import Direction, Fetched, TableShape, check_finite, chosen, refused

__all__ = ["ReplicaTable"]


@dataclass(frozen=True)
class _Slots:
    """``values`` [slots, rows, d] and their ``versions`` int64 [slots, rows]."""

    values: torch.Tensor
    versions: torch.Tensor


class ReplicaTable:
    """Copies of rows of other trainers; a ``RepTable``.

    A row has a slot for each version that is kept, and one more. An epoch writes a row into the slot of its oldest
    version, so the committed versions stay readable until the epoch is committed.

    Attributes:
        shape: its size.
        committed: the last committed epoch; -1: none.
    """

    def __init__(
        self,
        shape: TableShape,
        owners: torch.Tensor,
        *,
        device: torch.device | str = "cpu",
        quota_bytes: int | None = None,
    ) -> None:
        """``owners``: int64 [rows], the trainer that computes each row; errors name it.

        Raises:
            QuotaExceededError: the table needs more than ``quota_bytes``; names the bytes.
        """
        shape.check_quota(quota_bytes)
        if len(owners) != shape.rows:
            raise ConfigError(f"replicas: {len(owners)} owners for {shape.rows} rows")
        self.shape, self.committed = shape, NEVER
        self._owners, self._device = owners, torch.device(device)
        self._open = NEVER
        self._held = {key: self._empty(width) for key, width in shape.widths.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of values and versions."""
        return sum(held.values.nbytes + held.versions.nbytes for held in self._held.values())

    def publish(self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """Rows of one epoch may come in several pieces."""
        self.shape.check_values(layer, direction, rows, values)
        if version < 0:
            raise ConfigError(f"layer {layer}, {direction}: version {version} is below 0")
        self._check_finite(layer, direction, rows, values, version)
        if version <= max(self.committed, self._open - 1):
            return
        if self._open not in (NEVER, version):
            raise ConfigError(
                f"layer {layer}, {direction}: epoch {version} is published, {self._open} is not committed"
            )
        self._open = version
        held = self._held[layer, direction]
        stamps = held.versions[:, rows]
        again = stamps == version
        slot = torch.where(again.any(0), again.int().argmax(0), stamps.argmin(0))
        held.values[slot, rows] = values.detach()
        held.versions[slot, rows] = version

    def fetch(self, layer: int, direction: Direction, rows: torch.Tensor, rule: Rule) -> Fetched:
        """Raises ConfigError for a rule that takes more versions than are kept."""
        self.shape.width(layer, direction)
        if rule.count > max(1, self.shape.history):
            raise ConfigError(f"layer {layer}, {direction}: {rule.count} versions, {self.shape.history} are kept")
        held = self._held[layer, direction]
        stamps = held.versions[:, rows]
        slots, versions = chosen(stamps, rule, self.committed)
        missing = versions[0] == NEVER
        if bool(missing.any()):
            at = int(missing.int().argmax())
            row, has = int(rows[at]), stamps[:, at].tolist()
            raise refused(layer, direction, rule, row=row, versions=has, committed=self.committed)
        if rule.count == 1:
            return Fetched(held.values[slots[0], rows], versions[0])
        return Fetched(held.values[slots, rows], versions)

    def flush(self) -> None:
        """Nothing is under way: what is published is here."""

    def commit(self, version: int) -> None:
        """Committing an epoch again changes nothing.

        Raises:
            ConfigError: rows of a later epoch have been published.
        """
        if self._open > version:
            raise ConfigError(f"epoch {version} cannot be committed: rows of epoch {self._open} are published")
        self.committed, self._open = max(self.committed, version), NEVER

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves: values, versions, the last committed epoch. Tensors are not copied."""
        held = {f"{layer} {direction}": (h.values, h.versions) for (layer, direction), h in self._held.items()}
        return {"committed": self.committed, "open": self._open, "rows": held}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what ``state`` saved.

        Raises:
            ConfigError: it is the state of a table of another size. Then nothing has changed.
        """
        saved = state["rows"]
        wanted = {f"{layer} {direction}": held for (layer, direction), held in self._held.items()}
        if saved.keys() != wanted.keys() or any(
            (values.shape, versions.shape, values.dtype) != (held.values.shape, held.versions.shape, held.values.dtype)
            for (values, versions), held in ((saved[key], held) for key, held in wanted.items())
        ):
            raise ConfigError("the saved stale rows are of a table of another size")
        for key, held in wanted.items():
            held.values.copy_(saved[key][0])
            held.versions.copy_(saved[key][1])
        self.committed, self._open = state["committed"], state["open"]

    def validate(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        assert self.nbytes == self.shape.nbytes, f"{self.nbytes} bytes, not {self.shape.nbytes}"
        assert self._open == NEVER or self._open > self.committed, f"epoch {self._open} is written after its commit"
        for key, held in self._held.items():
            stamps = held.versions
            assert int(stamps.max()) <= max(self.committed, self._open) if stamps.numel() else True, (
                f"{key}: a row has version {int(stamps.max())}"
            )
            ordered = stamps.sort(0).values
            twice = (ordered[1:] == ordered[:-1]) & (ordered[1:] != NEVER)
            assert not bool(twice.any()), f"{key}: a row has a version twice"

    def _empty(self, width: int) -> _Slots:
        size = (self.shape.slots, self.shape.rows)
        return _Slots(
            torch.zeros(*size, width, dtype=self.shape.dtype, device=self._device),
            torch.full(size, NEVER, dtype=torch.int64, device=self._device),
        )

    def _check_finite(
        self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor, version: int
    ) -> None:
        bad = ~torch.isfinite(values).all(1)
        if bool(bad.any()):
            row = int(rows[int(bad.int().argmax())])
            check_finite(values, trainer=int(self._owners[row]), epoch=version, layer=layer, direction=direction)
