"""Rows on the daemons of which readers get the newest, without synchronisations (DIGEST-A)."""

from __future__ import annotations

import torch

from atta.train.stale.daemons import DaemonTable
from atta.train.stale.rules import Rule
from atta.train.stale.table import Direction, Fetched, check_finite, refused

__all__ = ["NewestRows"]


class NewestRows(DaemonTable):
    """A ``DaemonTable`` in which a new version of a row replaces the one before at once.

    Every row is read and written as a whole, so it is of one version; rows of an answer may
    be of different ones. A row never gets an older version.
    """

    history = 0

    def publish(self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """Readers may see rows before the ``flush``."""
        self._check_alive()
        self.shape.check_values(layer, direction, rows, values)
        check_finite(values, trainer=self._trainer, epoch=version, layer=layer, direction=direction)
        self.pushed[layer, direction] += len(rows) * self.row_bytes(layer, direction)
        data = values.detach().cpu().numpy()
        table = self._slots[layer, direction][0]
        self._sent.append(table.push(rows.cpu().numpy(), data, version=version, codec=self._codec))

    def fetch(self, layer: int, direction: Direction, rows: torch.Tensor, rule: Rule) -> Fetched:
        """The newest rows. Raises as ``DaemonTable.fetch``."""
        self._check_alive()
        found = self._slots[layer, direction][0].pull(rows.cpu().numpy(), codec=self._codec, versions=True)
        assert found.versions is not None, "the tables have versions"
        versions = torch.from_numpy(found.versions)
        admitted = rule.admits(versions, self.committed)
        if not bool(admitted.all()):
            first = int((~admitted).nonzero()[0])
            row, version = int(rows[first]), int(versions[first])
            raise refused(layer, direction, rule, row=row, versions=[version], committed=self.committed)
        self.pulled[layer, direction] += len(rows) * self.row_bytes(layer, direction)
        return Fetched(torch.from_numpy(found.values).to(rows.device), versions.to(rows.device))

    def commit(self, version: int) -> None:
        """Nothing waits for it."""
        self.committed = max(self.committed, version)
