"""What the processes of an inference share on the daemons: rows between layers, and which shares are done.

All tables have a lease. If every process dies they go with it. If one process is started again within the lease, it
goes on where the others have come to.
"""

from __future__ import annotations

import time

import numpy as np

from atta.client.cluster import Cluster
from atta.client.inference.stages import Rows
from atta.client.tables.remote import RemoteTable
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.kvstore.spec import MAX_LEASE_S, MutableSpec

__all__ = ["InferenceTables"]

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
