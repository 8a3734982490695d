"""The shard of a mutable table that one owner holds: pulled and pushed by many clients at once.

Every row is read and written as a whole, under its own lock; rows of one request are not locked together. Pushes run in
parallel, except while the table grows or is copied for a snapshot. Pulls never wait for these, because arrays are
exchanged, not resized."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from atta import _native
from atta.errors import ConfigError, DrainingError, StaleRowError
from atta.kvstore.durable.saved import SLOW_S, Saved, TablesWriter
from atta.kvstore.mutable.requests import Pulled, Push, PushOptions, Values, check_array, local_rows
from atta.kvstore.mutable.sequences import Changes, Claim, Client, Gate, Sequences
from atta.kvstore.spec import MutableSpec, OptimiserSpec, RowIds, numbered_from


def initial_state(optimiser: OptimiserSpec | None, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The optimiser's arrays before the first step (float32 of ``shape``), by name."""
    if optimiser is None:
        return {}
    begin = np.float32(optimiser.initial_accumulator_value if optimiser.kind == "adagrad" else 0.0)
    # Write zeros, too: memory that is only reserved may be missing when it is first used.
    return {name: np.full(shape, begin, dtype=np.float32) for name in optimiser.state_names}


def apply_step(
    optimiser: OptimiserSpec,
    step: int,
    values: np.ndarray,
    state: Mapping[str, np.ndarray],
    locks: _native.RowLocks,
    *,
    rows: np.ndarray,
    grads: np.ndarray,
) -> None:
    """Make step number ``step`` (from 1 on): change ``rows`` (int64 [n], may repeat) of ``values`` by ``grads``
    (float32 [n, *row shape]). The factors are computed in double precision, as torch computes them."""
    lr, (beta1, beta2) = optimiser.lr, optimiser.betas
    if optimiser.kind == "adagrad":
        lr /= 1 + (step - 1) * optimiser.lr_decay
    elif optimiser.kind == "adam":
        lr = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step)
    arrays = [state[name] for name in optimiser.state_names]
    _native.step_rows(optimiser.kind, values, arrays, rows, grads, locks, lr, beta1, beta2, optimiser.eps)


@dataclass(frozen=True, slots=True)
class ShardArrays:
    """The rows in memory: ``values`` [rows, *row shape], ``versions`` int64 [rows], ``state`` by name."""

    values: np.ndarray
    versions: np.ndarray | None
    state: dict[str, np.ndarray]

    @classmethod
    def fresh(cls, spec: MutableSpec, rows: int, ids: RowIds) -> ShardArrays:
        """What ``rows`` rows with these ids hold before anything is written."""
        values = np.empty((rows, *spec.row_shape), dtype=spec.dtype)
        spec.init.fill(values, ids)
        versions = np.full(rows, -1, dtype=np.int64) if spec.versioned else None
        return cls(values, versions, initial_state(spec.optimiser, values.shape))

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> ShardArrays:
        """From the arrays by their names in a snapshot."""
        state = {name: array for name, array in arrays.items() if name not in ("values", "versions")}
        return cls(arrays["values"], arrays.get("versions"), state)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by their names in a snapshot."""
        versions = {} if self.versions is None else {"versions": self.versions}
        return {"values": self.values, **versions, **self.state}

    def named(self, array: str) -> np.ndarray:
        """An array of the optimiser's state, or the values for ""."""
        return self.state[array] if array else self.values

    def followed_by(self, more: ShardArrays) -> ShardArrays:
        """A copy of these rows with ``more`` rows behind them."""
        return ShardArrays.of({name: np.concatenate([array, more.arrays[name]]) for name, array in self.arrays.items()})


class MutableTable:
    """Global rows ``first_row`` ... of a table. Safe to use from many threads.

    Attributes:
        whole: whether all shards of the table are known to have been created.
        load_id: number of the load that brought the table; 0: it was created here.
        key, lsn: how the daemon's log names the table (0: it is not in a log), and the last record that it has.
        created_rows: number of rows when the shard was created.
        changes: tells when the table may take a push again, and when one has been applied.
    """

    def __init__(
        self,
        spec: MutableSpec,
        first_row: int = 0,
        rows: int | None = None,
        *,
        table_id: int = 0,
        ids: RowIds | None = None,
        contents: ShardArrays | None = None,
    ) -> None:
        """A table of ``rows`` rows; None: the number in the spec. ``table_id``: the same for all shards of a table,
        different for every other table; 0: not used. ``ids``: of the rows, by their places in the shard; None: global
        row numbers. ``contents``: None: the rows' initial contents. Raises ConfigError: more rows than the spec has."""
        self.spec, self.first_row, self.table_id = spec, first_row, table_id
        self.whole, self.load_id, self.key, self.lsn = False, 0, 0, 0
        self.created_rows = spec.rows if rows is None else rows
        if min(first_row, self.created_rows) < 0 or first_row + self.created_rows > spec.limit:
            raise ConfigError(
                f"table {spec.name}: {self.created_rows} rows from row {first_row} on; it may have {spec.limit}"
            )
        self._contents = contents or ShardArrays.fresh(spec, self.created_rows, ids or numbered_from(first_row))
        self._locks = _native.RowLocks()
        self.changes = Changes()
        self._gate = Gate(self.changes)
        self._sequences = Sequences(changes=self.changes)
        self.step, self._step_lock = 0, threading.Lock()
        """``step``: the highest number of a step so far."""
        self._closed = False
        self._asked, self._heard = True, 0.0

    @classmethod
    def of(cls, saved: Saved, arrays: dict[str, np.ndarray], *, resume: bool = False) -> MutableTable:
        """A table that was saved. ``resume``: it goes on as it was, with its clients and its place in the log.
        Otherwise it begins anew; see ``Sequences``."""
        contents = ShardArrays.of(arrays)
        table = cls(saved.spec, saved.first_row, saved.created_rows, table_id=saved.table_id, contents=contents)
        table.whole, table.step = saved.whole, saved.step
        table._sequences = Sequences.from_json(saved.clients, over=set(saved.over) if resume else None)
        table._sequences.changes = table.changes
        if resume:
            table.load_id, table.key, table.lsn = saved.load_id, saved.key, saved.lsn
        return table

    @property
    def rows(self) -> int:
        """Number of rows of the shard."""
        return len(self._contents.values)

    @property
    def span(self) -> range:
        """Global rows of the shard."""
        return range(self.first_row, self.first_row + self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of values, versions and the optimiser's state."""
        return self.spec.nbytes(self.rows)

    @property
    def takes_pushes(self) -> bool:
        """Whether a push would start at once. It waits while the table grows or is copied. This is only a hint."""
        return self._gate.open

    @property
    def clients(self) -> int:
        """Number of known clients."""
        return len(self._sequences)

    def close(self) -> None:
        """Take no more pushes. Waits for the pushes under way."""
        with self._gate.exclusive():
            self._closed = True

    def renew_lease(self) -> None:
        """A client has asked for the table."""
        self._asked = True

    def lease_is_over(self, now: float) -> bool:
        """Whether nobody has asked for the table for as long as its lease lasts. ``now``: in seconds. Call it
        regularly: silence is measured to the interval between calls."""
        if self._asked:
            self._asked, self._heard = False, now
        return self.spec.lease_s is not None and now - self._heard > self.spec.lease_s

    def note_load(self, load_id: int, step: int) -> None:
        """Record the load that brought the table, and the highest step number that any of its shards has seen."""
        with self._step_lock:
            self.load_id, self.step = load_id, max(self.step, step)

    def _found(self, rows: np.ndarray) -> tuple[ShardArrays, np.ndarray]:
        contents = self._contents
        return contents, local_rows(self.spec, range(self.first_row, self.first_row + len(contents.values)), rows)

    def pull(self, rows: np.ndarray, array: str = "", *, out: Pulled | None = None) -> Pulled:
        """A copy of the rows with these global numbers (integers [n], may repeat), each with its version. ``array``: of
        the optimiser's state, to read instead of the values. ``out``: where the copy goes; None: into memory of its
        own. Raises ConfigError: a row outside the shard, or the optimiser keeps no such array."""
        check_array(self.spec, array)
        contents, local = self._found(rows)
        out = Pulled.empty(self.spec, len(local)) if out is None else out
        versions = None if out.versions is None else contents.versions
        _native.read_rows(contents.named(array), local, out.values, self._locks, versions, out.versions)
        return out

    def pull_version(self, rows: np.ndarray, version: int, *, out: np.ndarray | None = None) -> np.ndarray:
        """As ``pull``, the values alone: all rows have ``version``. Raises StaleRowError: a row has another version,
        which it names; ConfigError: a row outside the shard, or the table has no versions."""
        versions = np.empty(len(rows), dtype=np.int64) if self.spec.versioned else None
        found = self.pull(rows, out=None if out is None else Pulled(out, versions))
        if found.versions is None:
            raise ConfigError(f"table {self.spec.name}: its rows have no versions")
        other = found.versions != version
        if other.any():
            row, has = int(rows[other][0]), int(found.versions[other][0])
            state = "was never written with a version" if has < 0 else f"has version {has}"
            raise StaleRowError(f"table {self.spec.name}: row {row} {state}; the reader may use {version}")
        return found.values

    def pack(self, rows: np.ndarray, head: bytes, middle: bytes) -> bytes:
        """A message: ``head`` and the rows' values; for a versioned table also ``middle`` and the versions. Raises as
        ``pull``."""
        contents, local = self._found(rows)
        return _native.pack_table(head, contents.values, local, self._locks, contents.versions, middle)

    def push(
        self,
        rows: np.ndarray,
        values: Values,
        op: str,
        *,
        client: Client,
        sequence: int,
        settled: int = 0,
        **options: Unpack[PushOptions],
    ) -> bool:
        """Change rows, once per (client, sequence). False: this push was applied before.

        Args:
            rows, values, op, options: see ``checked``.
            client: the client that pushes, as registered.
            sequence: number of its earlier pushes to this shard.
            settled: no push of the client with a lower number will come again.

        After each of these errors nothing has changed, and the number is still unused.

        Raises:
            ConfigError: the request contradicts the table.
            UnknownClientError: the client is not registered, or registered before a snapshot was loaded.
            QuotaExceededError: too many earlier pushes of the client are missing.
            DrainingError: the table is closed.
        """
        with self._gate.shared():
            self._check_open()
            push = self.checked(rows, values, op, **options)
            with self._sequences.once(client, sequence, settled) as fresh:
                if fresh:
                    self._apply(push)
                return fresh

    def checked(self, rows: np.ndarray, values: Values, op: str, **options: Unpack[PushOptions]) -> Push:
        """The push, if the table can take it; raises ConfigError.

        Args:
            rows: global row numbers, integers [n]; may repeat.
            values: [n, *row shape] in the table's dtype, or the bytes of such an array. NaN and infinities are allowed.
            op: "write" overwrites; the last value of a repeated row counts. "add" accumulates. "step" uses ``values`` as
                gradients: gradients of equal rows are summed, then the row makes one step. A push without rows counts as
                a step.
        """
        return Push.checked(self.spec, self.span, rows, values, op, **options)

    def claim(self, client: Client, sequence: int, settled: int) -> Claim:
        """Begin a push in two steps: between them its record is written. FRESH: ``finish`` it, or ``give_back`` its
        number. Raises the errors of ``push``."""
        self._check_open()
        return self._sequences.claim(client, sequence, settled)

    def finish(self, push: Push, client: Client, sequence: int, lsn: int) -> None:
        """Apply a push that was claimed, as record ``lsn``. Pushes are finished one at a time, in this order."""
        with self._gate.shared():
            self._apply(push)
            self._sequences.finish(client, sequence, applied=True)
            self.lsn = lsn

    def give_back(self, client: Client, sequence: int) -> None:
        """The push that was claimed is not applied: its number is unused again."""
        self._sequences.finish(client, sequence, applied=False)

    def replay(self, push: Push, client: Client, sequence: int, settled: int, lsn: int) -> None:
        """Apply a push again whose record was read from the log."""
        self._sequences.replay(client, sequence, settled)
        self._apply(push)
        self.lsn = lsn

    def register(self, client: Client) -> None:
        """Let a client push; raises as ``Sequences.register``."""
        self._sequences.register(client)

    def know(self, client: Client) -> None:
        """Let a client push that registered, as a log says."""
        self._sequences.restore(client)

    def forget(self, client: Client) -> bool:
        """Drop a client that will not come again. Its pushes are refused from now on. False: it was not known."""
        return self._sequences.forget(client)

    def expire(self, now: float, idle_s: float) -> tuple[Client, ...]:
        """Forget clients that were silent for long; see ``Sequences.expire``."""
        return self._sequences.expire(now, idle_s)

    def grow(self, rows: int) -> None:
        """Grow the shard to ``rows`` rows. New rows get the contents that they would have had from the beginning.
        Pushes wait while the rows are copied. Old and new rows are in memory together during the copy. Raises
        ConfigError: fewer rows than now, or more than the spec allows."""
        with self._gate.exclusive():
            self.check_grown(rows)
            if rows > self.rows:
                # Tables of vertices and edges cannot grow.
                more = ShardArrays.fresh(self.spec, rows - self.rows, numbered_from(self.span.stop))
                self._contents = self._contents.followed_by(more)

    def check_grown(self, rows: int) -> None:
        """Raise ConfigError unless the shard may have this many rows from now on."""
        name, first = self.spec.name, self.first_row
        if rows < self.rows:
            raise ConfigError(f"table {name}: has {self.span.stop} rows and does not shrink to {first + rows}")
        if first + rows > self.spec.limit:
            raise ConfigError(f"table {name}: cannot grow to {first + rows} rows; it may have {self.spec.limit}")

    def write_to(self, file: TablesWriter, *, copy: bool = True) -> None:
        """Write the table, as it is between two pushes, into a file. Raises DataError: it cannot be written.

        The arrays are written while pushes wait: what a file gets stays in the system's memory first. Where that takes
        no more, the writer would wait for the disk, so what is left is copied within this process. ``copy``: there is
        room for that. Without it pushes wait until everything is written."""
        with self._gate.exclusive():
            blocks = file.begin(self._saved(), self._contents.arrays)
            rest = [block.copy() for block in file.write(blocks, slow_s=SLOW_S if copy else math.inf)]
        file.write(rest)

    def copied(self) -> tuple[Saved, dict[str, np.ndarray]]:
        """What a snapshot holds, copied in memory between two pushes."""
        with self._gate.exclusive():
            return self._saved(), {name: array.copy() for name, array in self._contents.arrays.items()}

    def _saved(self) -> Saved:
        return Saved(
            self.spec, self.first_row, self.rows, self.created_rows, self.step,
            self._sequences.to_json(), self.table_id, self.whole,
            self._sequences.over(), self.load_id, self.key, self.lsn,
        )  # fmt: skip

    def _apply(self, push: Push) -> None:
        contents, locks, optimiser = self._contents, self._locks, self.spec.optimiser
        if push.op == "write":
            versions = None if push.version is None else contents.versions
            _native.write_rows(contents.named(push.array), push.rows, push.values, locks, versions, push.version or 0)
        elif push.op == "add":
            _native.add_rows(contents.values, push.rows, push.values, locks)
        else:
            assert optimiser is not None, "checked"
            with self._step_lock:
                step = self.step + 1 if push.step is None else push.step
                self.step = max(self.step, step)
            apply_step(optimiser, step, contents.values, contents.state, locks, rows=push.rows, grads=push.values)

    def _check_open(self) -> None:
        if self._closed:
            raise DrainingError("the daemon")
