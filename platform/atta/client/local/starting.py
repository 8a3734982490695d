"""Starts the daemons of a dataset as child processes and connects to them."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from atta.client.cluster import Cluster
from atta.client.control import Connection, Description
from atta.client.folder import OwnFolder
from atta.client.local.children import DaemonChild, DaemonChildren
from atta.client.local.dividing import divided_memory
from atta.errors import ConfigError, DaemonEndedError
from atta.observe.machine.addresses import HeldAddresses
from atta.observe.machine.processor import usable_cores
from atta.partition.dataset import MANIFEST, Dataset
from atta.partition.deploy import local_dataset
from atta.wire.clusterfile import write_cluster
from atta.wire.parts import Addresses, parts_text
from atta.wire.security.credentials import Credentials


class LocalCluster(Cluster):
    """Daemons that were started for this process. They end with it, even if it is killed, or when nobody holds the
    cluster any more. A forked child neither ends nor keeps them.

    When a daemon is killed and no replica is left, consumers read DaemonEndedError at once: also those of other processes
    that know ``cluster_file``, and through other daemons.
    """

    def __init__(
        self,
        connections: list[Connection],
        descriptions: list[Description],
        daemons: DaemonChildren,
        folder: OwnFolder,
        credentials: Credentials | None = None,
        *,
        held: HeldAddresses,
        where: Callable[[], Mapping[int, Addresses]] | None = None,
    ) -> None:
        super().__init__(connections, descriptions, credentials, where)
        self._started, self._folder = daemons, folder
        self._daemons = weakref.finalize(self, _end, daemons, folder, held, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Process ids of the daemons, in the order of their partitions; replicas follow each other."""
        return [child.pid for child in self._children]

    @property
    def _children(self) -> list[subprocess.Popen[bytes]]:
        return [child.process for child in self._started.children]

    @property
    def cluster_file(self) -> Path:
        """A cluster file for other processes. It exists as long as the cluster does."""
        return Path(self._folder.name) / "cluster.toml"

    @property
    def lost(self) -> DaemonEndedError | None:
        """How a daemon has ended that nobody stopped and that no replica stands in for; None: all are there."""
        return self._started.first_ended()

    def close(self) -> None:
        """Close all sessions, then stop the daemons."""
        super().close()
        self._daemons()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def local(
    path: str | Path,
    *,
    threads: int | None = None,
    deadline_s: float = 60.0,
    verify: bool = True,
    log_level: str = "warning",
    daemons: int | None = None,
    replicas: int = 1,
    options: tuple[str, ...] = (),
    credentials: Credentials | None = None,
    readers: int = 1,
) -> LocalCluster:
    """Start daemons for the dataset at ``path`` on loopback and connect to them. They share the memory of this machine, or
    of its control group; see ``docs/guide/daemon.md``.

    Args:
        path: folder of a partitioned dataset. All partitions of one on object storage come to ``~/.cache/atta/data``.
        threads: worker threads per daemon; default: the cores of this machine divided by the number of daemons.
        deadline_s: how long each call to a daemon may take.
        verify: check the checksums of all files at start.
        log_level: of the daemons: debug, info, warning or error.
        daemons: how many, each of consecutive partitions and as evenly as possible; default: one per partition.
            Batches are the same.
        replicas: how many daemons serve the same partitions. The first is used until it is lost, then another one.
        options: further options of ``atta serve``.
        credentials: what to bring if these turn TLS on.
        readers: how many processes on this machine are going to read batches. Memory is left for them.

    Raises:
        DataError: the dataset is missing, truncated, altered or of another version.
        ConfigError: an option makes no sense, or the daemons do not fit into memory. Also any other ``AttaError`` with which
            a daemon ended as it started.
        RemoteError: a daemon ended for another reason; has the last line of its log.
    """
    path = local_dataset(path, None)
    if not (path / MANIFEST).exists():
        from atta.partition.importers import refuse_unimported

        refuse_unimported(path)
    dataset = Dataset.open(path, parts=[], verify=False)
    if replicas < 1:
        raise ConfigError(f"replicas is {replicas}: must be at least 1")
    groups = _divided(dataset.num_parts, daemons)
    served = [parts for parts in groups for _ in range(replicas)]
    threads = threads or max(1, usable_cores() // len(served))
    folder, held, children = OwnFolder("atta-local-"), HeldAddresses(len(served)), DaemonChildren()
    addresses = held.addresses
    places = {parts: tuple(addresses[i * replicas : (i + 1) * replicas]) for i, parts in enumerate(groups)}
    write = partial(_write, Path(folder.name) / "cluster.toml", places, credentials)
    try:
        write({})
        with divided_memory(dataset, groups, options, replicas=replicas, readers=readers) as memory:
            for number, (parts, address) in enumerate(zip(served, addresses, strict=True)):
                command = [
                    *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(path), "--part", parts_text(parts)),
                    *("--listen", address, "--peers", f"{folder.name}/cluster.toml", "--threads", str(threads)),
                    *("--log-level", log_level, "--exit-with-parent", *(() if verify else ("--no-verify",))),
                    *(*memory, *options),
                ]
                last_words = Path(folder.name) / f"{number}.error"
                children.children.append(DaemonChild.start(parts, address, command, last_words))
            connections = [
                Connection(address, deadline_s, part=parts.start, credentials=credentials, ended=children.ended)
                for parts, address in zip(served, addresses, strict=True)
            ]
            descriptions = [
                child.awaited(connection) for connection, child in zip(connections, children.children, strict=True)
            ]
    except BaseException:
        children.terminate()
        folder.cleanup()
        held.close()
        raise
    children.watch(write)
    for standby in (c for number, c in enumerate(connections) if number % replicas):
        standby.close()
    where = {parts.start: addresses for parts, addresses in places.items()}
    known = connections[::replicas], descriptions[::replicas]
    return LocalCluster(*known, children, folder, credentials, held=held, where=lambda: where)


def _write(
    file: Path,
    places: Mapping[range, tuple[str, ...]],
    credentials: Credentials | None,
    ended: Mapping[str, str],
) -> None:
    """Write the cluster file; ``ended``: how daemons have ended, by address. Readers see a whole file at any time."""
    begun = file.with_suffix(".begun")
    write_cluster(begun, [places[parts] for parts in places for _ in parts], credentials, ended)
    begun.replace(file)


def _divided(partitions: int, daemons: int | None) -> list[range]:
    """The partitions of each daemon."""
    count = partitions if daemons is None else daemons
    if not 1 <= count <= partitions:
        raise ConfigError(f"daemons is {count}: must be 1 to {partitions}, the number of partitions")
    return [range(partitions * d // count, partitions * (d + 1) // count) for d in range(count)]


def _end(daemons: DaemonChildren, folder: OwnFolder, held: HeldAddresses, process: int) -> None:
    """Stop the daemons of ``process``, then remove their folder. It does nothing in a forked child."""
    if os.getpid() == process:
        daemons.stop()
        folder.cleanup()
        held.close()
