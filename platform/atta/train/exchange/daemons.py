"""Hidden rows on the daemons: owners push theirs to the daemon beside them, readers pull (DIGEST).

Each layer has one mutable table per slot. Synchronisations take the slots in turn, so pushes of one never touch what
readers of the synchronisation before still pull. The tables are leased: when the job dies they are dropped.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from atta.client.tables.cluster import ClusterTables
from atta.client.tables.pushes import Ticket
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, QuotaExceededError, StaleRowError, UnknownNameError
from atta.kvstore.codecs import encoded_bytes
from atta.kvstore.spec import MutableSpec
from atta.train.exchange.policy import NEVER, Rule

LEASE_S = 60.0
"""How long the tables of a job live without a sign of life."""
_DTYPES = {torch.float32: "<f4", torch.float64: "<f8"}
_PULLERS = 2
"""Threads that pull in the background."""


class Fetched(NamedTuple):
    """Rows as a reader gets them: ``values`` [n, d] and their ``versions`` int64 [n]."""

    values: torch.Tensor
    versions: torch.Tensor


class DaemonTable:
    """Rows of a job on the daemons of a cluster, by internal numbers of vertices.

    All trainers publish in every synchronisation, even if they have no rows, so that all of them take the slots in the
    same order. A synchronisation publishes every row that is read. A reader asks for one that has been committed: all
    trainers have flushed it.

    With a single slot a new version of a row replaces the one before at once, for readers of the newest rows (DIGEST-A).
    Every row is read and written as a whole, so it is of one version; rows of an answer may be of different ones. A row
    never gets an older version.
    """

    def __init__(
        self,
        tables: ClusterTables,
        widths: Mapping[int, int],
        rows: int,
        *,
        job: str,
        node_type: str,
        slots: int = 2,
        dtype: torch.dtype = torch.float32,
        codec: str = "",
        lease_s: float = LEASE_S,
    ) -> None:
        """Create the tables, or open those that another trainer of the job has created.

        Args:
            tables: of the cluster.
            widths: numbers per row, by layer.
            rows: number of vertices.
            job: a name that no other job has.
            node_type: of the vertices whose rows these are.
            slots: 2, or 1 for the newest rows.
            dtype: of the rows.
            codec: fp16, bf16 or int8: rows travel in fewer bytes, with less precision.
            lease_s: how long the tables live when the job has died.

        Raises:
            QuotaExceededError: the daemons have no room; names the bytes. Then no tables are left.
            ConfigError: the tables do not fit the dataset, or the codec does not fit the dtype.
        """
        if dtype not in _DTYPES or (codec and dtype is not torch.float32):
            raise ConfigError(f"stale rows of {dtype}: daemons hold float32, without a codec also float64")
        self.widths = dict(widths)
        self._tables, self._dtype, self._codec = tables, dtype, codec
        self._slot_of: dict[int, int] = {}  # by version of a synchronisation
        self._sent: list[Ticket] = []
        shared: dict[str, Any] = {"versioned": True, "policy": f"nodes:{node_type}", "lease_s": lease_s}
        specs = {
            layer: [
                MutableSpec(f"{job}.{layer}.{slot}", rows, _DTYPES[dtype], (width,), **shared) for slot in range(slots)
            ]
            for layer, width in widths.items()
        }
        self._slots = self._create_tables(specs)
        self._pulling = ThreadPoolExecutor(_PULLERS, thread_name_prefix="atta-stale-rows")
        self._ending = threading.Event()
        self._lost: AttaError | None = None
        self._keeper = threading.Thread(target=self._renew, args=(lease_s / 4,), name="atta-lease", daemon=True)
        self._keeper.start()

    def row_bytes(self, layer: int) -> int:
        """Bytes of a row's values as they travel."""
        width = self.widths[layer]
        return encoded_bytes(self._codec, width) if self._codec else width * self._dtype.itemsize

    def locate(self, ids: np.ndarray) -> torch.Tensor:
        """int64 [n]: the rows of users' ``ids`` of vertices. Raises ConfigError for an unknown vertex."""
        table = next(iter(self._slots.values()), [None])[0]
        assert table is not None, "a table without layers has no rows"
        return torch.from_numpy(np.array(table.locate(ids)))

    def publish(self, layer: int, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """Push ``values`` [n, d] of distinct ``rows`` int64 [n]. They are under way until ``flush``.

        Raises:
            RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more.
        """
        self._check_alive()
        slots = self._slots[layer]
        if version not in self._slot_of:
            slot = (next(reversed(self._slot_of.values()), -1) + 1) % len(slots)
            self._slot_of = {v: s for v, s in self._slot_of.items() if s != slot} | {version: slot}
        data = values.detach().cpu().numpy()
        self._sent.append(
            slots[self._slot_of[version]].push(rows.cpu().numpy(), data, version=version, codec=self._codec)
        )

    def fetch(self, layer: int, rows: torch.Tensor, rule: Rule) -> Future[Fetched]:
        """Pull ``rows`` int64 [n], which may repeat, while the caller computes: those of the one synchronisation that
        ``rule`` admits, or with a single slot the newest ones. Wait for it before the next synchronisation.

        Raises, then or in the future:
            StaleRowError: the synchronisation is unknown, or a row was not part of it.
            RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more.
        """
        self._check_alive()
        slots = self._slots[layer]
        if len(slots) == 1:
            return self._pulling.submit(self._pull, layer, slots[0], rows, None)
        if rule.newest not in self._slot_of:
            raise StaleRowError(f"layer {layer}: the rows of epoch {rule.newest} are not on the daemons")
        return self._pulling.submit(self._pull, layer, slots[self._slot_of[rule.newest]], rows, rule.newest)

    def flush(self) -> None:
        """Wait until all that was published has arrived; raises the errors of pushes."""
        sent, self._sent = self._sent, []
        errors = []
        for ticket in sent:
            try:
                ticket.wait()
            except AttaError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def let_go(self) -> None:
        """End the work in the background and wait for nothing. The tables go when their lease is over."""
        self._ending.set()
        self._pulling.shutdown(wait=False, cancel_futures=True)

    def close(self, *, delete: bool = False) -> None:
        """End the work in the background; ``delete``: drop the job's tables, which one trainer does for all."""
        self._ending.set()
        self._keeper.join()
        self._pulling.shutdown()
        with contextlib.suppress(AttaError):
            self.flush()
        if delete:
            self._delete(table.spec.name for slots in self._slots.values() for table in slots)

    def _create_tables(self, specs: Mapping[int, list[MutableSpec]]) -> dict[int, list[RemoteTable]]:
        try:
            return {layer: [self._tables.create(spec) for spec in slots] for layer, slots in specs.items()}
        except QuotaExceededError as error:
            every = [spec for slots in specs.values() for spec in slots]
            self._delete(spec.name for spec in every)
            need = sum(spec.rows * (math.prod(spec.row_shape) * self._dtype.itemsize + 8) for spec in every)
            raise QuotaExceededError(
                f"stale rows need {need} bytes on the daemons together ({len(every) // len(specs)} versions of "
                f"{every[0].rows} rows); start the daemons with more --tables: {error}"
            ) from error

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(AttaError):
                self._tables.delete(name)

    def _pull(self, layer: int, table: RemoteTable, rows: torch.Tensor, version: int | None) -> Fetched:
        try:
            found = table.pull(rows.cpu().numpy(), codec=self._codec, version=version, versions=version is None)
        except StaleRowError as error:
            raise StaleRowError(f"layer {layer}: {error}") from error
        values = torch.from_numpy(found.values)
        if version is not None:
            return Fetched(values, torch.full((len(rows),), version))
        assert found.versions is not None, "the tables have versions"
        versions = torch.from_numpy(found.versions)
        if len(missing := rows[versions.to(rows.device) == NEVER]):
            raise StaleRowError(f"layer {layer}: row {int(missing[0])} was never published")
        return Fetched(values, versions)

    def _renew(self, every_s: float) -> None:
        while not self._ending.wait(every_s):
            try:
                for tables in self._slots.values():
                    for table in tables:
                        table.refresh()
            except UnknownNameError as error:
                self._lost = error
                return
            except AttaError:  # the lease may last until the daemon answers again; pushes and pulls raise the error
                continue

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost
