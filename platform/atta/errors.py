"""The tree of errors. Every error that Atta raises on purpose is one of these, and its message names the cause.

    AttaError
    ├── ConfigError            a wrong option, argument, message field or configuration key
    │   ├── PluginError        a part of somebody's own that does not load, or is not what it is taken for
    │   └── UnknownNameError   a feature, split, node type, edge type, session or mutable table that does not exist
    │       └── UnknownClientError  a mutable table does not know, or has forgotten, the client that pushes
    ├── DataError              a file on disk that is missing, truncated, altered or of another version
    │   ├── DiskFullError      a file or folder for which there is no space left
    │   └── ChangedFileError   a file of the dataset has changed while a daemon serves it
    ├── QuotaExceededError     a bound (memory, message size, sessions, disk) would be passed
    ├── NonFiniteError         rows that a trainer publishes, or losses, have an infinity or NaN
    ├── TrainerLostError       a trainer was killed or stopped, or did not answer the others; names it
    ├── StaleRowError          a row of another trainer is older, or newer, than the reader may use
    └── RemoteError            a daemon failed to answer; names the peer
        ├── UnavailableError   nothing answers at that address
        │   ├── DrainingError  the daemon is stopping, and takes no new sessions or changes of tables
        │   └── DaemonEndedError  the daemon's process has ended, and who started it says how
        ├── DeadlineError      no answer within the deadline
        ├── PeerLostError      it waited in vain for another daemon
        ├── NotAuthenticatedError  one end does not accept who the other says it is
        ├── NotAllowedError    the caller lacks a role that the method needs
        ├── WrongDatasetError  the daemon serves another dataset, or another partition of it
        ├── ProtocolError      the daemon and this process are releases too far apart
        └── RestartedError     the daemon has been restarted, so its sessions are gone
            └── StalePrimaryError  another daemon holds the tables since its backup was promoted

``atta.wire.rpc`` maps them to gRPC statuses."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

Name = TypeVar("Name")
Errors = type[Exception] | tuple[type[Exception], ...]


LONGEST_NAME = 256
"""Characters of an unknown name that are compared and shown."""
MOST_NAMES = 50
"""At most this many of the names that exist are shown."""


class AttaError(Exception):
    """Base of all errors that Atta raises on purpose."""


class ConfigError(AttaError, ValueError):
    """A wrong option, argument, message field or configuration key."""


class PluginError(ConfigError):
    """A part of somebody's own, from a package or by ``--plugin``, that does not load or is not what it is taken for."""


def hint_of(name: str, known: Iterable[object]) -> str:
    """What errors say behind an unknown name: the nearest of those that exist, whatever their case, or all of them."""
    names = sorted(str(k) for k in known)
    if near := _nearest(name, names):
        return f"; did you mean {near!r}?"
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return f"; there are: {', '.join(names[:MOST_NAMES] + more) or 'none'}"


def near_path(path: str | Path, holding: str = "") -> str:
    """What errors say behind a path that is not there: the nearest one beside it, which is ``holding`` such a file, if any."""
    from pathlib import Path

    folder, name = Path(path).parent, Path(path).name
    beside: list[str] = []
    with suppress(OSError):
        beside = sorted(one.name for one in folder.iterdir() if not holding or (one / holding).is_file())
    near = "" if name in beside else _nearest(name, beside)
    return f"; did you mean {folder / near}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib  # it takes as long to import as all of this file

    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name[:LONGEST_NAME].lower(), lower, n=1)  # longer ones could take a minute
    return lower[near[0]] if near else ""


class UnknownNameError(ConfigError):
    """A name that does not exist; the message has the nearest name that does."""

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[object]) -> UnknownNameError:
        """Make the error. ``what``: the kind of thing, such as ``"split"``; ``known``: the names that exist."""
        text = str(name)
        if len(text) > LONGEST_NAME:
            return cls(f"unknown {what} {text[:LONGEST_NAME]!r}..., {len(text)} characters")
        return cls(f"unknown {what} {text!r}{hint_of(text, known)}")


def known_name(what: str, name: Name, known: Collection[Any]) -> Name:
    """``name``, which is one of the ``known``; raises UnknownNameError if it is not. ``what``: see ``UnknownNameError.of``."""
    if name not in known:
        raise UnknownNameError.of(what, name, known)
    return name


class UnknownClientError(UnknownNameError):
    """A mutable table does not know the client that pushes. It has forgotten the client, or was loaded or created
    since. Or the weights of a job do not know the member, whose lease is over. The push has changed nothing."""


class DataError(AttaError):
    """A file or folder on disk that is missing, truncated, altered or of another format version."""

    def __init__(self, path: str | Path, cause: str) -> None:
        self.path = str(path)
        self.cause = cause
        super().__init__(f"{path}: {cause}")


class DiskFullError(DataError):
    """There is no space left to write a file or folder. What was there before is untouched."""


class ChangedFileError(DataError):
    """A file of the dataset has changed, or cannot be read any more, while a daemon serves it. Batches since the change
    may have been made of it: a job goes on from a checkpoint."""


class QuotaExceededError(AttaError):
    """A bound (memory, message size, number of sessions, disk space) would be passed."""


class NonFiniteError(AttaError):
    """Rows that a trainer publishes, or losses of an epoch, have an infinity or NaN, so training has diverged."""

    def __init__(self, trainer: int | None, epoch: int, layer: int | None, what: str) -> None:
        """``trainer``, ``layer``: None for what is of all of them."""
        self.trainer, self.epoch, self.layer, self.what = trainer, epoch, layer, what
        places = {"trainer": trainer, "epoch": epoch, "layer": layer}
        where = ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
        super().__init__(
            f"{where}: {what} have an infinity or NaN; training has diverged: lower --lr, unless features have some, too"
        )


class TrainerLostError(AttaError):
    """A trainer was killed or stopped, or did not answer the others; the message names it."""


class StaleRowError(AttaError):
    """A row of another trainer does not have a version that its reader may use."""


class RemoteError(AttaError):
    """A daemon failed. ``peer`` is its address, ``cause`` what it said."""

    def __init__(self, peer: str, cause: str) -> None:
        self.peer = peer
        self.cause = cause
        super().__init__(f"{peer}: {cause}")


class UnavailableError(RemoteError):
    """Nothing answers at that address."""


class DrainingError(UnavailableError):
    """The daemon is stopping. A replica, or the daemon that is started after it, takes new sessions and changes."""

    CAUSE = "is stopping, and takes no new sessions or changes of tables"

    def __init__(self, peer: str, cause: str = CAUSE) -> None:
        super().__init__(peer, cause)


class DaemonEndedError(UnavailableError):
    """The daemon's process has ended, killed perhaps, and no replica is left. Waiting for it would be in vain."""


class DeadlineError(RemoteError):
    """No answer within the deadline."""


class PeerLostError(RemoteError):
    """The daemon answers, but another one that it needs does not. Asking it again at once would be in vain."""


class NotAuthenticatedError(RemoteError):
    """One end does not accept who the other says it is: no credential, an expired one, or one of somebody else."""


class NotAllowedError(RemoteError):
    """The daemon knows the caller, but the caller lacks a role that the method needs."""


class WrongDatasetError(RemoteError):
    """The daemon serves another dataset than the one asked for, or another partition of it."""


class SamplingContractError(RemoteError):
    """Two daemons would draw different batches from the same data, because their builds or operators differ."""


class ProtocolError(RemoteError):
    """The daemon and this process are releases too far apart: they have no protocol in common."""


class RestartedError(RemoteError):
    """The daemon has been restarted, so the sessions of before are gone."""


class StalePrimaryError(RestartedError):
    """A daemon does not hold the mutable tables any more: its backup was promoted. On the wire a ``RestartedError``."""


def why(error: Exception) -> str:
    """What an error says; the system's own words, without number and path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


@contextmanager
def blaming(
    kind: type[AttaError],
    where: str | Path = "",
    what: str = "",
    *,
    of: Errors = OSError,
    say: Callable[[Exception], str] = why,
) -> Iterator[None]:
    """An error ``of`` some types within the block becomes one of ``kind``: ``where``, ``what`` is wrong there, and why."""
    try:
        yield
    except of as error:
        text = ": ".join(filter(None, (what, say(error))))
        raise (
            kind(where, text) if issubclass(kind, DataError) else kind(f"{where}: {text}" if where else text)
        ) from error
