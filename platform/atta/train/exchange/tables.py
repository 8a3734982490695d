"""Rows that wait in tables on the daemons: owners push them now and then, readers keep what they pulled last."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from atta.client.tables.cluster import ClusterTables
from atta.client.tables.pushes import Ticket
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, QuotaExceededError, StaleRowError, UnknownNameError, blaming
from atta.kvstore.codecs import encoded_bytes
from atta.kvstore.spec import MutableSpec
from atta.train.cooperative.source import Arrival
from atta.train.exchange.figures import Key
from atta.train.exchange.messages import RowSetting, StaleRows, check_finite
from atta.train.exchange.policies import NEVER, Ages, DigestPolicy, Rule

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
    """Rows of a job on the daemons of a cluster, by internal numbers of vertices. Each layer has one mutable table per slot.

    All trainers publish in every synchronisation, even if they have no rows, so that all of them take the slots in the
    same order, and readers still pull the one before. A reader asks for one that all trainers have flushed.

    With a single slot a new version of a row replaces the one before at once, for readers of the newest rows (DIGEST-A).
    Every row is read and written as a whole; rows of an answer may be of different versions. None gets an older one."""

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

        widths: numbers per row, by layer; rows: number of vertices; job: a name that no other job has; slots: 2, or 1 for the
        newest rows; codec: fp16, bf16 or int8; lease_s: how long the tables live when the job has died. Raises
        QuotaExceededError: the daemons have no room; then no tables are left; ConfigError: the tables do not fit the dataset,
        or the codec does not fit the dtype."""
        if dtype not in _DTYPES or (codec and dtype is not torch.float32):
            raise ConfigError(f"stale rows of {dtype}: daemons hold float32, without a codec also float64")
        self.widths = dict(widths)
        self._tables, self._dtype, self._codec = tables, dtype, codec
        self._slot_of: dict[int, int] = {}  # by version of a synchronisation
        self._sent: list[Ticket] = []
        self._slots = self._create_tables(
            {
                layer: [
                    MutableSpec(
                        f"{job}.{layer}.{slot}", rows, _DTYPES[dtype], (width,), versioned=True,
                        policy=f"nodes:{node_type}", lease_s=lease_s,
                    )
                    for slot in range(slots)
                ]
                for layer, width in widths.items()
            }
        )  # fmt: skip
        self._pulling = ThreadPoolExecutor(_PULLERS, thread_name_prefix="atta-stale-rows")
        self._lost: AttaError | None = None
        self._life = contextlib.ExitStack()
        self._life.enter_context(repeated(self._renew, lease_s / 4))

    def row_bytes(self, layer: int) -> int:
        """Bytes of a row's values as they travel."""
        width = self.widths[layer]
        return encoded_bytes(self._codec, width) if self._codec else width * self._dtype.itemsize

    def locate(self, ids: np.ndarray) -> torch.Tensor:
        """int64 [n]: the rows of users' ``ids`` of vertices. Raises ConfigError for an unknown vertex."""
        if not self._slots:
            return torch.from_numpy(ids)  # nothing travels
        return torch.from_numpy(np.array(next(iter(self._slots.values()))[0].locate(ids)))

    def publish(self, layer: int, rows: torch.Tensor, values: torch.Tensor, version: int) -> None:
        """Push ``values`` [n, d] of distinct ``rows`` int64 [n]. They are under way until ``flush``. Raises
        RemoteError, UnknownNameError: a daemon does not answer, or does not have the table any more."""
        self._check_alive()
        slots = self._slots[layer]
        if version not in self._slot_of:
            slot = (next(reversed(self._slot_of.values()), -1) + 1) % len(slots)
            self._slot_of = {v: s for v, s in self._slot_of.items() if s != slot} | {version: slot}
        table, data = slots[self._slot_of[version]], values.detach().cpu().numpy()
        self._sent.append(table.push(rows.cpu().numpy(), data, version=version, codec=self._codec))

    def fetch(self, layer: int, rows: torch.Tensor, rule: Rule) -> Future[Fetched]:
        """Pull ``rows`` int64 [n], which may repeat, while the caller computes: those of the one synchronisation that
        ``rule`` admits, or with a single slot the newest ones. Wait for it before the next synchronisation. Raises,
        then or in the future, StaleRowError: it is unknown, or a row was not part of it; and errors of ``publish``."""
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
        self._lost = self._lost or AttaError("the tables were let go")
        self._pulling.shutdown(wait=False, cancel_futures=True)

    def close(self, *, delete: bool = False) -> None:
        """End the work in the background; ``delete``: drop the job's tables, which one trainer does for all."""
        self._life.close()
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
        with blaming(StaleRowError, f"layer {layer}", of=StaleRowError):
            found = table.pull(rows.cpu().numpy(), codec=self._codec, version=version, versions=version is None)
        values = torch.from_numpy(found.values)
        if version is not None:
            return Fetched(values, torch.full((len(rows),), version))
        assert found.versions is not None, "the tables have versions"
        versions = torch.from_numpy(found.versions)
        if len(missing := rows[versions.to(rows.device) == NEVER]):
            raise StaleRowError(f"layer {layer}: row {int(missing[0])} was never published")
        return Fetched(values, versions)

    def _renew(self) -> None:
        """Without an answer, the lease may last until the daemon answers again; pushes and pulls raise the error."""
        if self._lost is None:
            try:
                for slots in self._slots.values():
                    for table in slots:
                        table.refresh()
            except UnknownNameError as error:
                self._lost = error

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise self._lost


@contextlib.contextmanager
def repeated(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do ``action`` every ``every_s`` seconds within the block, from a thread, whatever AttaError it raises."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(AttaError):
                action()

    keeper = threading.Thread(target=repeat, name="atta-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


class TableRows(StaleRows):
    """Hidden rows travel through tables on the daemons, gradients by messages. ``fill`` comes before the first epoch.
    Pulls begin with the epoch, so they hide behind what is computed before the rows are needed. Pushes hide behind the
    rest of forward and behind backward."""

    policy: DigestPolicy

    def __init__(self, given: RowSetting) -> None:
        super().__init__(given)
        reads, ids = given.reads, given.reads.view.global_ids
        if given.publish_all:
            self._shared = torch.arange(reads.own, device=self._device)
        self._own_ids, self._read_ids = ids[self._shared.cpu().numpy()], np.empty(reads.received, np.int64)
        self._read_ids[reads.places] = ids[len(ids) - len(reads.places) :]
        self._ids, self._far_rows = ids, np.repeat(reads.elsewhere, reads.lists.receive_counts)[reads.places]
        self._far = int(self._far_rows.sum())
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
        """Publish version 0 in ``table``: own ``rows`` [o, d] of each layer that travels. All trainers must have filled
        it before the first epoch. Raises the errors of ``DaemonTable.publish``."""
        self._open(table)
        for layer, of_layer in sorted(rows.items()):
            self._publish(layer, self._mine(of_layer), 0)
        table.flush()

    def rejoin(self, table: DaemonTable, rows: Mapping[int, torch.Tensor]) -> None:
        """Use a ``table`` that is full, in place of ``fill``. The first epoch pulls rows, whatever its number.
        ``rows``: [0, d] of each layer that travels."""
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
            self._push(layer, rows)
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

    def _push(self, layer: int, rows: torch.Tensor) -> None:
        publishes = self.policy.publishes(self._epoch, "forward", self._rank)
        self.figures.count((layer, "forward"), broadcast=publishes)
        if publishes:
            self._publish(layer, self._mine(rows), self._epoch)

    def _publish(self, layer: int, mine: torch.Tensor, version: int) -> None:
        check_finite(mine, self._rank, version, (layer, "forward"))
        self.table.publish(layer, self._mine_there, mine, version)
        self._published[layer] = (version, mine)
        self.figures.pushed[layer, "forward"] += len(mine) * self.table.row_bytes(layer)
