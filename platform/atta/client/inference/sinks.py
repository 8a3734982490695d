"""Where the rows of an inference go: results to arrays or a table (``files`` has those on disk), and rows between layers to
tables that its processes share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from atta.client.cluster import Cluster
from atta.client.inference.stages import Rows
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.kvstore.spec import MAX_LEASE_S, MutableSpec

UserIds = npt.NDArray[np.int64] | npt.NDArray[np.str_]
"""Vertices as users name them: by numbers or by strings."""


@dataclass(frozen=True)
class Predictions:
    """Results in memory.

    Attributes:
        ids: int64 or str [n], user ids of vertices; [n, 2], sources and targets, where pairs are scored.
        values: [n, width] float32 embeddings or scores, or int64 [n] classes; float32 [n] for pairs.
    """

    ids: UserIds
    values: npt.NDArray[Any]


class ShareWriter(Protocol):
    """Takes the results of one share."""

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        """Take some rows: ids [n] or [n, 2], and their values [n, ...]."""


class Sink(Protocol):
    """Takes the results of all shares. A share counts as finished when its ``open`` block is left without an error.

    Attributes:
        takes_strings: whether it takes string ids, where vertices have them; numbers otherwise.
        run: which processes work together: those whose sinks have the same.
    """

    takes_strings: bool
    run: str

    def finished(self, share: int) -> bool:
        """Whether an earlier run, or this one, has finished the share."""

    def open(self, share: int) -> AbstractContextManager[ShareWriter]:
        """Begin a share. After an error nothing of it is to be seen."""


class MemorySink:
    """Keeps results as arrays."""

    takes_strings = True

    def __init__(self) -> None:
        self.run = secrets.token_hex(8)
        self._shares: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def finished(self, share: int) -> bool:
        return share in self._shares

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        taken = _Kept([])
        yield taken
        self._shares[share] = taken.pieces

    def result(self) -> Predictions:
        """All shares one after another."""
        pieces = [piece for _, taken in sorted(self._shares.items()) for piece in taken]
        return Predictions(np.concatenate([ids for ids, _ in pieces]), np.concatenate([rows for _, rows in pieces]))


@dataclass(frozen=True)
class _Kept:
    pieces: list[tuple[np.ndarray, np.ndarray]]

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        self.pieces.append((ids.copy(), values.copy()))


class TableSink:
    """Writes rows of vertices into a mutable table, which stays for the next job. A repeated run writes all rows again."""

    takes_strings = False

    def __init__(self, cluster: Cluster, node_type: str, name: str, width: int | None) -> None:
        """``width``: numbers per row; None: one class, int64.

        Raises:
            ConfigError: the name is not possible, or a table of that name has other rows.
            QuotaExceededError: a daemon has no room for it.
        """
        spec = MutableSpec(
            name,
            cluster.schema.node_counts[node_type],
            dtype="<i8" if width is None else "<f4",
            row_shape=() if width is None else (width,),
            policy=f"nodes:{node_type}",
        )
        try:
            self.table = cluster.tables.create(spec)
        except ConfigError as error:
            raise ConfigError(f"--table {name}: {error}") from None
        self.run = name
        self._shares: set[int] = set()

    def finished(self, share: int) -> bool:
        return share in self._shares

    @contextmanager
    def open(self, share: int) -> Iterator[ShareWriter]:
        yield self
        self._shares.add(share)

    def write(self, ids: UserIds, values: npt.NDArray[Any]) -> None:
        self.table.push(self.table.locate(ids), values).wait()


_RENEW_S = 60.0


class InferenceTables:
    """The tables of one inference. They are created when they are first used.

    Processes of the same inference use the same tables, because ``key`` is a digest of all that the rows depend on.
    """

    def __init__(self, cluster: Cluster, node_type: str, key: str, *, stages: int, shares: int) -> None:
        """``key``: letters and digits."""
        self._cluster, self._node_type, self._key = cluster, node_type, key
        self._shape = stages, shares
        self._open: dict[str, RemoteTable] = {}
        self._renewed = time.monotonic()

    def rows(self, rows: Rows) -> RemoteTable:
        """The table of float32 rows of all vertices of a type, which exists: another stage has written it.

        Raises:
            AttaError: it has gone.
        """
        name = self._name(rows.name)
        if name not in self._open:
            try:
                self._open[name] = self._cluster.tables.open(name)
            except UnknownNameError as error:
                raise AttaError(
                    f"rows between layers have gone: another process of this prediction has ended it: {error}"
                ) from None
        return self._open[name]

    def begin(self, rows: Rows) -> RemoteTable:
        """The same table, which is created if nobody has begun to write it."""
        node_type = rows.node_type or self._node_type
        return self._opened(
            MutableSpec(
                self._name(rows.name),
                self._cluster.schema.node_counts[node_type],
                row_shape=() if rows.width is None else (rows.width,),
                policy=f"nodes:{node_type}",
                lease_s=MAX_LEASE_S,
            )
        )

    def done(self) -> np.ndarray:
        """bool [stages, shares]: which shares are done, of any process."""
        marks = self._marks().pull(np.arange(self._shape[0] * self._shape[1])).values
        return np.asarray(marks.reshape(self._shape) != 0)

    def mark(self, stage: int, share: int) -> None:
        """A share is done: all its rows are on the daemons."""
        row = np.array([stage * self._shape[1] + share])
        self._marks().push(row, np.ones(1, np.uint8)).wait()

    def keep(self) -> None:
        """Renew the leases of open tables, if it is time; call this now and then."""
        if time.monotonic() - self._renewed > _RENEW_S:
            self._renewed = time.monotonic()
            for name, table in [*self._open.items()]:
                try:
                    table.refresh()
                except UnknownNameError:  # nobody needs it any more, or else the next request for its rows says so
                    del self._open[name]

    def drop(self, name: str) -> None:
        """Delete the table of rows ``name``, if there is one."""
        full = self._name(name)
        self._open.pop(full, None)
        self._cluster.tables.delete(full)

    def clean(self) -> None:
        """Delete all tables of the inference."""
        self._open.clear()
        for name in self._cluster.tables.specs():
            if name.startswith(self._name("")):
                self._cluster.tables.delete(name)

    def _name(self, name: str) -> str:
        return f"predict.{self._key}.{name}"

    def _marks(self) -> RemoteTable:
        stages, shares = self._shape
        name = self._name(f"done-{stages}x{shares}")
        return self._opened(MutableSpec(name, stages * shares, dtype="|u1", lease_s=MAX_LEASE_S))

    def _opened(self, spec: MutableSpec) -> RemoteTable:
        if spec.name not in self._open:
            try:
                self._open[spec.name] = self._cluster.tables.create(spec)
            except ConfigError as error:
                raise ConfigError(f"rows between layers: {error}") from None
        return self._open[spec.name]
