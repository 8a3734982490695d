"""The shard of a mutable table that one owner holds: pulled and pushed by many clients at once.

Every row is read and written as a whole, under the lock of the row; nothing holds rows of one request together. Pushes go on in
parallel, except while the table grows, is copied for a snapshot or is replaced by one. Pulls never wait for any of these: what
resizes arrays exchanges them. Once a table is closed it takes no pushes any more, so what is saved then is all that ever was.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atta.errors import ConfigError, DataError, QuotaExceededError
from atta.kvstore.mutable import kernels
from atta.kvstore.mutable.gate import Gate
from atta.kvstore.mutable.optimisers import apply_step, initial_state
from atta.kvstore.mutable.requests import Pulled, Push, Values, local_rows
from atta.kvstore.mutable.sequences import Client, Sequences
from atta.kvstore.snapshots.files import MANIFEST, Saved, load_arrays, read_saved, write_saved
from atta.kvstore.spec import MutableSpec
from atta.partition.disk.staging import Staging, recover

__all__ = ["MutableTable"]


@dataclass(frozen=True, slots=True)
class _Contents:
    """The rows in memory: ``values`` [rows, *row shape], ``versions`` int64 [rows], ``state`` of the optimiser by name."""

    values: np.ndarray
    versions: np.ndarray | None
    state: dict[str, np.ndarray]

    @classmethod
    def fresh(cls, spec: MutableSpec, first_row: int, rows: int) -> _Contents:
        values = np.empty((rows, *spec.row_shape), dtype=spec.dtype)
        spec.init.fill(values, first_row)
        versions = np.full(rows, -1, dtype=np.int64) if spec.versioned else None
        return cls(values, versions, initial_state(spec.optimiser, values.shape))

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> _Contents:
        state = {name: array for name, array in arrays.items() if name not in ("values", "versions")}
        return cls(arrays["values"], arrays.get("versions"), state)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        versions = {} if self.versions is None else {"versions": self.versions}
        return {"values": self.values, **versions, **self.state}

    def followed_by(self, more: _Contents) -> _Contents:
        return _Contents.of({name: np.concatenate([array, more.arrays[name]]) for name, array in self.arrays.items()})


class MutableTable:
    """Global rows ``first_row`` ... of a table. Safe to use from many threads."""

    def __init__(self, spec: MutableSpec, first_row: int = 0, rows: int | None = None, *, table_id: int = 0) -> None:
        """Allocate and initialise ``rows`` rows; None: as many as the spec says.

        ``table_id``: the same of all shards of the table, another one of every other table; 0: nobody asks.

        Raises:
            ConfigError: rows beyond those of the spec.
        """
        self.spec = spec
        self.first_row = first_row
        self.table_id = table_id
        self.whole = False
        """Whether all shards of the table are known to have been created."""
        self.load_id = 0
        """Of the load that the table came with; 0: it was created."""
        self.created_rows = spec.rows if rows is None else rows
        self._check_rows(self.created_rows)
        self._contents = _Contents.fresh(spec, first_row, self.created_rows)
        self._start()

    def _start(self) -> None:
        self._locks = kernels.RowLocks()
        self._gate = Gate()
        self._sequences = Sequences()
        self._step = 0
        self._step_lock = threading.Lock()
        self._closed = False

    @classmethod
    def load(cls, folder: str | Path) -> MutableTable:
        """The table whose snapshot lies in ``folder``.

        Raises:
            DataError: the snapshot is damaged or is none; names the file.
        """
        recover(folder)
        saved, records = read_saved(Path(folder))
        table = cls.__new__(cls)
        table.spec, table.first_row, table.load_id = saved.spec, saved.first_row, 0
        table._start()
        table._become(saved, _Contents.of(load_arrays(Path(folder), saved, records)))
        return table

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return len(self._contents.values)

    @property
    def span(self) -> range:
        """Global rows of the shard."""
        return range(self.first_row, self.first_row + self.rows)

    @property
    def nbytes(self) -> int:
        """Memory of values, versions and the optimiser's state."""
        return self.spec.nbytes(self.rows)

    @property
    def takes_pushes(self) -> bool:
        """Whether a push need not wait just now, as it must while the table grows or is copied; a hint."""
        return self._gate.open

    @property
    def step(self) -> int:
        """The highest number of a step so far."""
        return self._step

    @property
    def clients(self) -> int:
        """Clients that are known."""
        return len(self._sequences)

    def close(self) -> None:
        """Take no more pushes; those under way are waited for."""
        with self._gate.exclusive():
            self._closed = True

    def loaded(self, load_id: int, step: int) -> None:
        """Note that the table came with this load, and the highest number of a step that any of its shards has seen."""
        with self._step_lock:
            self.load_id, self._step = load_id, max(self._step, step)

    def pull(self, rows: np.ndarray) -> Pulled:
        """The rows of these global numbers (integers [n], may repeat), a copy; a row's version belongs to its values.

        Raises:
            ConfigError: a row outside the shard.
        """
        contents = self._contents
        span = range(self.first_row, self.first_row + len(contents.values))
        local = local_rows(self.spec, span, rows)
        values = np.empty((len(local), *self.spec.row_shape), dtype=self.spec.dtype)
        versions = None if contents.versions is None else np.empty(len(local), dtype=np.int64)
        kernels.read_rows(
            contents.values, local, values, self._locks, versions=contents.versions, out_versions=versions
        )
        return Pulled(values, versions)

    def pack(self, rows: np.ndarray, head: bytes, middle: bytes) -> bytes:
        """A message: ``head``, the rows' values, and of a versioned table ``middle`` and the versions; see ``pull``."""
        contents = self._contents
        span = range(self.first_row, self.first_row + len(contents.values))
        local = local_rows(self.spec, span, rows)
        return kernels.pack_table(head, contents.values, local, self._locks, versions=contents.versions, middle=middle)

    def push(
        self,
        rows: np.ndarray,
        values: Values,
        op: str,
        *,
        client: Client,
        sequence: int,
        settled: int = 0,
        version: int | None = None,
        step: int | None = None,
    ) -> bool:
        """Change rows, once per (client, sequence); False: this push has been applied before. See ``atta.kvstore.mutable.sequences``.

        Args:
            rows: global row numbers, integers [n]; may repeat.
            values: [n, *row shape] in the table's dtype, or the bytes of that; NaN and infinities are values like others.
            op: "write" overwrites (of a repeated row the last counts; see ``version``), "add" accumulates, "step" takes ``values``
                for gradients: those of equal rows are summed, then the row is stepped once. A push without rows counts as a step.
            client: who pushes, as registered, and
            sequence: how many of its pushes to this shard came before.
            settled: no push of the client with a lower number will come again.
            version: of rows written to a versioned table. Rows of a higher version stay as they are, those of the same version are
                written once more. None: all are written and keep their versions.
            step: the number, from 1, of the optimiser's step that a push with "step" belongs to, so that one step may come in
                several pushes and touch several shards; None: as many as this shard has seen, and one.

        Raises:
            ConfigError: the request contradicts the table; nothing has changed, and the number is still unused.
            UnknownClientError: the client is not registered, or only with what was here before a snapshot was loaded; likewise.
            QuotaExceededError: too many earlier pushes of the client are missing, or the table is closed; likewise.
        """
        with self._gate.shared():
            if self._closed:
                raise QuotaExceededError(f"table {self.spec.name}: the daemon is stopping and takes no more pushes")
            push = Push.checked(self.spec, self.span, rows, values, op, version=version, step=step)
            with self._sequences.once(client, sequence, settled) as fresh:
                if fresh:
                    self._apply(push)
                return fresh

    def register(self, client: Client) -> None:
        """Let a client push; see ``Sequences.register``."""
        self._sequences.register(client)

    def forget(self, client: Client) -> bool:
        """Drop a client that will not come again; what it may have sent is refused. False: it was not known."""
        return self._sequences.forget(client)

    def expire(self, now: float, idle_s: float) -> int:
        """Forget clients of which nothing was heard for so long; see ``Sequences.expire``."""
        return self._sequences.expire(now, idle_s)

    def grow(self, rows: int) -> None:
        """Let the shard have ``rows`` rows; new ones are initialised as if they had been there from the beginning.

        Pushes wait while the rows are copied; old and new rows are in memory together meanwhile.

        Raises:
            ConfigError: fewer rows than now, or more than the spec allows.
        """
        with self._gate.exclusive():
            if rows < self.rows:
                raise ConfigError(
                    f"table {self.spec.name}: has {self.span.stop} rows and does not shrink to {self.first_row + rows}"
                )
            if self.first_row + rows > self.spec.limit:
                raise ConfigError(
                    f"table {self.spec.name}: cannot grow to {self.first_row + rows} rows; it may have {self.spec.limit}"
                )
            if rows > self.rows:
                more = _Contents.fresh(self.spec, self.span.stop, rows - self.rows)
                self._contents = self._contents.followed_by(more)

    def snapshot(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the table into ``folder``, which appears whole or not at all, as it is between two pushes.

        Pushes wait while the arrays are copied in memory, not while they are written; the copy is as large as the table.

        Raises:
            ConfigError: the folder exists and may not be replaced.
        """
        with Staging(folder, MANIFEST, overwrite=overwrite) as staging:
            self.write_snapshot(staging.path)

    def write_snapshot(self, folder: Path, *, copy: bool = True) -> None:
        """As ``snapshot``, into a folder that exists and is somebody else's to complete.

        ``copy``: pushes wait for a copy in memory only; without, until everything is written.

        Raises:
            DataError: it cannot be written; names the file.
        """
        with self._gate.exclusive():
            saved = Saved(
                self.spec, self.first_row, self.rows, self.created_rows, self._step,
                self._sequences.to_json(), self.table_id, self.whole,
            )  # fmt: skip
            arrays = self._contents.arrays
            if not copy:
                return write_saved(folder, saved, arrays)
            arrays = {name: array.copy() for name, array in arrays.items()}
        return write_saved(folder, saved, arrays)

    def restore(self, folder: str | Path) -> None:
        """Become what a snapshot of this table was: rows, versions, optimiser and known pushes; later ones are undone.

        Raises:
            DataError: the snapshot is damaged or of another table; nothing has changed.
        """
        folder = Path(folder)
        recover(folder)
        saved, records = read_saved(folder)
        if (saved.spec, saved.first_row) != (self.spec, self.first_row):
            raise DataError(folder / MANIFEST, f"is no snapshot of table {self.spec.name} from row {self.first_row} on")
        self._become(saved, _Contents.of(load_arrays(folder, saved, records)))

    def _become(self, saved: Saved, contents: _Contents) -> None:
        sequences = Sequences.from_json(saved.clients)
        with self._gate.exclusive():
            self._contents = contents
            self._sequences = sequences
            self._step = saved.step
            self.created_rows = saved.created_rows
            self.table_id, self.whole = saved.table_id, saved.whole

    def _apply(self, push: Push) -> None:
        contents, locks = self._contents, self._locks
        if push.op == "write":
            versions = None if push.version is None else contents.versions
            kernels.write_rows(
                contents.values, push.rows, push.values, locks, versions=versions, version=push.version or 0
            )
        elif push.op == "add":
            kernels.add_rows(contents.values, push.rows, push.values, locks)
        else:
            assert self.spec.optimiser is not None, "checked"
            with self._step_lock:
                step = self._step + 1 if push.step is None else push.step
                self._step = max(self._step, step)
            apply_step(
                self.spec.optimiser,
                step,
                contents.values,
                contents.state,
                locks,
                rows=push.rows,
                grads=push.values,
            )

    def _check_rows(self, rows: int) -> None:
        first, limit = self.first_row, self.spec.limit
        if min(first, rows) < 0 or first + rows > limit:
            raise ConfigError(f"table {self.spec.name}: {rows} rows from row {first} on; it may have {limit}")
