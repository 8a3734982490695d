"""Publishes a new version of a dataset's table, or of its edges, on all daemons, or on none, while they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atta.client.control import Connection, Description
from atta.client.every import DaemonAnswer, ask_all, check_together, down
from atta.errors import ConfigError, WrongDatasetError
from atta.kvstore.live.book import TableName
from atta.kvstore.live.folder import VersionFiles, VersionFolder, kept_numbers
from atta.kvstore.live.writing import NewEdges, NewRows, find_edges, find_table, write_version
from atta.partition.dataset import Dataset
from atta.protos.v1 import update_pb2
from atta.wire.credentials import Credentials
from atta.wire.parts import Addresses

ANSWER_S, LOAD_S = 10.0, 600.0
"""How long a daemon may take to answer, and to read and check the new rows."""
_Request = update_pb2.PublishRequest


@dataclass(frozen=True)
class PublishedVersion:
    """What ``publish`` has done.

    Attributes:
        table: ``TYPE/NAME``; of edges: ``TYPE/edges``.
        rows: number of rows, or edges, that were given.
        removed: versions that were removed from the disk.
        gone: number of edges that were named to be removed.
        untold: why daemons did not hear of it. They look at the disk every few seconds.
    """

    number: int
    table: str
    rows: int
    removed: list[int]
    untold: list[str]
    gone: int = 0


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
        AttaError: a daemon does not answer, or cannot read the version. All go on with the one before.
    """

    def read(dataset: Dataset) -> tuple[TableName, NewRows]:
        of = find_table(dataset, table)
        return of, NewRows.open(Path(source), of[1])

    return _publish(data, read, addresses, credentials, keep)


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

    def read(dataset: Dataset) -> tuple[TableName, NewEdges]:
        of = find_edges(dataset, edge_type)
        folder, file = (None if path is None else Path(path) for path in (added, removed))
        return of, NewEdges.open(dataset, of[0], folder, file, replaces=replaces)

    return _publish(data, read, addresses, credentials, keep)


def _publish(
    data: str | Path,
    read: Callable[[Dataset], tuple[TableName, NewRows | NewEdges]],
    addresses: Mapping[int, Addresses],
    credentials: Credentials | None,
    keep: int,
) -> PublishedVersion:
    if keep < 1:
        raise ConfigError(f"keep {keep}: at least the newest version stays")

    def ask(question: Callable[[Connection], Any], deadline_s: float) -> list[DaemonAnswer[Any]]:
        return ask_all(addresses, question, deadline_s=deadline_s, credentials=credentials)

    dataset = Dataset.open(data, verify=False)
    _check_daemons(ask(Connection.describe, ANSWER_S), dataset)
    folder, (of, new) = VersionFolder(data, dataset.dataset_id), read(dataset)
    with folder.updating():
        version = write_version(folder, dataset, of, new)
        if (failed := _tell(ask, version, _Request.PREPARE)) is not None:
            _tell(ask, version, _Request.ABORT)
            folder.remove(version.number)
            raise failed
        folder.commit(version.number)
        untold = [] if (failed := _tell(ask, version, _Request.COMMIT)) is None else [str(failed)]
        removed = _remove_unread(folder, ask, keep)
    gone = len(new.removed) if isinstance(new, NewEdges) else 0
    return PublishedVersion(version.number, "/".join(of), len(new), removed, untold, gone)


_Ask = Callable[[Callable[[Connection], Any], float], list[DaemonAnswer[Any]]]


def _check_daemons(answers: list[DaemonAnswer[Description]], dataset: Dataset) -> None:
    if (failed := down(check_together(answers))) is not None:
        raise failed
    for answer in answers:
        if answer.value is not None and answer.value.dataset_id != dataset.dataset_id:
            raise WrongDatasetError(
                answer.address, f"serves dataset {answer.value.dataset_id}, {dataset.path} is {dataset.dataset_id}"
            )


def _tell(ask: _Ask, version: VersionFiles, phase: update_pb2.PublishRequest.Phase) -> Exception | None:
    """Ask all daemons at once; the error that names all that did not agree."""
    request = _Request(number=version.number, id=version.id, phase=phase)
    return down(ask(partial(_call, "UpdateService.Publish", request), LOAD_S))


def _call(method: str, request: Any, connection: Connection) -> Any:
    connection.meet(connection.describe(timeout=ANSWER_S))
    return connection.call(method, request, timeout=connection.deadline_s)


def _remove_unread(folder: VersionFolder, ask: _Ask, keep: int) -> list[int]:
    """Remove versions that no session reads. None goes if a daemon is down, as it may read any."""
    answers = ask(partial(_call, "UpdateService.Versions", update_pb2.VersionsRequest()), ANSWER_S)
    if down(answers) is not None:
        return []
    read = [number for answer in answers if answer.value is not None for number in answer.value.in_use]
    versions = folder.committed()
    removed = sorted(versions.keys() - kept_numbers(versions, read, keep))
    for number in removed:
        folder.remove(number)
    return removed
