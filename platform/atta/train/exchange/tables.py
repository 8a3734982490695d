"""Rows that wait in tables on the daemons: owners push them now and then, readers keep what they pulled last."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from atta.errors import ConfigError
from atta.train.cooperative.halo import HaloRows, ReadRows
from atta.train.cooperative.source import Arrival
from atta.train.exchange.codecs import Packing
from atta.train.exchange.daemons import DaemonTable, Fetched
from atta.train.exchange.figures import Key, RowFigures
from atta.train.exchange.messages import StaleRows, check_finite
from atta.train.exchange.policies import DigestPolicy
from atta.train.exchange.policy import Ages


class TableRows(StaleRows):
    """Hidden rows travel through tables on the daemons, gradients by messages. ``fill`` comes before the first epoch.

    Pulls begin with the epoch, so they hide behind what is computed before the rows are needed. Pushes hide behind the
    rest of forward and behind backward.
    """

    policy: DigestPolicy

    def __init__(
        self,
        policy: DigestPolicy,
        reads: ReadRows,
        figures: RowFigures,
        packing: Packing,
        *,
        found: HaloRows,
        publish_all: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        """``found``: the vertices of the rows; ``publish_all``: own rows that nobody reads are published too."""
        super().__init__(policy, reads, figures, packing, device=device)
        if publish_all:
            self._shared = torch.arange(reads.own, device=device)
        ids = found.view.global_ids
        self._own_ids, self._read_ids = ids[self._shared.cpu().numpy()], np.empty(reads.received, np.int64)
        self._read_ids[reads.places] = ids[len(ids) - len(reads.places) :]
        self._far = int(reads.lists.receive_counts[np.array(reads.elsewhere)].sum())
        self._table: DaemonTable | None = None
        self._published: dict[int, tuple[int, torch.Tensor]] = {}  # (version, rows)
        self._pulls: dict[int, Future[Fetched]] = {}
        self._pulled: dict[int, Fetched] = {}
        self._rejoined = False

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + sum(found.values.nbytes for found in self._pulled.values())

    @property
    def table(self) -> DaemonTable:
        """The table; there is one after ``fill``."""
        assert self._table is not None, "the table is not filled"
        return self._table

    def fill(self, table: DaemonTable, rows: Mapping[int, torch.Tensor]) -> None:
        """Publish version 0 in ``table``: own ``rows`` [o, d] of each layer that travels.

        All trainers must have filled it before the first epoch. Raises the errors of ``DaemonTable.publish``.
        """
        self._open(table)
        for layer, of_layer in sorted(rows.items()):
            self._publish(layer, self._mine(of_layer), 0)
        table.flush()

    def rejoin(self, table: DaemonTable, rows: Mapping[int, torch.Tensor]) -> None:
        """Use a ``table`` that is full, in place of ``fill``. The first epoch pulls rows, whatever its number.

        ``rows``: [0, d] of each layer that travels.
        """
        self._open(table)
        self._published = {layer: (0, of_layer) for layer, of_layer in rows.items()}
        self._rejoined = True

    def begin(self, epoch: int) -> None:
        """Starts to pull the rows of all layers, if there are newer ones."""
        super().begin(epoch)
        if self._rejoined or self.policy.pulls(epoch, "forward"):
            self._rejoined = False
            rule = self.policy.reads(epoch, "forward")
            assert rule is not None, "rows are always read"
            self._pulls = {layer: self.table.fetch(layer, self._others, rule) for layer in sorted(self._published)}

    def flush(self) -> None:
        for layer in list(self._pulls):
            self._take(layer)
        self.table.flush()

    def state(self) -> dict[str, Any]:
        pulled = {layer: tuple(found) for layer, found in self._pulled.items()}
        return super().state() | {"published": self._published, "pulled": pulled}

    def load_state(self, state: dict[str, Any]) -> None:
        """After ``fill``. All trainers call it: they publish their saved rows again, then go on."""
        super().load_state(state)
        wanted = {layer: (len(self._own_ids), self.table.widths[layer]) for layer in self._published}
        found = {layer: tuple(rows.shape) for layer, (_, rows) in state["published"].items()}
        if found != wanted:
            raise ConfigError(f"the saved rows of layers are {found}, this trainer publishes {wanted}")
        for layer, (version, rows) in sorted(state["published"].items()):
            # Version 0 is there. Nobody reads it any more, because all trainers have pulled it in the first epoch.
            if version > 0:
                self._publish(layer, rows.to(self._device), version)
        self._pulled = {
            layer: Fetched(values.to(self._device), versions) for layer, (values, versions) in state["pulled"].items()
        }
        self.table.flush()
        dist.barrier()

    def close(self) -> None:
        """Drop the tables, which the first trainer does for all. All trainers must have ended their last epoch."""
        super().close()
        if self._table is not None:
            self._table.close(delete=self._rank == 0)

    def let_go(self) -> None:
        """End at once after a failure. Without a sign of life, the tables are dropped when their lease is over."""
        if self._table is not None:
            self._table.let_go()

    def _forward(self, layer: int, rows: torch.Tensor) -> Arrival:
        """Pushes own rows, if it is time. Raises the errors of ``DaemonTable.publish``, and NonFiniteError."""
        key: Key = (layer, "forward")
        first = key not in self._started
        if first:
            self._started.add(key)
            publishes = self.policy.publishes(self._epoch, "forward", self._rank)
            count = self.figures.broadcasts if publishes else self.figures.skipped
            count[key] += 1
            if publishes:
                self._publish(layer, self._mine(rows), self._epoch)
        return Arrival(lambda: self._read(layer, first=first))

    def _read(self, layer: int, *, first: bool) -> torch.Tensor:
        """The rows that are read, [n, d]; ``first``: their ages are counted."""
        if layer in self._pulls:
            self._take(layer)
        found = self._pulled[layer]
        if first:
            self.figures.read((layer, "forward"), Ages.of(self._epoch, found.versions))
        return found.values

    def _open(self, table: DaemonTable) -> None:
        if self._table is not None:  # it was to be filled, but a trainer went away
            self._table.let_go()
        self._table = table
        self._mine_there, self._others = table.locate(self._own_ids), table.locate(self._read_ids)

    def _take(self, layer: int) -> None:
        found = self._pulls.pop(layer).result()
        row_bytes = self.table.row_bytes(layer)
        self.sent[layer, "forward"] += len(self._others) * row_bytes
        self.crossed[layer, "forward"] += self._far * row_bytes
        self._pulled[layer] = Fetched(found.values.to(self._device), found.versions)

    def _mine(self, rows: torch.Tensor) -> torch.Tensor:
        mine = rows.detach().index_select(0, self._shared)
        return F.normalize(mine, dim=1) if self.policy.normalize_rows else mine

    def _publish(self, layer: int, mine: torch.Tensor, version: int) -> None:
        check_finite(mine, self._rank, version, (layer, "forward"))
        self.table.publish(layer, self._mine_there, mine, version)
        self._published[layer] = (version, mine)
        self.figures.pushed[layer, "forward"] += len(mine) * self.table.row_bytes(layer)
