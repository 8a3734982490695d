"""A running cluster as a client sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from atta.client.control import Connection, Description
from atta.client.every import DaemonAnswer, check_complete, check_member, down, each_daemon
from atta.client.parameters import JobWeights
from atta.client.queries import PointQueries
from atta.client.sessions.keeper import SessionKeeper
from atta.client.sessions.resuming import Search
from atta.client.sessions.slots import SlotMaps
from atta.client.sessions.stream import BatchStream
from atta.client.tables.cluster import ClusterTables
from atta.client.tables.string_ids import StringIds
from atta.errors import (
    AttaError,
    ConfigError,
    DaemonEndedError,
    DeadlineError,
    DrainingError,
    ProtocolError,
    RestartedError,
    SamplingContractError,
    UnavailableError,
    UnknownNameError,
    WrongDatasetError,
)
from atta.kvstore.parameters import ParameterSpec
from atta.observe import html
from atta.observe.figures import JobFigures
from atta.observe.machine.processor import machine_id
from atta.observe.recording import Recording
from atta.partition.schema import Schema
from atta.protos.v1 import session_pb2
from atta.samplers.batch.scratch import Scratch
from atta.samplers.seed_plan import home_of
from atta.wire.clusterfile import credentials_for, ended_daemon, is_file, resolve_target
from atta.wire.credentials import Credentials
from atta.wire.identity import Bound, Identity, check, check_contract
from atta.wire.parts import Addresses, parts_text, replicas_of
from atta.wire.retries import ALONE_S, patience_of

LOOKED_UP_S = 5.0
"""How long a daemon is waited for before its address is looked up again, in seconds: it may have moved."""
AGAIN_S = 0.1
"""Pause before that, in seconds: a daemon may refuse at once, again and again."""
WHY_S = 2.0
"""How long the attempt may take that finds out who else does not answer, and why, in seconds."""
FILLED_S = 0.2
"""How often a daemon is asked whether its caches are filled, in seconds."""
REPLICA_S = 2.0
"""How long a replica may take to say who it is before the next one is asked, in seconds."""


class Cluster(PointQueries):
    """Connections to the daemons of a dataset. A context manager: ``close`` ends all sessions. Loaders, iterators and
    tables that are used afterwards raise ConfigError."""

    def __init__(
        self,
        connections: Sequence[Connection],
        descriptions: Sequence[Description],
        credentials: Credentials | None = None,
        where: Callable[[], Mapping[int, Addresses]] | None = None,
    ) -> None:
        """``where``: the daemons' present addresses, by first partition, several for replicas; None: as given."""
        self.credentials = credentials
        """With which files the daemons were reached; None: without TLS."""
        self._connections = list(connections)
        self._where, self._moving, self._left = where, threading.Lock(), list[Connection]()
        self._descriptions = list(descriptions)
        self._closed, self._process = False, os.getpid()
        self._slots, self._turns = SlotMaps(), itertools.count(os.getpid())
        self.scratch = Scratch()
        self._keeper = SessionKeeper(named=partial(_named, self._connections, self._descriptions))
        for connection, description in zip(connections, descriptions, strict=True):
            connection.meet(description)
        # What daemons hold in memory, such as mutable tables, does not move with sessions: all clients find it at the
        # first replica, or at the backup that has taken over.
        self._holders = tuple(map(self._holder, range(len(connections))))
        self.tables = ClusterTables(self._holders, self.parts, self._descriptions[0].dataset_id)
        """Mutable tables on the daemons; see ``atta.DistTensor`` and ``atta.DistEmbedding``."""
        self.ids = StringIds(self.schema, self._connections)
        """The users' string ids: ``ids.numbers(strings)`` and ``ids.strings(numbers)``."""

    @property
    def schema(self) -> Schema:
        """Node and edge types, tables, splits and counts of the dataset."""
        return self._descriptions[0].schema

    @property
    def dataset_id(self) -> str:
        """Fingerprint of the partitioned dataset."""
        return self._descriptions[0].dataset_id

    @property
    def num_parts(self) -> int:
        """Number of partitions. A daemon serves one or several."""
        return self._descriptions[0].num_parts

    @property
    def parts(self) -> list[range]:
        """The partitions of each daemon, in ascending order."""
        return [description.parts for description in self._descriptions]

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of the daemon of each partition, by partition."""
        return [self._connections[self.daemon_of(part)].address for part in range(self.num_parts)]

    @property
    def replicas(self) -> list[tuple[str, ...]]:
        """``host:port`` of all daemons of each partition, by partition; the preferred one stands first."""
        return [self._places(self.daemon_of(part)) for part in range(self.num_parts)]

    def _places(self, daemon: int) -> tuple[str, ...]:
        """The addresses of all daemons that serve what this one does; the preferred one stands first."""
        found = self._where().get(self._descriptions[daemon].parts.start) if self._where is not None else None
        return replicas_of(found or self._connections[daemon].address)

    def daemon_of(self, part: int) -> int:
        """The position of a partition's daemon among the daemons; raises ConfigError if there is no such partition."""
        found = next((daemon for daemon, parts in enumerate(self.parts) if part in parts), None)
        if found is None:
            raise ConfigError(f"partition {part} does not exist: there are {self.num_parts}")
        return found

    def stats(self) -> list[dict[str, float]]:
        """Counters and gauges of each daemon, in the order of their partitions."""
        return [c.stats() for c in self._connections]

    def wait_filled(self, deadline_s: float = 60.0) -> bool:
        """Wait until the daemons' caches are filled, so that first batches neither ask for what comes anyway nor share machine
        and links with it; batches need no such wait. Returns False if one is not done within ``deadline_s`` seconds."""
        until = time.monotonic() + deadline_s
        for connection in self._connections:  # one after the other: many clients may wait, and all of them will be done
            while not connection.stats()["caches_filled"]:
                if (left := until - time.monotonic()) <= 0:
                    return False
                time.sleep(min(FILLED_S, left))
        return True

    def report(self, figures: Sequence[JobFigures], keep_s: float) -> None:
        """Have the daemon of partition 0 show what a training job's latest epoch has sent and read."""
        self._connections[self.daemon_of(0)].report(figures, keep_s)

    def weights(self, spec: ParameterSpec) -> JobWeights:
        """The weights of a job without barriers; the daemon of partition 0 holds them."""
        return JobWeights(self._holders[self.daemon_of(0)].pinned(), spec)

    def _ask_model(self, method: str, request: Any, deadline_s: float | None) -> tuple[str, Any]:
        """Ask the daemons that have a model, in turns. One that is away, silent or stopping is passed over; when all are,
        they are looked for, and their replicas."""
        models = [daemon for daemon, found in enumerate(self._descriptions) if found.answers]
        if not models:
            raise ConfigError("no daemon has a model to ask: start daemons with atta serve --model")
        turn = next(self._turns) % len(models)
        until = time.monotonic() + (deadline_s or self._connections[0].deadline_s)
        failed: UnavailableError | DeadlineError | None = None
        for number, daemon in enumerate((models[turn:] + models[:turn]) * 2):
            left = until - time.monotonic()
            if failed is not None and left <= 0:
                break
            if number >= len(models):
                with contextlib.suppress(AttaError):
                    self._look_for(daemon, left, elsewhere=False)
            connection = self._connections[daemon]
            try:
                reply = connection.call(method, request, timeout=left, silent_s=patience_of(len(models)))
            except (UnavailableError, DeadlineError) as error:
                failed = error
                continue
            return connection.address, reply
        assert failed is not None
        raise failed

    def trace(self, last_s: float = 0.0) -> list[Recording]:
        """What each daemon recorded in the last ``last_s`` seconds, in the order of their partitions; 0: everything
        that it still has."""
        return [c.trace(last_s) for c in self._connections]

    def stream(
        self,
        request: session_pb2.OpenRequest,
        timeout_s: float | None = None,
        *,
        search: Search = Search.NOWHERE,
        home: int | None = None,
    ) -> BatchStream:
        """Open a session on the home daemon of the request's rank, also if that daemon has been restarted since.

        ``timeout_s``: how long it may take; None: the connection's deadline, and longer if the daemon is restarting.
        ``search``: where to look for the daemon before asking. ``home``: the partition whose daemon makes the batches;
        default: see ``home_daemon``. Raises UnavailableError and DeadlineError, and WrongDatasetError if another
        partition is served there."""
        daemon = self.home_daemon(request.rank, request.world_size) if home is None else self.daemon_of(home)
        request.dataset_id = self.dataset_id
        if search is not Search.NOWHERE:
            self._look_for(daemon, timeout_s, elsewhere=search is Search.ELSEWHERE)
        try:
            return self._open(daemon, request, timeout_s)
        except RestartedError:
            self._meet_again(daemon, timeout_s)
            return self._open(daemon, request, timeout_s)

    def home_daemon(self, rank: int, world_size: int) -> int:
        """The position of the daemon that makes a rank's batches, unless its loader says otherwise: that of the partition with
        the rank's seeds, or if it runs on another machine, one on this machine, which hands batches over in shared memory."""
        owner = self.daemon_of(home_of(rank, world_size, self.num_parts))
        mine = machine_id()
        here = [daemon for daemon, found in enumerate(self._descriptions) if found.machine == mine]
        return owner if owner in here or not here else here[rank % len(here)]

    def _open(self, home: int, request: session_pb2.OpenRequest, timeout_s: float | None) -> BatchStream:
        request.shared_memory = self._descriptions[home].machine == machine_id()
        # Over a network wide ids would cost more than converting narrow ones here.
        request.wide_ids &= request.shared_memory
        connection = self._connections[home].pinned()
        within_s = None if timeout_s is None else min(timeout_s, connection.deadline_s)
        patience_s = patience_of(1)
        with contextlib.suppress(AttaError, OSError):  # the cluster file cannot be read
            patience_s = patience_of(len(self._places(home)))
        return BatchStream(connection, self._slots, self._keeper, request, within_s, patience_s=patience_s)

    def _meet_again(self, daemon: int, timeout_s: float | None) -> None:
        # On a link that swallows the question no answer comes: rather ask again than wait for all the time that is left.
        found = self._connections[daemon].describe(timeout=ALONE_S if timeout_s is None else min(timeout_s, ALONE_S))
        self._connections[daemon].meet(found)
        self._descriptions[daemon] = found

    def _look_for(self, daemon: int, timeout_s: float | None, *, elsewhere: bool) -> None:
        """Ask the daemon who it is, at its present address: it may be a new process there. If it has replicas, the next
        one that answers takes its place. ``elsewhere``: ask replicas alone."""
        with self._moving:
            known, replicas = self._connections[daemon], self._places(daemon)
            at = replicas.index(known.address) + 1 if known.address in replicas else 0
            failed: AttaError | None = None
            for address in (*replicas[at:], *replicas[:at]):
                if elsewhere and address == known.address:
                    failed = failed or UnavailableError(address, "has no replica that takes its sessions")
                    continue
                # A replica that does not answer at once must not keep the others from being asked.
                within_s = timeout_s if len(replicas) == 1 else min(REPLICA_S, timeout_s or REPLICA_S)
                try:
                    if address == known.address:
                        self._meet_again(daemon, within_s)
                    else:
                        self._move(daemon, address, within_s)
                    return
                except (UnavailableError, DeadlineError) as error:
                    failed = failed or error  # a wrong daemon is worse than one that is away
                except (WrongDatasetError, SamplingContractError, ProtocolError) as error:
                    failed = error
            assert failed is not None
            raise failed

    def _move(self, daemon: int, address: str, timeout_s: float | None) -> None:
        """Take the daemon at ``address`` for ``daemon``, if it serves the same and draws in the same way."""
        known, before = self._connections[daemon], self._descriptions[daemon]
        moved = self._beside(known, address, before)
        try:
            found = moved.describe(timeout=timeout_s)
            check(found.identity, Identity(before.parts.start, self.dataset_id), Bound.NAMED, address)
            if found.parts != before.parts:
                raise WrongDatasetError(
                    address, f"serves partitions {parts_text(found.parts)}, not {parts_text(before.parts)}"
                )
            check_contract(found.contract, address, before.contract, known.address)
            if found.draining:
                raise DrainingError(address)
        except BaseException:
            moved.close()
            raise
        moved.meet(found)
        self._left.append(known)  # other sessions, tables and the keeper may still use it
        self._connections[daemon], self._descriptions[daemon] = moved, found

    def check_method(self, name: str) -> None:
        """Raises UnknownNameError: a daemon does not know a neighbour method, which names it."""
        for connection, found in zip(self._connections, self._descriptions, strict=True):
            if not {f"draws of {name}", f"neighbour method {name}"} & found.contract.keys():
                raise UnknownNameError(
                    f"the daemon at {connection.address} does not know the method {name!r}; install it there, or start "
                    "atta serve with --plugin"
                )

    def _holder(self, daemon: int) -> Connection:
        """A connection to the replica of a daemon that holds its mutable tables: the first one, unless a backup has
        taken over."""
        connection, description, replicas = self._connections[daemon], self._descriptions[daemon], self._places(daemon)
        address = replicas[0]
        if description.tables_replicated and len(replicas) > 1:
            address = self._latest(replicas, connection, description)
        if address == connection.address:
            return connection
        first = self._beside(connection, address, description)
        first.meet(replace(description, incarnation="", machine=""))  # nobody has asked it
        self._left.append(first)
        return first

    def _beside(self, known: Connection, address: str, description: Description) -> Connection:
        """A connection to another daemon of the partitions of ``known``."""
        start = description.parts.start
        return Connection(address, known.deadline_s, part=start, credentials=self.credentials, ended=known.ended)

    def _latest(self, replicas: Sequence[str], connection: Connection, description: Description) -> str:
        """The address of the replica whose tables have the highest epoch. If none tells of tables, it is the first one:
        tables must not begin anew at a backup."""
        epochs = []
        for address in replicas:
            if address == connection.address:
                epochs.append(description.tables_epoch)
                continue
            asked = Connection(address, REPLICA_S, part=description.parts.start, credentials=self.credentials)
            try:
                epochs.append(asked.describe(timeout=REPLICA_S).tables_epoch)
            except AttaError:
                epochs.append(-1)
            finally:
                asked.close()
        return replicas[epochs.index(max(epochs)) if max(epochs) > 0 else 0]

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"{type(self).__name__}({len(self._connections)} daemons: {self.schema.sizes}{closed})"

    def _repr_html_(self) -> str:
        known = zip(self._descriptions, self._connections, strict=True)
        rows = [(parts_text(description.parts), connection.address) for description, connection in known]
        return html.table(repr(self), rows, ("partition", "daemon")) + self.schema._repr_html_()

    def close(self) -> None:
        """Close all sessions and connections. Closing again does nothing, and neither does a forked child."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._keeper.close()
        self.tables.close()
        for connection in (*self._connections, *self._left):
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(connections: Sequence[Connection], descriptions: Sequence[Description], address: str) -> str:
    known = {one.address: found for one, found in zip(connections, descriptions, strict=True)}
    return f"{address} (partition {parts_text(known[address].parts)})" if address in known else address


def connect(
    target: str | Path | Sequence[str],
    *,
    deadline_s: float = 30.0,
    wait: bool = False,
    credentials: Credentials | None = None,
) -> Cluster:
    """Connect to running daemons.

    Args:
        target: a cluster file (see ``atta.wire.clusterfile``), ``"ray:NAME"`` for daemons of ``atta.ray.serve``,
            ``"host:port,host:port"``, or a list of addresses in the order of the partitions. A daemon that serves
            several partitions stands once for each of them, or alone if it serves all. Only a file can name replicas;
            the first of them that answers is used.
        deadline_s: how long each call may take.
        wait: whether to wait, for at most ``deadline_s``, for daemons that are still starting, also at new addresses.
        credentials: files for daemons with TLS; default: what the cluster file and the environment say.

    Raises:
        NotAuthenticatedError, NotAllowedError: a daemon does not accept them.
        DataError: one of their files is missing or wrong.
        UnavailableError, DeadlineError: daemons cannot be reached; the message names all.
        WrongDatasetError: the daemons serve different datasets, or a daemon another partition than its position says.
        SamplingContractError: two daemons would draw different batches.
        ConfigError: the target makes no sense, or its daemons do not serve all partitions.
    """
    where = partial(resolve_target, target)
    found = credentials or credentials_for(target)
    ended = partial(ended_daemon, target) if isinstance(target, str | Path) and is_file(target) else None
    wait_s = deadline_s if wait else None
    try:
        if wait and isinstance(target, str | Path):
            return _connect_waiting(where, found, deadline_s)
        return connect_all(where(), found, deadline_s=deadline_s, wait_s=wait_s, where=where, ended=ended)
    except DaemonEndedError:  # it says how
        raise
    except (UnavailableError, DeadlineError) as error:
        silent = down(_why_not(where(), found, error)) or error
        cluster = target if isinstance(target, str | Path) else ",".join(target)
        waited = f"waited {deadline_s:g} s; " if wait else ""
        cure = f"{waited}atta serve starts a daemon, atta status --cluster {cluster} --wait 1m waits for all"
        raise type(error)(silent.peer, f"{silent.cause} ({cure})") from None


def _why_not(
    addresses: Mapping[int, Addresses], credentials: Credentials | None, error: UnavailableError | DeadlineError
) -> list[DaemonAnswer[Description]]:
    """All daemons, asked once more, one after another while ``WHY_S`` lasts: calls that wait are not told the reason.
    ``error`` stays that of its daemon where this attempt finds none, or times out earlier."""
    asked, until = [], time.monotonic() + WHY_S
    for part, address in each_daemon(addresses):
        found: AttaError | None = error if address == error.peer else None
        if (left := until - time.monotonic()) > 0:
            try:
                with contextlib.closing(Connection(address, left, part=part, credentials=credentials)) as connection:
                    connection.describe(timeout=left)
            except AttaError as other:
                found = other if isinstance(other, UnavailableError) else found or other
        asked.append(DaemonAnswer[Description](part, address, error=found))
    return asked


def _connect_waiting(
    where: Callable[[], Mapping[int, Addresses]], credentials: Credentials | None, deadline_s: float
) -> Cluster:
    """Wait for daemons, and look again and again where they are: one that is lost may start on another machine. Where
    daemons have replicas, each of them is waited for at its address, as the first ones are to be preferred."""
    until, addresses = time.monotonic() + deadline_s, where()
    if any(len(replicas_of(daemon)) > 1 for daemon in addresses.values()):
        return connect_all(addresses, credentials, deadline_s=deadline_s, wait_s=deadline_s, where=where)
    while True:
        left = max(0.0, until - time.monotonic())
        wait_s = min(left, LOOKED_UP_S)
        try:
            return connect_all(addresses, credentials, deadline_s=deadline_s, wait_s=wait_s, where=where)
        except (UnavailableError, DeadlineError):
            if left <= LOOKED_UP_S:
                raise
        time.sleep(AGAIN_S)
        with contextlib.suppress(UnavailableError):  # who knows the addresses may be moving, too
            addresses = where()


def connect_all(
    addresses: Mapping[int, Addresses],
    credentials: Credentials | None,
    *,
    deadline_s: float = 30.0,
    wait_s: float | None = None,
    where: Callable[[], Mapping[int, Addresses]] | None = None,
    ended: Callable[[str], DaemonEndedError | None] | None = None,
) -> Cluster:
    """As ``connect``, with the addresses of daemons by their first partitions. Without credentials there is no TLS.
    ``wait_s``: how long each partition's daemon is waited for while it starts; None: not at all."""
    connections: list[Connection] = []
    descriptions: list[Description] = []
    try:
        for part in sorted(addresses):
            replicas = replicas_of(addresses[part])
            within_s = (deadline_s if wait_s is None else wait_s) / len(replicas)
            for address in replicas:
                connections.append(Connection(address, deadline_s, part=part, credentials=credentials, ended=ended))
                try:
                    descriptions.append(connections[-1].describe(wait=wait_s is not None, timeout=within_s))
                    break
                except (UnavailableError, DeadlineError):
                    if address == replicas[-1]:
                        raise
                    connections.pop().close()
        for part, connection, found in zip(sorted(addresses), connections, descriptions, strict=True):
            check_member(found, connection.address, part, descriptions[0], connections[0].address)
        check_complete(descriptions)
    except BaseException:
        for connection in connections:
            connection.close()
        raise
    return Cluster(connections, descriptions, credentials, where)
