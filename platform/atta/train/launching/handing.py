"""What a process hands to others so that they reach the same daemons: addresses, and paths of credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from atta.errors import AttaError

if TYPE_CHECKING:
    import atta
    from atta.wire.parts import Addresses


def handed(cluster: atta.Cluster) -> dict[str, Any]:
    """Plain values for a task file: ``addresses`` of each partition's daemon and its replicas, in ``tls`` the files to
    bring (None: the daemons have no TLS), and in ``file`` the cluster file of daemons that were started here, which tells
    when one of them has ended (None: they were not).
    """
    credentials = cluster.credentials
    file = getattr(cluster, "cluster_file", None)
    return {
        "addresses": [[*replicas] for replicas in cluster.replicas],
        "tls": None if credentials is None else credentials.to_dict(),
        "file": None if file is None else str(file),
    }


def connect_handed(task: Mapping[str, Any], *, deadline_s: float = 30.0) -> atta.Cluster:
    """The cluster that ``handed`` was told of.

    ``task["file"]``, if there is one, is a cluster file that somebody rewrites when a daemon moves.

    Raises:
        UnavailableError: a daemon does not answer.
        DataError: a file of the credentials is missing or damaged.
    """
    from atta.client.cluster import connect_all
    from atta.wire.clusterfile import ended_daemon
    from atta.wire.named import resolve_target
    from atta.wire.parts import groups_of, replicas_of
    from atta.wire.security.credentials import Credentials

    tls = task.get("tls")
    found = groups_of({part: replicas_of(replicas) for part, replicas in enumerate(task["addresses"])})
    addresses = {parts.start: replicas for parts, replicas in found.items()}
    file = task.get("file")

    def where() -> Mapping[int, Addresses]:
        return resolve_target(file) if file else addresses

    ended = partial(ended_daemon, file) if file else None
    credentials = None if tls is None else Credentials(**tls)
    return connect_all(addresses, credentials, deadline_s=deadline_s, where=where, ended=ended)


@contextmanager
def blaming_daemons(cluster: atta.LocalCluster) -> Iterator[None]:
    """Name the daemon that was killed, if there is one, in place of an error that followed from it.

    Raises:
        DaemonEndedError: one was killed, and something failed within the block.
    """
    try:
        yield
    except AttaError as error:
        if (lost := cluster.lost) is not None:
            raise lost from error
        raise
