"""The mutable tables of a cluster: creates, opens, deletes, saves and loads them on all daemons. Saving and loading
have two phases."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from atta.client.control import Connection
from atta.client.tables.lending import Lender
from atta.client.tables.pushes import Registration, TableShard, check_step
from atta.client.tables.remote import RemoteTable, located, rows_told
from atta.errors import AttaError, ConfigError, DataError, RemoteError, UnknownNameError
from atta.kvstore.spec import MutableSpec
from atta.protos.v1 import backup_pb2, table_pb2
from atta.wire import rpc
from atta.wire.clusterfile import credentials_for, prefer, resolve_target
from atta.wire.parts import parts_text, replicas_of

_PREPARE = table_pb2.SnapshotRequest.PREPARE
_COMMIT = table_pb2.SnapshotRequest.COMMIT
_ABORT = table_pb2.SnapshotRequest.ABORT
_HOLD = table_pb2.SnapshotRequest.HOLD
HOLD_S = 10.0
"""How long pushes wait at most until all daemons begin to copy their tables."""
_LOOKS_S = (0.05, 0.2, 0.75, 0.0)
"""Pauses in seconds after each look at a table that differs between daemons: a load or a deletion may be under way."""


class ClusterTables:
    """The mutable tables of a cluster."""

    def __init__(self, connections: Sequence[Connection], parts: Sequence[range], dataset_id: str) -> None:
        """``parts``: the partitions of each daemon."""
        self._connections, self._dataset_id = connections, dataset_id
        self._parts = [*map(parts_text, parts)]
        self._registrations: dict[str, list[Registration]] = {}
        self._lender = Lender()

    def create(self, spec: MutableSpec) -> RemoteTable:
        """Create the table on all daemons, or open it if it exists with the same specification.

        Raises:
            ConfigError: it exists with another specification, or its policy does not fit the dataset.
            UnknownNameError: a daemon has lost its rows of the table.
            QuotaExceededError: a daemon has no room for it.
        """
        found = [info for info in self._look(spec.name) if info is not None]
        # If several clients create it at once, all take the id that reached the first daemon first.
        table_id = found[0].table_id if found else secrets.randbits(64)
        text, infos = json.dumps(spec.to_dict()), []
        ask = partial(table_pb2.CreateTableRequest, dataset_id=self._dataset_id, spec=text)
        for connection in self._connections:
            infos.append(connection.call("TableService.Create", ask(table_id=table_id)))
            table_id = infos[0].table_id
        if not all(info.whole for info in infos):
            infos = [c.call("TableService.Create", ask(table_id=table_id, whole=True)) for c in self._connections]
        self._check_same(spec.name, infos)
        return self._opened(spec, infos)

    def open(self, name: str) -> RemoteTable:
        """A table that exists. Raises UnknownNameError: it does not exist, or a daemon has lost its rows of it."""
        infos = [info for info in self._look(name) if info is not None]
        if len(infos) < len(self._connections):
            raise UnknownNameError.of("mutable table", name, self.specs().keys() - {name})
        return self._opened(_spec(self._connections[0], infos[0]), infos)

    def specs(self) -> dict[str, MutableSpec]:
        """Specifications of the tables, by name."""
        return {name: spec for name, (spec, _) in self.listed().items()}

    def listed(self) -> dict[str, tuple[MutableSpec, int]]:
        """The tables by name: their specifications, and how many rows they have now."""
        found: dict[str, tuple[MutableSpec, int]] = {}
        for connection in self._connections:
            for info in connection.call("TableService.List", table_pb2.ListMutableRequest()).tables:
                spec = _spec(connection, info)
                first, rows = found.get(spec.name, (spec, 0))
                found[spec.name] = first, rows + int(info.rows)
        return found

    def delete(self, name: str) -> bool:
        """Delete a table; False if there was none."""
        request = table_pb2.DeleteTableRequest(name=name)
        existed = [c.call("TableService.Delete", request).existed for c in self._connections]
        return any(existed)

    def locate(self, policy: str, ids: np.ndarray) -> np.ndarray:
        """int64 [n]: the rows of vertices or edges in the tables of a policy, such as ``"nodes:paper"``. Rows are in the order
        of the daemons. Raises ConfigError: a vertex or edge does not exist. UnknownNameError: the type does not exist."""
        return located(self._connections, self._dataset_id, policy, ids)

    def save(self, name: str) -> list[str]:
        """Let every daemon write all its tables into its snapshot ``name``; returns the names of the tables.

        An older snapshot of that name stays until the new one is complete on all daemons. The parts are one cut: pushes
        wait until all daemons have copied their tables, so a push is missing only if all later ones are.

        Raises:
            ConfigError: the name is not possible, or a daemon keeps no snapshots.
            QuotaExceededError: another save is under way.
            UnknownNameError: the daemons did not begin to copy their tables in time, so pushes went on.
            RemoteError: a daemon cannot write it (names the file), does not answer, or holds other tables than the
                others.
        """
        snapshot, hold_s = secrets.token_hex(8), 2 * self._patience_s()
        ask = partial(table_pb2.SnapshotRequest, name=name, snapshot=snapshot, hold_s=hold_s)
        return sorted(self._on_all("TableService.Save", ask, hold=True))

    def load(self, name: str) -> list[str]:
        """Replace the tables of all daemons by those of their snapshots ``name``; returns the names of the tables.

        Either all daemons do so or none. Tables that clients have opened are then those of the snapshot. Optimisers go
        on from its number of steps.

        Raises:
            ConfigError: the name is not possible, or a daemon keeps no snapshots.
            DataError: the parts of the snapshot do not belong together.
            QuotaExceededError: a daemon has no room, or another load is under way.
            RemoteError: a daemon has no such snapshot, or a damaged one (names the file), or does not answer.
        """
        snapshot, load_id = self._common(name), secrets.randbits(63) + 1
        hold_s = 2 * self._patience_s()
        ask = partial(table_pb2.SnapshotRequest, name=name, snapshot=snapshot, load_id=load_id, hold_s=hold_s)
        return sorted(self._on_all("TableService.Load", ask))

    def close(self) -> None:
        """Tell the daemons that this client will not push again."""
        self._lender.close()
        for part, connection in enumerate(self._connections):
            numbers = [of_table[part].client for of_table in self._registrations.values()]
            clients = [number for number in numbers if number is not None]
            if not clients:
                continue
            with contextlib.suppress(AttaError):  # the daemon is gone, or will forget the client by itself
                connection.call("TableService.Forget", table_pb2.ForgetClientRequest(clients=clients), timeout=1.0)

    # -- one table -----------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> list[table_pb2.TableInfo | None]:
        """What every daemon says of a table; None from daemons that do not have it, perhaps not yet."""
        for pause in _LOOKS_S:
            infos = [self._described(connection, name) for connection in self._connections]
            lost = any(info is not None and info.whole for info in infos) and None in infos
            if not lost and len(_origins(infos)) <= 1:
                return infos
            time.sleep(pause)
        if lost:
            raise UnknownNameError(
                f"table {name!r} is lost on {self._places(infos, None)}, {self._why_lost(infos)}; 'atta tables delete {name}' "
                "drops the other rows, so that it can be created anew"
            )
        self._check_same(name, infos)
        return infos

    def _why_lost(self, infos: Sequence[table_pb2.TableInfo | None]) -> str:
        """Why some daemons do not have a table that others have, and what brings it back."""
        connection, info = next((c, i) for c, i in zip(self._connections, infos, strict=True) if i is not None)
        lease_s = _spec(connection, info).lease_s
        if lease_s is None:
            return "which was started anew: 'atta tables load SNAPSHOT' brings back what was saved"
        return f"which was started anew, or where nobody asked for it during its lease of {lease_s:g} s"

    @staticmethod
    def _described(connection: Connection, name: str) -> table_pb2.TableInfo | None:
        info = connection.call("TableService.Describe", table_pb2.DescribeTableRequest(name=name, if_there=True))
        return info if info.spec else None

    def _check_same(self, name: str, infos: Sequence[table_pb2.TableInfo | None]) -> None:
        """Raise RemoteError unless all shards were created, and last loaded, together."""
        if len(origins := _origins(infos)) > 1:
            raise RemoteError(
                self._places(infos, origins[1]),
                f"its rows of table {name!r} were created or loaded apart from those of {self._places(infos, origins[0])}: "
                f"'atta tables load SNAPSHOT', or 'atta tables delete {name}' and create it anew",
            )

    def _places(self, infos: Sequence[table_pb2.TableInfo | None], origin: tuple[int, int] | None) -> str:
        """The daemons whose rows of a table have this origin; None: the daemons that do not have the table."""
        return ", ".join(
            f"{connection.address} (part {part})"
            for part, connection, info in zip(self._parts, self._connections, infos, strict=True)
            if (None if info is None else (info.table_id, info.load_id)) == origin
        )

    def _opened(self, spec: MutableSpec, infos: Sequence[table_pb2.TableInfo]) -> RemoteTable:
        # A client that opens a table several times has one registration.
        table_id, known = infos[0].table_id, self._registrations.get(spec.name)
        if known is None or known[0].table_id != table_id:
            known = [Registration(connection, spec.name, table_id) for connection in self._connections]
            self._registrations[spec.name] = known
        for registration, info in zip(known, infos, strict=True):
            if registration.load_id != info.load_id:
                registration.renew(registration.client)
        for connection, info in zip(self._connections, infos, strict=True):
            check_step(connection.address, info)
        shards = [
            TableShard(connection, info.first_row, rows_told(spec, connection.address, info), registration)
            for connection, info, registration in zip(self._connections, infos, known, strict=True)
        ]
        return RemoteTable(spec, shards, self._dataset_id, table_id=table_id, infos=infos, lender=self._lender)

    # -- all tables ----------------------------------------------------------------------------------------------------

    def _common(self, name: str) -> str:
        """The id of the newest snapshot of that name that is complete on all daemons."""
        replies = self.ask_all("TableService.Snapshots", table_pb2.SnapshotsRequest(name=name))
        ids = [list(reply.ids) for reply in replies]
        common: list[str] = [one for one in ids[0] if all(one in others for others in ids[1:])]
        if not common:
            of_parts = zip(self._parts, ids, strict=True)
            parts = ", ".join(f"part {part}: {found[0] or 'none'}" for part, found in of_parts)
            raise DataError(f"snapshot {name}", f"its parts were not saved together ({parts}), so it is not loaded")
        newer = [part for part, of_part in zip(self._parts, ids, strict=True) if of_part[0] != common[0]]
        if newer:
            warnings.warn(
                f"snapshot {name}: part {newer[0]} was saved once more, not all daemons were; loading what all have",
                stacklevel=3,
            )
        return common[0]

    def _on_all(self, method: str, ask: partial[Any], *, hold: bool = False) -> set[str]:
        """Let all daemons prepare, then commit; returns the names of the tables. If one fails to prepare, all abort.
        ``hold``: let all hold pushes first."""
        try:
            if hold:
                self.ask_all(method, ask(phase=_HOLD, hold_s=HOLD_S))
            replies = self.ask_all(method, ask(phase=_PREPARE, held=hold))
            names = self._check_alike([reply.tables for reply in replies])
        except BaseException:
            for connection in self._connections:
                with contextlib.suppress(AttaError):  # the daemon drops by itself what it has prepared
                    connection.call(method, ask(phase=_ABORT))
            raise
        steps: dict[str, int] = {}
        for connection, reply in zip(self._connections, replies, strict=True):
            for info in reply.tables:
                name = _spec(connection, info).name
                steps[name] = max(info.step, steps.get(name, 0))
        self.ask_all(method, ask(phase=_COMMIT, steps=steps))
        return names

    def _check_alike(self, parts: Sequence[Iterable[table_pb2.TableInfo]]) -> set[str]:
        """The names of the tables that all daemons have prepared; raises RemoteError if these differ."""
        tables = [
            {(_spec(connection, info).name, info.table_id) for info in infos}
            for connection, infos in zip(self._connections, parts, strict=True)
        ]
        for part, connection, found in zip(self._parts, self._connections, tables, strict=True):
            if different := sorted(name for name, _ in found ^ tables[0]):
                raise RemoteError(
                    connection.address,
                    f"part {part} does not have the same tables as part {self._parts[0]}: {', '.join(different)} may be "
                    "lost on one of them",
                )
        return {name for name, _ in tables[0]}

    def ask_all(self, method: str, request: Any) -> list[Any]:
        """The answers of all daemons, which are asked at once. When all have answered, raises the first error."""
        patience = self._patience_s()
        futures = [connection.begin(method, request, timeout=patience) for connection in self._connections]
        replies, errors = [], []
        for connection, future in zip(self._connections, futures, strict=True):
            try:
                replies.append(rpc.answered(connection.address, future.result()))
            except grpc.RpcError as error:
                errors.append(connection.error_from(error, patience))
            except RemoteError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return replies

    def _patience_s(self) -> float:
        return 10 * max(connection.deadline_s for connection in self._connections)


def _spec(connection: Connection, info: table_pb2.TableInfo) -> MutableSpec:
    """What a daemon says of a table; raises RemoteError or ConfigError if it is no description."""
    with rpc.understanding(connection.address):
        return MutableSpec.from_dict(json.loads(info.spec))


def _origins(infos: Iterable[table_pb2.TableInfo | None]) -> list[tuple[int, int]]:
    """The different (table id, load id) of the parts of a table, in the order of the parts."""
    return list(dict.fromkeys((info.table_id, info.load_id) for info in infos if info is not None))


PROMOTION_S = 60.0
"""How long the backup may take to read what it has kept."""


def promote(target: str, part: int, address: str | None = None) -> tuple[str, int]:
    """Let the backup at ``address`` hold the tables of ``part``, and name it first in the cluster file.

    ``target``: a cluster file, or whatever else ``atta.connect`` takes; only a file is changed. ``address``: None: the
    other daemon of a partition that has two. Returns the address, and the number of tables.

    Raises:
        ConfigError: there is no such partition or daemon, or the daemon keeps no copy.
        DataError: the copy is damaged.
        UnavailableError, DeadlineError: it does not answer.
    """
    named = resolve_target(target)
    if part not in named:
        raise ConfigError(f"partition {part} does not exist: {target} names {len(named)}")
    replicas = replicas_of(named[part])
    if address is None and len(replicas) == 2:
        address = replicas[1]
    if address is None:
        raise ConfigError(f"partition {part} has the daemons {', '.join(replicas)}; name the backup with --to")
    if address not in replicas:
        raise ConfigError(f"partition {part} has no daemon at {address}, but at {', '.join(replicas)}")
    with contextlib.closing(Connection(address, PROMOTION_S, credentials=credentials_for(target))) as connection:
        connection.meet(connection.describe())
        reply = connection.call("BackupService.Promote", backup_pb2.PromoteRequest(), timeout=PROMOTION_S)
    if Path(target).is_file():
        prefer(target, part, address)
    return address, int(reply.tables)
