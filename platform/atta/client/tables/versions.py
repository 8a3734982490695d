"""Publishes a new version of a dataset's table, or of its edges, on all daemons, or on none, while they serve."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from atta.client.control import Connection
from atta.client.every import Ask, asking, check_together, down
from atta.errors import ConfigError, DataError, RemoteError, WrongDatasetError
from atta.kvstore.durable.logfile import force, written
from atta.kvstore.live.book import TableName
from atta.kvstore.live.folder import VersionFiles, VersionFolder, kept_numbers
from atta.kvstore.live.vertices import AddedVertices
from atta.kvstore.live.writing import NewEdges, NewRows, NewUse, Present, find_edges, find_table, write_version
from atta.partition.dataset import Dataset
from atta.partition.disk.staging import lock
from atta.partition.graph import Graph
from atta.partition.names import edge_folder
from atta.protos.v1 import update_pb2
from atta.wire.credentials import Credentials
from atta.wire.parts import Addresses

ANSWER_S, LOAD_S = 10.0, 600.0
"""How long a daemon may take to answer, and to read and check the new rows."""
PATIENCE_S, PAUSE_S, LOOK_S, EVERY_S = 300.0, 1.0, 0.05, 0.15
"""How long daemons that do not answer are waited for, the pauses before the next try and the next look, and how often updates
become a version: each takes the copying of all edges, in the daemons' memory."""
TAKEN, REFUSED, MOST_UPDATES = ".taken-", "refused", 1000
"""How folders of updates that were taken begin, where refused ones are, and how many are taken at a time."""
T = TypeVar("T")
_Request = update_pb2.PublishRequest


@dataclass(frozen=True)
class PublishedVersion:
    """What ``publish`` has done.

    Attributes:
        table: ``TYPE/NAME``; of edges: ``TYPE/edges``; of new vertices: ``vertices``.
        rows: number of rows, edges or vertices that were given.
        ids: by node type, the user ids of new vertices, int64 [n], in the order of their rows.
        edges: by edge type, how many edges came with them.
        removed: versions that do not count any more.
        gone: number of edges that were named to be removed.
        untold: why daemons did not hear of it. They look at the disk every few seconds.
        updates, refused: names of what it has from a folder, and why others were set aside, by name; 0 is its number if
            all were.
    """

    number: int
    table: str
    rows: int
    removed: list[int]
    untold: list[str]
    gone: int = 0
    updates: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, np.ndarray] = field(default_factory=dict)
    edges: Mapping[str, int] = field(default_factory=dict)


def publish(
    data: str | Path,
    table: str,
    source: str | Path,
    addresses: Mapping[int, Addresses],
    *,
    credentials: Credentials | None = None,
    keep: int = 2,
) -> PublishedVersion:
    """Write rows as the next version of ``table`` beside the dataset ``data``, and have all daemons serve it.

    ``source``: see ``NewRows.open``. Sessions that are open read on what they have begun with. Then versions that
    nobody reads are removed from the disk, except for the newest ``keep``.

    Raises:
        ConfigError, UnknownNameError: the rows or the table are wrong, ``keep`` is below 1, or another update is
            under way.
        DataError: a file cannot be read or written.
        WrongDatasetError: the daemons serve another dataset.
        RemoteError: a daemon does not answer, or cannot read the version. All go on with the one before.
    """
    with publishing(data, addresses, credentials, keep) as publisher:
        of = find_table(publisher.dataset, table)
        return publisher.publish(of, NewRows.open(Path(source), of[1]))


def publish_edges(
    data: str | Path,
    edge_type: str | None,
    addresses: Mapping[int, Addresses],
    *,
    added: str | Path | None = None,
    removed: str | Path | None = None,
    replaces: bool = False,
    credentials: Credentials | None = None,
    keep: int = 2,
) -> PublishedVersion:
    """The same for edges of one type (None: of the only one). ``added``, ``removed``, ``replaces``: see ``NewEdges.open``.
    Edges that are added get the ids after the largest one so far; the others keep theirs. Raises as ``publish``."""
    with publishing(data, addresses, credentials, keep) as publisher:
        of = find_edges(publisher.dataset, edge_type)
        folder, file = (None if path is None else Path(path) for path in (added, removed))
        return publisher.publish(of, NewEdges.open(publisher.present, of[0], folder, file, replaces=replaces))


def publish_vertices(
    data: str | Path,
    source: str | Path,
    addresses: Mapping[int, Addresses],
    *,
    credentials: Credentials | None = None,
    keep: int = 2,
) -> PublishedVersion:
    """The same for the vertices of a graph folder that the dataset does not have, with all edges of the folder. They take the
    next vertices of the dataset's room: see ``AddedVertices``. Raises as ``publish``; ConfigError: there is no room left."""
    graph = Graph.open(source)
    with publishing(data, addresses, credentials, keep) as publisher:
        return publisher.publish(("", "vertices"), AddedVertices(graph))


@contextmanager
def publishing(
    data: str | Path, addresses: Mapping[int, Addresses], credentials: Credentials | None, keep: int
) -> Iterator[Publisher]:
    """Who publishes versions, several on the same connections. Arguments and errors as of ``publish``."""
    if keep < 1:
        raise ConfigError(f"keep {keep}: at least the newest version stays")
    with asking(addresses, deadline_s=ANSWER_S, credentials=credentials) as ask:
        yield Publisher(data, ask, keep)


class Publisher:
    """Publishes versions of a dataset, one after another."""

    def __init__(self, data: str | Path, ask: Ask, keep: int) -> None:
        """``ask``: see ``asking``. Requests name the dataset from now on, so that a daemon of another one refuses them."""
        self.dataset, self._ask, self._keep = Dataset.open(data, verify=False), ask, keep
        self.folder = VersionFolder(data, self.dataset.dataset_id)
        answers = check_together(ask(Connection.describe))
        if (failed := down(answers)) is not None:
            raise failed
        found = {answer.address: answer.value for answer in answers if answer.value is not None}
        for address, value in found.items():
            if value.dataset_id != self.dataset.dataset_id:
                told = f"serves dataset {value.dataset_id}, {self.dataset.path} is {self.dataset.dataset_id}"
                raise WrongDatasetError(address, told)
        ask(lambda connection: connection.meet(found[connection.address]))

    @property
    def present(self) -> Present:
        """The newest version."""
        return Present.of(self.folder, self.dataset)

    def publish(
        self, of: TableName, new: NewRows | NewEdges | AddedVertices, taken: Mapping[str, str] | None = None
    ) -> PublishedVersion:
        """Have all daemons serve the next version, or none. ``taken``: see ``write_version``; who takes updates waits for
        other updates to end. Raises as the function."""
        folder = self.folder
        with folder.updating(wait=taken is not None):
            changes = new.changes(self.present) if isinstance(new, AddedVertices) else {of: new}
            version = write_version(folder, self.dataset, changes, taken)
            if (failed := self._tell(version, _Request.PREPARE)) is not None:
                self._tell(version, _Request.ABORT)
                folder.remove(version.number)
                raise failed
            folder.commit(version.number)
            untold = [] if (failed := self._tell(version, _Request.COMMIT)) is None else [str(failed)]
            removed = self._retire_unread()
        gone = len(new.removed) if isinstance(new, NewEdges) else 0
        ids = {name: change.ids for (name, _), change in changes.items() if isinstance(change, NewUse)}
        edges = {name: len(change) for (name, _), change in changes.items() if isinstance(change, NewEdges)}
        count = sum(map(len, ids.values())) if isinstance(new, AddedVertices) else len(new)
        told = "/".join(filter(None, of)), count, removed, untold, gone
        return PublishedVersion(version.number, *told, ids=ids, edges=edges)

    def _tell(self, version: VersionFiles, phase: update_pb2.PublishRequest.Phase) -> RemoteError | None:
        """Ask all daemons at once; the error that names all that did not agree."""
        request = _Request(number=version.number, id=version.id, phase=phase)
        return down(self._ask(lambda connection: connection.call("UpdateService.Publish", request, timeout=LOAD_S)))

    def _retire_unread(self) -> list[int]:
        """Retire versions that no session reads. None goes if a daemon is down, as it may read any."""
        request = update_pb2.VersionsRequest()
        answers = self._ask(lambda connection: connection.call("UpdateService.Versions", request, timeout=ANSWER_S))
        if down(answers) is not None:
            return []
        read = [number for answer in answers if answer.value is not None for number in answer.value.in_use]
        versions = self.folder.committed()
        removed = sorted(versions.keys() - kept_numbers(versions, read, self._keep))
        for number in removed:
            self.folder.retire(number)
        return removed


# -- updates that others put into a folder ---------------------------------------------------------------------------------


@contextmanager
def taking_edges(publisher: Publisher, folder: str | Path, edge_type: str | None = None) -> Iterator[EdgeUpdater]:
    """Who publishes the updates that are put into ``folder``, which is made if it is missing. Raises UnknownNameError,
    ConfigError: as ``find_edges``, or another process takes updates from the folder; DataError: it cannot be written."""
    of, folder = find_edges(publisher.dataset, edge_type), Path(folder).resolve()
    with written(folder):
        (folder / REFUSED).mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY)
    try:
        if lock(fd) is False:
            raise ConfigError(f"{folder}: another process takes updates from it")
        yield EdgeUpdater(publisher, of, folder)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class EdgeUpdater:
    """Publishes edges that others put into a folder: each folder that is renamed into it is an update, as ``publish_edges``
    adds it. Updates that have arrived meanwhile become one version, in the order of their names.

    Each is in one version, also if this process is killed. First it is moved into a folder ``.taken-ID``. The version names
    the latest ID, so it counts as taken from the moment on when the version counts. Then that folder is removed. One that is
    there later was taken if the newest version names it; else it comes next."""

    publisher: Publisher
    of: TableName
    folder: Path

    def follow(self) -> Iterator[PublishedVersion]:
        """Take updates without an end; yields what was done. Raises as ``each_done``."""
        return each_done(self.catch_up, EVERY_S)

    def catch_up(self) -> PublishedVersion | None:
        """Publish what has arrived; None: nothing. Raises as ``publish``; then the same updates come next."""
        with written(self.folder):
            batch = min(self.folder.glob(f"{TAKEN}*"), default=None) or self._arrived()
            if batch is None:
                return None
            versions = self.publisher.folder.committed()
            taken = versions[max(versions)].taken.get(str(self.folder)) if versions else None
            if taken is not None and taken[0] == batch.name:
                # By one that was killed.
                done = replace(self._nothing, number=taken[1], updates=sorted(os.listdir(batch)))
            else:
                done = self._published(batch)
            shutil.rmtree(batch)
        return done

    def _arrived(self) -> Path | None:
        """A folder with the updates that have arrived, some of them if they are many."""
        if not (names := [name for name in sorted(os.listdir(self.folder)) if name[0] != "." and name != REFUSED]):
            return None
        batch = self.folder / f"{TAKEN}{secrets.token_hex(8)}"
        batch.mkdir()
        for name in names[:MOST_UPDATES]:
            (self.folder / name).rename(batch / name)
        for path in (batch, self.folder):
            force(path)
        return batch

    @property
    def _nothing(self) -> PublishedVersion:
        return PublishedVersion(0, "/".join(self.of), 0, [], [])

    def _published(self, batch: Path) -> PublishedVersion:
        """Its updates as a version, but for those that are refused."""
        found, refused, present = dict[str, NewEdges](), dict[str, str](), self.publisher.present
        for name in sorted(os.listdir(batch)):
            try:
                found[name] = self._update(present, batch / name)
            except (ConfigError, DataError, IndexError) as error:
                refused[name] = str(error)
                self._refuse(batch / name, str(error))
        done = self._nothing
        if found:
            done = self.publisher.publish(self.of, NewEdges.joined([*found.values()]), {str(self.folder): batch.name})
        return replace(done, updates=[*found], refused=refused)

    def _update(self, present: Present, path: Path) -> NewEdges:
        """The edges of one update, also of a whole graph folder."""
        of_graph = path / edge_folder(edge_type := self.of[0])
        new = NewEdges.open(present, edge_type, of_graph if of_graph.is_dir() else path, None)
        new.ends(present.dataset, edge_type)
        return new

    def _refuse(self, path: Path, cause: str) -> None:
        """Set an update aside, with the cause beside it."""
        to = self.folder / REFUSED / path.name
        if to.exists():
            to = to.with_name(f"{path.name}-{secrets.token_hex(4)}")
        to.with_name(f"{to.name}.txt").write_text(f"{cause}\n", encoding="utf-8")
        path.rename(to)


def each_done(step: Callable[[], T | None], every_s: float = 0.0) -> Iterator[T]:
    """What ``step`` does, again and again without an end, at most every so many seconds; None: there was nothing to do. While
    a daemon does not answer, it is waited for. Raises RemoteError: for minutes; and what else ``step`` does."""
    silent_since: float | None = None
    while True:
        began = time.monotonic()
        try:
            done, pause_s = step(), LOOK_S
            silent_since = None
        except RemoteError:
            silent_since = silent_since or began
            if began - silent_since > PATIENCE_S:
                raise
            done, pause_s = None, PAUSE_S
        if done is not None:
            yield done
            pause_s = began + every_s - time.monotonic()
        time.sleep(max(0.0, pause_s))
