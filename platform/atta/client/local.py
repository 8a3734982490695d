"""Starts the daemons of a dataset as child processes, divides this machine's memory among them, and connects to them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from atta.client.cluster import Cluster
from atta.client.control import Connection, Description
from atta.errors import ConfigError, DaemonEndedError, DeadlineError, RemoteError, UnavailableError
from atta.observe import lastwords
from atta.observe.machine.held import HeldAddresses, OwnFolder
from atta.observe.machine.memory import available_bytes, claim, machine_room
from atta.observe.machine.processor import usable_cores
from atta.observe.progress import shown
from atta.observe.settings import SIZES, amount_of
from atta.partition.dataset import MANIFEST, Dataset
from atta.partition.deploy import local_dataset
from atta.partition.graph.needs import MachineRoom, MemoryPlan, MemoryWish, Needs, needs_of, plan_memory
from atta.wire.clusterfile import write_cluster
from atta.wire.credentials import Credentials
from atta.wire.parts import Addresses, parts_text, read_toml

START_DEADLINE_S = 120.0
"""How long daemons may take to start."""
WATCH_S = 0.1
"""How often it is looked whether a daemon has ended."""
LOOK_S = 0.02
"""The same while somebody waits for it."""
ENDING_S = 0.3
"""How long a process may take to end after its connections have: then it is known how it ended."""
_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()
"""Standard inputs of all daemons that this process has started."""


@dataclass(frozen=True)
class DaemonChild:
    """A daemon of ``parts`` at ``address``. ``last_words``: where it leaves its error; its log is beside it."""

    parts: range
    address: str
    process: subprocess.Popen[bytes]
    last_words: Path

    @classmethod
    def start(cls, parts: range, address: str, command: Sequence[str], last_words: Path) -> DaemonChild:
        """Run ``command``, which ends when its standard input does."""
        environment = {**os.environ, lastwords.VARIABLE: str(last_words)}
        with last_words.with_suffix(".log").open("wb") as said:
            # A group of its own: Ctrl-C and a notebook's interrupt, which reach whole groups, are not for daemons. A
            # kernel that shuts down would kill what is in its group, and tables would not be saved.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, process_group=0
            )
        assert process.stdin is not None
        _pipes.add(process.stdin)
        return cls(parts, address, process, last_words)

    def awaited(self, connection: Connection) -> Description:
        """What the daemon says of itself once it serves. Raises the error with which it ended instead."""
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            if (code := self.process.poll()) is not None:
                cause = f"the daemon {_how(code)}: {self._last_line()}"
                raise lastwords.read(self.last_words) or RemoteError(connection.address, cause)
            try:
                return connection.describe(wait=True, timeout=0.5)
            except (DeadlineError, UnavailableError):
                if time.monotonic() > deadline:
                    raise

    def ended(self, within_s: float = 0.0) -> DaemonEndedError | None:
        """How the daemon has been lost; None: it runs, and goes on ``within_s``, or it has drained: whoever stopped it may
        start another one in its place, as ``atta roll`` does."""
        until = time.monotonic() + within_s
        while (code := self._exit_code()) is None:
            if time.monotonic() >= until:
                return None
            time.sleep(LOOK_S)
        if code == 0:
            return None
        return DaemonEndedError(self.address, f"the daemon of partition {parts_text(self.parts)} {_how(code)}")

    def _exit_code(self) -> int | None:
        """Negative for a signal; None: it runs. Its process id stays taken until somebody stops all daemons."""
        if self.process.returncode is not None:
            return self.process.returncode
        try:
            found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # this is a forked child, and the daemon is not its own
            return None
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _last_line(self) -> str:
        log = self.last_words.with_suffix(".log").read_text(errors="replace")
        lines = [line for line in log.splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}" + ("; out of memory?" if -code == signal.SIGKILL else "")


class DaemonChildren:
    """The daemons of one cluster. A thread notices when one ends that nobody has stopped."""

    def __init__(self) -> None:
        self.children: list[DaemonChild] = []
        self._stopping = threading.Event()

    def watch(self, told: Callable[[dict[str, str]], None]) -> None:
        """From now on, call ``told`` with how each address has ended, whenever another one does."""
        threading.Thread(target=self._watch, args=(told,), name="atta-children", daemon=True).start()

    def _watch(self, told: Callable[[dict[str, str]], None]) -> None:
        known: dict[str, str] = {}
        while len(known) < len(self.children) and not self._stopping.wait(WATCH_S):
            ends = {child.address: found.cause for child in self.children if (found := child.ended()) is not None}
            if len(ends) > len(known):
                with contextlib.suppress(OSError):  # the folder is being removed, or the disk is full
                    told(ends)
                known = ends

    def ended(self, address: str) -> DaemonEndedError | None:
        """How the daemon at ``address`` has ended; None: it has not, or another one serves the same, or it was stopped."""
        mine = next((child for child in self.children if child.address == address), None)
        if mine is None or self._stopping.is_set():
            return None
        found = mine.ended(ENDING_S)
        others = [child for child in self.children if child.parts == mine.parts and child is not mine]
        return found if all(child.ended() is not None for child in others) else None

    def first_ended(self) -> DaemonEndedError | None:
        """How a daemon has ended whose partitions no other one serves; None: there is none."""
        gone = [child for child in self.children if child.ended() is not None]
        return next((found for child in gone if (found := self.ended(child.address)) is not None), None)

    def terminate(self) -> None:
        """Stop daemons that may still be loading: these do not look at their standard input yet."""
        for child in self.children:
            child.process.terminate()
        self.stop()

    def stop(self) -> None:
        """Have all daemons save their tables and end."""
        self._stopping.set()
        for child in self.children:
            if child.process.stdin is not None:
                child.process.stdin.close()
        for child in self.children:
            try:
                child.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _let_go() -> None:
    """Close a forked child's copies of the pipes. A daemon ends when its pipe does, so they would keep it running."""
    for pipe in _pipes:
        pipe.close()


os.register_at_fork(after_in_child=_let_go)


log = logging.getLogger("atta.memory")


class LocalCluster(Cluster):
    """Daemons that were started for this process. They end with it, even if it is killed, or when nobody holds the
    cluster any more. A forked child neither ends nor keeps them.

    When a daemon is killed and no replica is left, consumers read DaemonEndedError at once: also those of other processes
    that know ``cluster_file``, and through other daemons."""

    def __init__(
        self,
        connections: list[Connection],
        descriptions: list[Description],
        daemons: DaemonChildren,
        folder: OwnFolder,
        credentials: Credentials | None = None,
        *,
        running: ExitStack,
        where: Callable[[], Mapping[int, Addresses]] | None = None,
    ) -> None:
        """``running``: closed, it stops the daemons and removes their folder."""
        super().__init__(connections, descriptions, credentials, where)
        self._started, self._folder = daemons, folder
        self._children = [child.process for child in daemons.children]
        self._daemons = weakref.finalize(self, _end, running, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Process ids of the daemons, in the order of their partitions; replicas follow each other."""
        return [child.pid for child in self._children]

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
    partitions, count = dataset.num_parts, dataset.num_parts if daemons is None else daemons
    if not 1 <= count <= partitions:
        raise ConfigError(f"daemons is {count}: must be 1 to {partitions}, the number of partitions")
    groups = [range(partitions * d // count, partitions * (d + 1) // count) for d in range(count)]
    served = [parts for parts in groups for _ in range(replicas)]
    threads = threads or max(1, usable_cores() // len(served))
    folder, held, children = OwnFolder("atta-local-"), HeldAddresses(len(served)), DaemonChildren()
    addresses = held.addresses
    places = {parts: tuple(addresses[i * replicas : (i + 1) * replicas]) for i, parts in enumerate(groups)}
    write = partial(_write, Path(folder.name) / "cluster.toml", places, credentials)
    running = ExitStack()
    for end in (held.close, folder.cleanup, children.stop):
        running.callback(end)
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
            progress = shown(None)
            progress.stage(f"start {len(served)} daemons", len(served))
            descriptions = []
            for connection, child in zip(connections, children.children, strict=True):
                descriptions.append(child.awaited(connection))
                progress.advance(1)
    except BaseException:
        children.terminate()
        running.close()
        raise
    children.watch(write)
    for standby in (c for number, c in enumerate(connections) if number % replicas):
        standby.close()
    where = {parts.start: addresses for parts, addresses in places.items()}
    known = connections[::replicas], descriptions[::replicas]
    return LocalCluster(*known, children, folder, credentials, running=running, where=lambda: where)


def _write(
    file: Path, places: Mapping[range, tuple[str, ...]], credentials: Credentials | None, ended: Mapping[str, str]
) -> None:
    """Write the cluster file; ``ended``: how daemons have ended, by address. Readers see a whole file at any time."""
    begun = file.with_suffix(".begun")
    write_cluster(begun, [places[parts] for parts in places for _ in parts], credentials, ended)
    begun.replace(file)


def _end(running: ExitStack, process: int) -> None:
    """Stop the daemons of ``process``. It does nothing in a forked child."""
    if os.getpid() == process:
        running.close()


@contextmanager
def divided_memory(
    dataset: Dataset, groups: Sequence[range], options: Sequence[str], *, replicas: int = 1, readers: int = 1
) -> Iterator[list[str]]:
    """Options of ``atta serve`` for daemons of ``groups`` that share this machine, those that ``options`` lack.

    Within the block others know what these daemons are going to take; afterwards the daemons say it themselves. What
    was chosen is logged as ``atta.memory``, as a warning where memory is short. Raises ConfigError if it cannot fit."""
    joined = any(len(parts) > 1 for parts in groups)
    given = _given(options)
    wish = MemoryWish(
        "copy" if joined else str(given.get("memory", "auto")),
        cache=0 if _size(given, "cache-share") == 0 else _size(given, "cache"),
        buffer=_size(given, "buffer"),
        tables=_size(given, "tables"),
        replicas=replicas,
        readers=readers,
    )
    with machine_room() as (limit, free):
        plan = _planned(needs_of(dataset, groups), limit, free, wish)
        claim(plan.total)
    log.log(logging.WARNING if plan.short else logging.INFO, plan.line)
    try:
        yield memory_options(plan, given, joined=joined)
    finally:
        claim(0)


def _planned(needs: Sequence[Needs], limit: int, free: int, wish: MemoryWish) -> MemoryPlan:
    """The plan; where others have been promised all that is free and have not taken it, as little as possible. Raises
    ConfigError: it does not fit into the memory that is free, whatever is promised."""
    try:
        return plan_memory(needs, MachineRoom(limit, free), wish)
    except ConfigError:
        little = replace(wish, memory="map" if wish.memory == "auto" else wish.memory, cache=wish.cache or 0)
        return plan_memory(needs, MachineRoom(limit, available_bytes()), little)


def memory_options(plan: MemoryPlan, given: Mapping[str, Any], *, joined: bool) -> list[str]:
    """``plan`` as options of ``atta serve``, without those that are ``given``."""
    if plan.bound:
        return []
    memory = [] if joined or given.get("memory", "auto") != "auto" else ["--memory", plan.way]
    return memory + ([] if "cache" in given else ["--cache", str(plan.cache)])


def _given(options: Sequence[str]) -> dict[str, Any]:
    """The values of options by name, also those of a file that ``--config`` names."""
    found: dict[str, Any] = {}
    for word, following in zip_longest(options, options[1:], fillvalue=""):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = value if equals else following
    return {**read_toml(found["config"]), **found} if "config" in found else found


def _size(given: Mapping[str, Any], name: str) -> int | None:
    """Bytes of an option; None: it is not given."""
    if name not in given:
        return None
    amount = amount_of(str(given[name]).removesuffix("%"), SIZES)
    if amount is None:
        raise ConfigError(f"--{name} {given[name]}: is not a size such as 4GiB")
    return int(amount)
