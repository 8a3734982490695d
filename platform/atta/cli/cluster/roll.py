"""``atta roll``: restart the daemons of a cluster one after another."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from atta.cli.cluster.rolling import Roll, Seen
from atta.cli.options import command
from atta.cli.output import DURATION, echo, json_option, quiet_option, write_json
from atta.client.control import Connection, Description
from atta.client.every import DaemonAnswer, ask_all, check_operator
from atta.errors import AttaError, ConfigError, UnavailableError, blaming
from atta.observe.machine.processor import machine_id
from atta.wire.clusterfile import credentials_for, resolve_target
from atta.wire.credentials import Credentials
from atta.wire.parts import Addresses

ANSWER_S = 5.0
"""How long a daemon may take to answer."""
COMMAND_S = 60.0
"""How long ``--command`` may take."""


class RunningFleet:
    """Daemons behind addresses. A supervisor starts a daemon that has ended, or ``command`` does, or it is started here
    as it ran (``local``)."""

    def __init__(
        self, addresses: Mapping[int, Addresses], credentials: Credentials | None, *, command: str, local: bool
    ) -> None:
        """``command``: ``{part}``, ``{address}`` and ``{host}`` stand for those of the daemon. ConfigError: others do."""
        self._addresses, self._credentials, self._command, self._local = addresses, credentials, command, local
        self._pids: dict[str, int] = {}
        self._captured: dict[str, LocalProcess] = {}
        if command:
            self._words(Seen(0, "host:1"))  # a mistake is refused before anything stops

    def look(self) -> list[Seen]:
        """All daemons."""
        answers = ask_all(self._addresses, Connection.describe, deadline_s=ANSWER_S, credentials=self._credentials)
        return [self._seen(answer) for answer in answers]

    def _seen(self, answer: DaemonAnswer[Description]) -> Seen:
        found = answer.value
        if found is None:
            away = isinstance(answer.error, UnavailableError) and is_gone(self._pids.get(answer.address, 0))
            return Seen(answer.part, answer.address, leaving=not away)
        pid = found.pid if found.machine == machine_id() and not is_gone(found.pid) else 0
        return Seen(answer.part, answer.address, found.incarnation, found.draining, pid=pid, version=found.version)

    def stop(self, daemon: Seen) -> None:
        """Ask it to drain and exit."""
        if self._local:
            self._captured[daemon.address] = LocalProcess(daemon)
        self._pids[daemon.address] = daemon.pid
        asked = Connection(daemon.address, ANSWER_S, part=daemon.part, credentials=self._credentials)
        with contextlib.closing(asked) as connection:
            connection.stop()

    def start(self, daemon: Seen) -> None:
        """Run the command, or start the process that ran here; else a supervisor does."""
        self._pids.pop(daemon.address, None)
        if self._command:
            self._run(self._words(daemon))
        elif self._local:
            if daemon.address not in self._captured:
                raise ConfigError(f"{daemon.address} is down, so --local cannot see how to start it")
            self._captured.pop(daemon.address).start()

    def _words(self, daemon: Seen) -> list[str]:
        place = {"part": daemon.part, "address": daemon.address, "host": daemon.address.rpartition(":")[0]}
        try:
            return [word.format(**place) for word in shlex.split(self._command)]
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(f"--command {self._command!r}: {error}; give {{part}}, {{address}}, {{host}}") from None

    @staticmethod
    def _run(words: list[str]) -> None:
        with blaming(AttaError, f"--command {shlex.join(words)}", of=(OSError, subprocess.SubprocessError), say=str):
            subprocess.run(words, check=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL, start_new_session=True)

    def unreached(self) -> list[str]:
        """Addresses that some daemon does not reach; daemons that do not answer tell nothing."""
        told = ask_all(self._addresses, Connection.unreached, deadline_s=ANSWER_S, credentials=self._credentials)
        return sorted({address for answer in told for address in answer.value or ()})

    def close(self) -> None:
        """Let go of processes that were captured and not started."""
        for process in self._captured.values():
            process.close()


class LocalProcess:
    """How a daemon on this machine was started: its command, folder, environment and standard streams. The streams stay
    open here. So one that ends with its parent, by the end of its standard input, does so again."""

    def __init__(self, daemon: Seen) -> None:
        """Read it while the daemon runs. Raises ConfigError: it does not run here, or belongs to somebody else."""
        if not daemon.pid:
            raise ConfigError(f"{daemon.address} does not run on this machine: leave out --local")
        process = Path(f"/proc/{daemon.pid}")
        self._streams: list[int] = []
        try:
            self._words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
            if "serve" not in self._words:
                raise ConfigError(f"{daemon.address}: process {daemon.pid} is not atta serve: leave out --local")
            entries = (entry.partition(b"=") for entry in (process / "environ").read_bytes().split(b"\0") if entry)
            self._environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}
            self._folder = os.readlink(process / "cwd")
            for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)):
                self._streams.append(os.open(process / "fd" / str(number), mode))
        except OSError as error:
            self.close()
            raise ConfigError(f"{daemon.address}: process {daemon.pid} cannot be read: {error}") from error

    def start(self) -> None:
        """Start the same again, detached from this process."""
        stdin, stdout, stderr = self._streams
        try:
            subprocess.Popen(
                self._words,
                cwd=self._folder,
                env=self._environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise AttaError(f"cannot start {self._words[0]} again: {error}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the streams."""
        for stream in self._streams:
            os.close(stream)
        self._streams = []


def is_gone(pid: int) -> bool:
    """Whether a process of this machine has ended; also if nobody has waited for it yet. 0: not of this machine."""
    with contextlib.suppress(OSError):
        return not pid or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    return True


@command()
@click.argument("target", metavar="CLUSTER")
@click.option("--command", default="", help="Starts a daemon that has ended; {part}, {address} and {host} are its own.")
@click.option("--local", is_flag=True, help="Start daemons of this machine again as they ran: atta serve, atta.local.")
@click.option(
    "--timeout",
    type=DURATION.at_least("1s"),
    default="2min",
    help="For a daemon to stop, and again to start, and to be seen by its peers.",
)
@click.option("--allow-pause", is_flag=True, help="Restart also the only daemon of a part: its consumers wait.")
@json_option
@quiet_option
def roll(
    *, target: str, command: str, local: bool, timeout: float, allow_pause: bool, json_file: str | None, quiet: bool
) -> None:
    """Restart the daemons of a cluster one after another, while jobs go on.

    Each drains, ends, and is started again by its supervisor, by --command or by --local. The next one follows when its
    successor serves and all daemons reach each other. Consumers move to a replica, or wait for the daemon. Ctrl-C ends
    it after the daemon at hand, a second one at once.

    Example: atta roll cluster.toml --command "ssh {host} sudo systemctl start atta-daemon-{part}"
    """

    if command and local:
        raise ConfigError("--command and --local: give one of them")
    addresses, credentials = resolve_target(target), credentials_for(target)
    fleet = RunningFleet(addresses, credentials, command=command, local=local)
    check_operator(addresses, deadline_s=ANSWER_S, credentials=credentials)

    def tell(line: str) -> None:
        if not quiet:
            echo(line, err=json_file == "-")

    rolling = Roll(
        fleet, addresses, allow_pause=allow_pause, timeout_s=timeout, tell=tell, clock=time.monotonic, sleep=time.sleep
    )
    try:
        with _patient(tell) as interrupted:
            rolling.run(interrupted)
    finally:
        fleet.close()
        write_json(json_file, {"schema": 1, "cluster": target, "daemons": [one.to_dict() for one in rolling.rolled]})


@contextmanager
def _patient(tell: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Make the first Ctrl-C only be noted; what is yielded tells it. A second one interrupts as usual."""
    noted: list[bool] = []

    def note(number: int, frame: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(True)
        tell("interrupted: this daemon is restarted to the end; Ctrl-C again ends at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


COMMANDS = [roll]
