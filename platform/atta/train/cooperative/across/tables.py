"""Rows that wait in tables on the daemons: owners push them now and then, readers keep what they pulled last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from atta.errors import ConfigError
from atta.train.cooperative.across.figures import RowFigures
from atta.train.cooperative.across.meeting import HaloRows
from atta.train.cooperative.across.reads import ReadRows
from atta.train.cooperative.across.ways import Outgoing
from atta.train.cooperative.exchange.source import Arrival
from atta.train.cooperative.graph import Longs
from atta.train.stale.daemons import DaemonTable
from atta.train.stale.decisions.common import Published
from atta.train.stale.decisions.digest import DigestDecisions
from atta.train.stale.rules import Ages
from atta.train.stale.table import Direction, Fetched

__all__ = ["TableRows", "TableWay", "table_rows"]

_FORWARD: Direction = "forward"


@dataclass(frozen=True)
class TableRows:
    """What a trainer publishes and what it reads.

    Attributes:
        published: int64 [p], own rows.
        published_ids: int64 [p], their vertices.
        read_ids: int64 [n], the vertices whose rows it reads, as the ``Way`` orders them.
        elsewhere: how many of these belong to other servers.
    """

    published: torch.Tensor
    published_ids: Longs
    read_ids: Longs
    elsewhere: int


def table_rows(reads: ReadRows, found: HaloRows, device: torch.device, *, publish_all: bool) -> TableRows:
    """The rows of ``reads``. With ``publish_all``, own rows that nobody reads are published too."""
    ids = found.view.global_ids
    published = np.arange(reads.own) if publish_all else np.unique(reads.lists.send_rows)
    read_ids = np.empty(reads.received, np.int64)
    read_ids[reads.places] = ids[len(ids) - len(reads.places) :]
    elsewhere = int(reads.lists.receive_counts[np.array(reads.elsewhere)].sum())
    return TableRows(torch.from_numpy(published).to(device), ids[published], read_ids, elsewhere)


class TableWay:
    """A ``Way`` of hidden rows through tables on the daemons. ``fill`` comes before the first epoch.

    Pulls begin with the epoch, so they hide behind what is computed before the rows are needed. Pushes hide behind the
    rest of forward and behind backward.
    """

    def __init__(
        self,
        decisions: DigestDecisions,
        rows: TableRows,
        figures: RowFigures,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """``figures``: where bytes, ages and synchronisations are counted; ``device``: where rows are."""
        self._decisions, self._rows, self._figures = decisions, rows, figures
        self._device, self._rank, self._epoch = torch.device(device), dist.get_rank(), 0
        self._table: DaemonTable | None = None
        self._started: set[int] = set()
        self._published: dict[int, tuple[int, torch.Tensor]] = {}  # (version, rows)
        self._pulls: dict[int, Future[Fetched]] = {}
        self._held: dict[int, Fetched] = {}
        self._rejoined = False

    @property
    def kept_bytes(self) -> int:
        return sum(found.values.nbytes for found in self._held.values())

    @property
    def copied_bytes(self) -> int:
        """Changes are not measured."""
        return 0

    def fill(self, table: DaemonTable, rows: Mapping[int, torch.Tensor]) -> None:
        """Publish version 0 in ``table``: own ``rows`` [o, d] of each layer that travels.

        All trainers must have filled it before ``commit``. Raises the errors of ``DaemonTable.publish``.
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
        self.commit()

    def begin(self, epoch: int) -> None:
        """Starts to pull the rows of all layers, if there are newer ones."""
        self._epoch = epoch
        self._started.clear()
        if not (self._rejoined or self._decisions.pulls(epoch, _FORWARD)):
            return
        self._rejoined = False
        rule = self._decisions.reads(epoch, _FORWARD)
        assert rule is not None, "rows are always read"
        for layer in sorted(self._published):
            self._pulls[layer] = self.table.fetch_later(layer, _FORWARD, self._others, rule)

    def start(self, layer: int, rows: torch.Tensor, outgoing: Callable[[torch.Tensor], Outgoing]) -> Arrival:
        """Pushes own rows, if it is time.

        Raises:
            NonFiniteError: a row that is pushed is infinite or NaN.
            RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more.
        """
        if layer not in self._started:
            self._started.add(layer)
            publishes = self._decisions.publishes(self._epoch, _FORWARD, self._rank, Published())
            count = self._figures.broadcasts if publishes else self._figures.skipped
            count[layer, _FORWARD] += 1
            if publishes:
                self._publish(layer, self._mine(rows), self._epoch)
            return _FromTable(self, layer, first=True)
        return _FromTable(self, layer, first=False)

    def flush(self) -> None:
        for layer in list(self._pulls):
            self._take(layer)
        self.table.flush()

    def commit(self) -> None:
        self.table.commit(self._epoch)

    def state(self) -> dict[str, Any]:
        held = {layer: (found.values, found.versions) for layer, found in self._held.items()}
        return {"epoch": self._epoch, "published": dict(self._published), "held": held}

    def load_state(self, state: dict[str, Any]) -> None:
        """After ``fill``. All trainers call it: they publish their saved rows again, then go on.

        Raises:
            ConfigError: the state is of other rows.
        """
        wanted = {layer: (len(self._own), self._width(layer)) for layer in self._published}
        found = {layer: tuple(rows.shape) for layer, (_, rows) in state["published"].items()}
        if found != wanted:
            raise ConfigError(f"the saved rows of layers are {found}, this trainer publishes {wanted}")
        for layer, (version, rows) in sorted(state["published"].items()):
            # Version 0 is there. Nobody reads it any more, because all trainers have pulled it in the first epoch.
            if version > 0:
                self._publish(layer, rows.to(self._device), version)
        self._held = {
            layer: Fetched(values.to(self._device), versions) for layer, (values, versions) in state["held"].items()
        }
        self.table.flush()
        dist.barrier()
        self._epoch = int(state["epoch"])
        self.commit()

    def close(self) -> None:
        """Drop the tables, which the first trainer does for all. All trainers must have ended their last epoch."""
        if self._table is not None:
            self._table.close(delete=self._rank == 0)

    def let_go(self) -> None:
        """End at once after a failure. Without a sign of life, the tables are dropped when their lease is over."""
        if self._table is not None:
            self._table.let_go()

    def arrived(self, layer: int, *, first: bool) -> torch.Tensor:
        """The rows that are read, [n, d]; ``first``: their ages are counted."""
        if layer in self._pulls:
            self._take(layer)
        found = self._held[layer]
        if first:
            self._figures.read((layer, _FORWARD), Ages.of(self._epoch, found.versions))
        return self._chosen(layer, found.values)

    @property
    def table(self) -> DaemonTable:
        """The table; there is one after ``fill``."""
        assert self._table is not None, "the table is not filled"
        return self._table

    def _open(self, table: DaemonTable) -> None:
        if self._table is not None:  # it was to be filled, but a trainer went away
            self._table.let_go()
        self._table = table
        self._own, self._others = table.locate(self._rows.published_ids), table.locate(self._rows.read_ids)

    def _chosen(self, layer: int, stale: torch.Tensor) -> torch.Tensor:
        """What is read in place of the rows that were pulled last."""
        return stale

    def _take(self, layer: int) -> None:
        found = self._pulls.pop(layer).result()
        row_bytes = self.table.row_bytes(layer, _FORWARD)
        self._figures.sent[layer, _FORWARD] += len(self._others) * row_bytes
        self._figures.crossed[layer, _FORWARD] += self._rows.elsewhere * row_bytes
        self._held[layer] = Fetched(found.values.to(self._device), found.versions)

    def _mine(self, rows: torch.Tensor) -> torch.Tensor:
        mine = rows.detach().index_select(0, self._rows.published)
        return F.normalize(mine, dim=1) if self._decisions.normalize_rows else mine

    def _publish(self, layer: int, mine: torch.Tensor, version: int) -> None:
        self.table.publish(layer, _FORWARD, self._own, mine, version)
        self._published[layer] = (version, mine)
        self._figures.pushed[layer, _FORWARD] += len(mine) * self.table.row_bytes(layer, _FORWARD)

    def _width(self, layer: int) -> int:
        return self.table.shape.width(layer, _FORWARD)


class _FromTable:
    def __init__(self, way: TableWay, layer: int, *, first: bool) -> None:
        self._way, self._layer, self._first = way, layer, first

    def finish(self) -> torch.Tensor:
        return self._way.arrived(self._layer, first=self._first)
