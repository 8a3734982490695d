"""Makes a backup the holder of the mutable tables of a partition."""

from __future__ import annotations

from pathlib import Path

from atta.client.control import Connection
from atta.errors import ConfigError
from atta.protos.v1 import backup_pb2
from atta.wire.clusterfile import prefer
from atta.wire.named import credentials_for, resolve_target
from atta.wire.parts import replicas_of

__all__ = ["promote"]

DEADLINE_S = 60.0
"""How long the backup may take to read what it has kept."""


def promote(target: str, part: int, address: str | None = None) -> tuple[str, int]:
    """Let the backup at ``address`` hold the tables of ``part``, and name it first in the cluster file.

    Args:
        target: a cluster file, or whatever else ``atta.connect`` takes; only a file is changed.
        part: a partition.
        address: ``host:port``; None: the other daemon of a partition that has two.

    Returns:
        The address, and the number of tables.

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
    connection = Connection(address, DEADLINE_S, credentials=credentials_for(target))
    try:
        connection.meet(connection.describe())
        reply = connection.call("BackupService.Promote", backup_pb2.PromoteRequest(), timeout=DEADLINE_S)
    finally:
        connection.close()
    if Path(target).is_file():
        prefer(target, part, address)
    return address, int(reply.tables)
