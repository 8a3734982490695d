"""A representation table on the daemons: owners push their rows to the daemon beside them, readers pull (DIGEST).

Each layer and direction has one mutable table per slot. Synchronisations take the slots in turn, so pushes of one never
touch what readers of the synchronisation before still pull. The tables are leased: when the job dies they are dropped.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from atta.client.tables.cluster import ClusterTables
from atta.client.tables.pushes import Ticket
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, QuotaExceededError, StaleRowError, UnknownNameError
from atta.kvstore.codecs import encoded_bytes
from atta.kvstore.spec import MutableSpec
from atta.train.stale.rules import NEVER, Rule
from atta.train.stale.table import Direction, Fetched, TableShape, check_finite, chosen, refused

__all__ = ["LEASE_S", "DaemonTable"]

LEASE_S = 60.0
"""How long the tables of a job live without a sign of life."""
_DTYPES = {torch.float32: "<f4", torch.float64: "<f8"}
_PULLERS = 2
"""Threads that pull in the background."""


class DaemonTable:
    """Rows of a job on the daemons of a cluster; a ``RepTable`` whose rows are internal numbers of vertices.

    All trainers publish in every synchronisation, even if they have no rows, so that all of them take the slots in the
    same order. A synchronisation publishes every row that is read.

    Attributes:
        history: how many synchronisations it keeps.
        shape: its size; ``rows`` is the number of vertices.
        committed: the last committed epoch; -1: none.
        pushed, pulled: bytes of values, as they travelled, by layer and direction.
    """

    history = 1

    def __init__(
        self,
        tables: ClusterTables,
        shape: TableShape,
        *,
        job: str,
        node_type: str,
        trainer: int = 0,
        codec: str = "",
        lease_s: float = LEASE_S,
    ) -> None:
        """Create the tables, or open those that another trainer of the job has created.

        Args:
            tables: of the cluster.
            shape: how large it is.
            job: a name that no other job has.
            node_type: of the vertices whose rows these are.
            trainer: who publishes; errors name it.
            codec: fp16, bf16 or int8: rows travel in fewer bytes, with less precision.
            lease_s: how long the tables live when the job has died.

        Raises:
            QuotaExceededError: the daemons have no room; names the bytes. Then no tables are left.
            ConfigError: the tables do not fit the dataset, or the codec does not fit the dtype.
        """
        if shape.dtype not in _DTYPES or (codec and shape.dtype is not torch.float32):
            raise ConfigError(f"stale rows of {shape.dtype}: daemons hold float32, without a codec also float64")
        self.shape, self.committed = shape, NEVER
        self._tables, self._job, self._trainer, self._codec = tables, job, trainer, codec
        self.pushed: Counter[tuple[int, Direction]] = Counter()
        self.pulled: Counter[tuple[int, Direction]] = Counter()
        self._open, self._begun = NEVER, 0  # _begun: synchronisations so far, the open one not counted
        self._synced: deque[tuple[int, int]] = deque(maxlen=shape.history)  # (version, slot)
        self._sent: list[Ticket] = []
        self._slots = self._created(node_type, lease_s)
        self._any = next(iter(self._slots.values()))[0] if self._slots else None
        self._pulling = ThreadPoolExecutor(_PULLERS, thread_name_prefix="atta-stale-rows")
        self._ending = threading.Event()
        self._lost: AttaError | None = None
        self._keeper = threading.Thread(target=self._renew, args=(lease_s / 4,), name="atta-lease", daemon=True)
        self._keeper.start()

    def row_bytes(self, layer: int, direction: Direction) -> int:
        """Bytes of a row's values as they travel."""
        width = self.shape.width(layer, direction)
        return encoded_bytes(self._codec, width) if self._codec else width * self.shape.dtype.itemsize

    def locate(self, ids: np.ndarray) -> torch.Tensor:
        """int64 [n]: the rows of users' ``ids`` of vertices. Raises ConfigError for an unknown vertex."""
        assert self._any is not None, "a table without layers has no rows"
        return torch.from_numpy(np.array(self._any.locate(ids)))

    def publish(self, layer: int, direction: Direction, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """The rows are under way until ``flush``.

        Raises:
            RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more.
        """
        self._check_alive()
        self.shape.check_values(layer, direction, rows, values)
        check_finite(values, trainer=self._trainer, epoch=version, layer=layer, direction=direction)
        if version <= max(self.committed, self._open - 1):
            return
        if self._open not in (NEVER, version):
            raise ConfigError(
                f"layer {layer}, {direction}: epoch {version} is published, {self._open} is not committed"
            )
        self._open = version
        table = self._slots[layer, direction][self._begun % self.shape.slots]
        self.pushed[layer, direction] += len(rows) * self.row_bytes(layer, direction)
        data = values.detach().cpu().numpy()
        self._sent.append(table.push(rows.cpu().numpy(), data, version=version, codec=self._codec))

    def fetch(self, layer: int, direction: Direction, rows: torch.Tensor, rule: Rule) -> Fetched:
        """All rows of an answer are of the same synchronisations.

        Raises:
            StaleRowError: no synchronisation has a version that ``rule`` admits, or a row was not part of it.
            RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more.
        """
        self._check_alive()
        self.shape.width(layer, direction)
        if rule.count > self.shape.history:
            raise ConfigError(f"layer {layer}, {direction}: {rule.count} versions, {self.shape.history} are kept")
        stamps, slots = self._stamps(rule.count)
        at, versions = chosen(stamps, rule, self.committed)
        if int(versions[0]) == NEVER:
            row = int(rows[0]) if len(rows) else -1
            raise refused(layer, direction, rule, row=row, versions=stamps[:, 0].tolist(), committed=self.committed)
        asked = rows.cpu().numpy()
        wanted = [(int(slots[i]), int(version)) for i, version in zip(at[:, 0], versions[:, 0], strict=True)]
        pulled = {one: self._pulled(layer, direction, asked, *one) for one in dict.fromkeys(wanted)}
        self.pulled[layer, direction] += len(pulled) * len(rows) * self.row_bytes(layer, direction)
        values = torch.stack([pulled[one] for one in wanted]).to(rows.device)
        found = versions.expand(rule.count, len(rows)).to(rows.device)
        return Fetched(values[0], found[0]) if rule.count == 1 else Fetched(values, found)

    def fetch_later(self, layer: int, direction: Direction, rows: torch.Tensor, rule: Rule) -> Future[Fetched]:
        """As ``fetch``, while the caller computes. Wait for it before the next ``commit``."""
        return self._pulling.submit(self.fetch, layer, direction, rows, rule)

    def flush(self) -> None:
        """Raises the errors of pushes."""
        sent, self._sent = self._sent, []
        errors = []
        for ticket in sent:
            try:
                ticket.wait()
            except AttaError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def commit(self, version: int) -> None:
        """Raises ConfigError if rows have not been flushed, or are of a later epoch."""
        if self._sent or self._open > version:
            what = "rows are under way" if self._sent else f"rows of epoch {self._open} are published"
            raise ConfigError(f"epoch {version} cannot be committed: {what}")
        if self._open != NEVER:
            self._synced.append((self._open, self._begun % self.shape.slots))
            self._begun += 1
        self.committed, self._open = max(self.committed, version), NEVER

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
            self._delete()

    def _created(self, node_type: str, lease_s: float) -> dict[tuple[int, Direction], list[RemoteTable]]:
        try:
            return {
                (layer, direction): [
                    self._tables.create(
                        MutableSpec(
                            self._name(layer, direction, slot), self.shape.rows, _DTYPES[self.shape.dtype], (width,),
                            versioned=True, policy=f"nodes:{node_type}", lease_s=lease_s,
                        )
                    )
                    for slot in range(self.shape.slots)
                ]
                for (layer, direction), width in self.shape.widths.items()
            }  # fmt: skip
        except QuotaExceededError as error:
            self._delete()
            raise QuotaExceededError(
                f"stale rows need {self.shape.nbytes} bytes on the daemons together ({self.shape.slots} versions of "
                f"{self.shape.rows} rows); start the daemons with more --tables: {error}"
            ) from error

    def _delete(self) -> None:
        for layer, direction in self.shape.widths:
            for slot in range(self.shape.slots):
                with contextlib.suppress(AttaError):
                    self._tables.delete(self._name(layer, direction, slot))

    def _name(self, layer: int, direction: Direction, slot: int) -> str:
        return f"{self._job}.{layer}.{direction}.{slot}"

    def _stamps(self, count: int) -> tuple[torch.Tensor, list[int]]:
        """int64 [m, 1]: versions of the synchronisations that may be read, and their slots; at least ``count``."""
        synced = [*self._synced, (self._open, self._begun % self.shape.slots)]
        synced += [(NEVER, 0)] * (count - len(synced))
        return torch.tensor([[version] for version, _ in synced]), [slot for _, slot in synced]

    def _pulled(self, layer: int, direction: Direction, rows: np.ndarray, slot: int, version: int) -> torch.Tensor:
        try:
            found = self._slots[layer, direction][slot].pull(rows, codec=self._codec, version=version)
        except StaleRowError as error:
            raise StaleRowError(f"layer {layer}, {direction}: {error}") from error
        return torch.from_numpy(found.values)

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
