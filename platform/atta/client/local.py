"""``atta.local``: a cluster of child processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from atta.client.cluster import Cluster
from atta.client.control import Connection, Description
from atta.client.folder import OwnFolder
from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, UnavailableError
from atta.observe import lastwords
from atta.observe.machine.addresses import HeldAddresses
from atta.observe.machine.processor import usable_cores
from atta.partition.dataset import Dataset
from atta.partition.parts.remote import local_dataset
from atta.wire.clusterfile import write_cluster
from atta.wire.parts import Addresses, parts_text
from atta.wire.security.credentials import Credentials

__all__ = ["LocalCluster", "local"]

START_DEADLINE_S = 120.0
"""How long daemons may take to start."""
_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
"""Standard inputs of all daemons that this process has started."""


class LocalCluster(Cluster):
    """Daemons that were started for this process. They end with it, even if it is killed, or when nobody holds the
    cluster any more. A forked child neither ends nor keeps them.
    """

    def __init__(
        self,
        connections: list[Connection],
        descriptions: list[Description],
        children: list[subprocess.Popen[bytes]],
        folder: OwnFolder,
        credentials: Credentials | None = None,
        *,
        held: HeldAddresses,
        where: Callable[[], Mapping[int, Addresses]] | None = None,
    ) -> None:
        super().__init__(connections, descriptions, credentials, where)
        self._children, self._folder = children, folder
        self._daemons = weakref.finalize(self, _end, children, folder, held, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Process ids of the daemons, in the order of their partitions; replicas follow each other."""
        return [child.pid for child in self._children]

    @property
    def cluster_file(self) -> Path:
        """A cluster file for other processes. It exists as long as the cluster does."""
        return Path(self._folder.name) / "cluster.toml"

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
) -> LocalCluster:
    """Start daemons for the dataset at ``path`` on loopback and connect to them.

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

    Raises:
        DataError: the dataset is missing, truncated, altered or of another version.
        ConfigError: an option makes no sense. Also any other ``AttaError`` with which a daemon ended as it started.
        RemoteError: a daemon ended for another reason; has the last line of its log.
    """
    path = local_dataset(path, None)
    dataset = Dataset.open(path, parts=[], verify=False)
    if replicas < 1:
        raise ConfigError(f"replicas is {replicas}: must be at least 1")
    groups = _divided(dataset.num_parts, daemons)
    served = [parts for parts in groups for _ in range(replicas)]
    threads = threads or max(1, usable_cores() // len(served))
    folder, held = OwnFolder("atta-local-"), HeldAddresses(len(served))
    addresses = held.addresses
    places = {parts: tuple(addresses[i * replicas : (i + 1) * replicas]) for i, parts in enumerate(groups)}
    children: list[subprocess.Popen[bytes]] = []
    try:
        of_parts = [places[parts] for parts in groups for _ in parts]
        write_cluster(Path(folder.name) / "cluster.toml", of_parts, credentials)
        for number, (parts, address) in enumerate(zip(served, addresses, strict=True)):
            command = [
                *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(path), "--part", parts_text(parts)),
                *("--listen", address, "--peers", f"{folder.name}/cluster.toml", "--threads", str(threads)),
                *("--log-level", log_level, "--exit-with-parent", *(() if verify else ("--no-verify",)), *options),
            ]
            last_words = Path(folder.name) / f"{number}.error"
            environment = {**os.environ, lastwords.VARIABLE: str(last_words)}
            with last_words.with_suffix(".log").open("wb") as errors:
                child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=environment)
            assert child.stdin is not None
            children.append(child)
            _pipes.add(child.stdin)
        connections = [
            Connection(address, deadline_s, part=parts.start, credentials=credentials)
            for parts, address in zip(served, addresses, strict=True)
        ]
        descriptions = [
            _await_daemon(connection, child, Path(folder.name) / f"{number}.error")
            for number, (connection, child) in enumerate(zip(connections, children, strict=True))
        ]
    except BaseException:
        for child in children:
            child.terminate()  # a daemon that is still loading does not look at its standard input yet
        _stop(children)
        folder.cleanup()
        held.close()
        raise
    for standby in (c for number, c in enumerate(connections) if number % replicas):
        standby.close()
    where = {parts.start: addresses for parts, addresses in places.items()}
    known = connections[::replicas], descriptions[::replicas]
    return LocalCluster(*known, children, folder, credentials, held=held, where=lambda: where)


def _divided(partitions: int, daemons: int | None) -> list[range]:
    """The partitions of each daemon."""
    count = partitions if daemons is None else daemons
    if not 1 <= count <= partitions:
        raise ConfigError(f"daemons is {count}: must be 1 to {partitions}, the number of partitions")
    return [range(partitions * d // count, partitions * (d + 1) // count) for d in range(count)]


def _await_daemon(connection: Connection, child: subprocess.Popen[bytes], last_words: Path) -> Description:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        if child.poll() is not None:
            raise lastwords.read(last_words) or _ended(connection.address, child.returncode, last_words)
        try:
            return connection.describe(wait=True, timeout=0.5)
        except (DeadlineError, UnavailableError):
            if time.monotonic() > deadline:
                raise


def _ended(address: str, code: int, last_words: Path) -> AttaError:
    log = last_words.with_suffix(".log").read_text(errors="replace")
    lines = [line for line in log.splitlines() if line.strip()]
    cause = lines[-1] if lines else "no output"
    return RemoteError(address, f"the daemon ended with exit code {code}: {cause}")


def _end(children: list[subprocess.Popen[bytes]], folder: OwnFolder, held: HeldAddresses, process: int) -> None:
    """Stop the daemons of ``process``, then remove their folder. It does nothing in a forked child."""
    if os.getpid() == process:
        _stop(children)
        folder.cleanup()
        held.close()


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.stdin is not None:
            child.stdin.close()  # the daemon saves its tables and ends
    for child in children:
        try:
            child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _let_go() -> None:
    """Close a forked child's copies of the pipes. A daemon ends when its pipe does, so they would keep it running."""
    for pipe in _pipes:
        pipe.close()


os.register_at_fork(after_in_child=_let_go)
