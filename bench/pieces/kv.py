"""``atta bench kv``: how fast table rows move, beside the limits of the machine and other libraries.

Rows are gathered in memory, pulled from a daemon, read from mutable tables (by memory and in messages) and pushed to
them. Each of these has a
measuring process of its own, so that libraries do not disturb each other. Within a process the ways to do it alternate.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from atta.errors import AttaError, ConfigError, DataError
from atta.observe.settings import Option, check_bounds
from atta.partition import Dataset, GraphWriter, partition_graph
from atta_bench.command import measured
from atta_bench.graphs import work_folder
from atta_bench.lab.flow import flow_bytes_per_s
from atta_bench.lab.netlab import Host, NetLab, addresses_on, bits_per_s, loopback
from atta_bench.lab.rounds import serve_command
from atta_bench.lab.workload import Seed
from atta_bench.pieces.kv_rows import GatherConfig, PullConfig
from atta_bench.pieces.kv_tables import ReadsConfig, TablesConfig
from atta_bench.results import BenchReport

_TABLE_ROWS = 500_000
_CHUNK_VALUES = 8 << 20
_PORTS = (7070, 7071)
_PULLS = 8
"""Number of pulls that are timed together where the link is not shaped: one takes only milliseconds."""
_TIMEOUT_S = 1800.0

Figures = dict[str, dict[str, float]]
"""System -> figure -> value."""


@dataclass(frozen=True)
class KvBench:
    """Settings of the benchmark. Rows of an operation are distinct and random."""

    rows: Annotated[int, Option("Rows of the float32 table to gather and pull from.", at_least=1)] = 2_000_000
    dim: Annotated[int, Option("Columns of that table.", at_least=1)] = 100
    batch: Annotated[int, Option("Rows per operation, distinct and random.", at_least=1)] = 100_000
    threads: Annotated[
        tuple[int, ...],
        Option("Threads of the local gather; all else takes the first number.", at_least=1, at_most=1024),
    ] = (1, 2)
    repeats: Annotated[int, Option("Timed operations per way and round.", at_least=1)] = 10
    runs: Annotated[int, Option("Rounds; the ways alternate within a round.", at_least=1)] = 5
    vs: Annotated[
        tuple[str, ...], Option("Peers besides torch and numpy: dgl (needs atta[dgl]).", choices=("dgl",))
    ] = ()
    link: Annotated[
        str | None, Option("Also pull over a link of this rate, e.g. 1gbit; needs root.", metavar="RATE")
    ] = None
    work: Annotated[
        str | None, Option("Keep the generated table here.", metavar="DIR", unset="atta in the user's cache folder")
    ] = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(set(self.threads)) != len(self.threads) or not self.threads:
            raise ConfigError(f"--threads {','.join(map(str, self.threads))}: name different numbers")
        if self.batch > self.rows:
            raise ConfigError(f"--batch {self.batch}: rows are distinct, and there are {self.rows}")
        if self.link is not None:
            bits_per_s(self.link)  # says what is wrong with the rate

    @property
    def table_rows(self) -> int:
        """Number of rows of the mutable tables: fewer than ``rows``, since Adam triples the memory of a table."""
        return min(self.rows, max(_TABLE_ROWS, self.batch))

    @property
    def capacity(self) -> float:
        """Bytes per second that the link carries, headers included; 0 without a link."""
        return bits_per_s(self.link) / 8 if self.link else 0.0


def run(bench: KvBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises ConfigError: a setting is wrong; AttaError: Atta itself failed; a peer that fails only appears with its error
    in the report.
    """
    config = {**asdict(bench), "row_bytes": 4 * bench.dim, "table_rows": bench.table_rows}
    bounds = {"link/bytes_per_s": "link_capacity_bytes_per_s"} if bench.link else {}
    report = BenchReport("kv", config, drawn="gather/bytes_per_s", limit_of=bounds)
    for package in ("torch", *bench.vs):
        report.lacks(package, package)
    say("generating the table, unless it is there")
    dataset = prepare(bench)
    with contextlib.ExitStack() as stack:
        hosts = list(stack.enter_context(NetLab(2, rate=bench.link)).hosts) if bench.link else []
        for number in range(bench.runs):

            def tell(what: str, number: int = number) -> None:
                say(f"round {number + 1} of {bench.runs}: {what}")

            tell("limits of the machine")
            report.add_limits(_limits(bench, hosts))
            found = _gathers(bench, dataset, report, number, tell)
            _merge(found, _served(bench, dataset, loopback(2), tell))
            if hosts:
                _merge(found, _served(bench, dataset, hosts, tell))
            for system, values in found.items():
                if system not in report.errors:
                    report.add(system, values)
    return report


def prepare(bench: KvBench) -> Path:
    """The folder of the dataset, made if need be: one part, one edge, a table ``x`` float32 [rows, dim] of noise."""
    folder = work_folder(bench.work) / f"kv-{bench.rows}x{bench.dim}"
    try:
        Dataset.open(folder, verify=False)
        return folder
    except DataError:  # it does not exist, or another version wrote it
        folder.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix=".kv-", dir=folder.parent) as scratch:
        graph = Path(scratch) / "graph"
        with GraphWriter(graph) as out:
            out.add_nodes("node", bench.rows)
            table, step = out.open_table("x", np.float32, (bench.dim,)), max(1, _CHUNK_VALUES // bench.dim)
            for first in range(0, bench.rows, step):
                table.append(rng.random((min(step, bench.rows - first), bench.dim), dtype=np.float32))
            out.add_edges("node__to__node", np.zeros(1, np.int64), np.zeros(1, np.int64))
        partition_graph(graph, folder, parts=1, method="random", verify=False, overwrite=True)
    return folder


def figures(section: str, found: Figures) -> Figures:
    """``found`` with the section in front of the name of every figure."""
    return {system: {f"{section}/{name}": value for name, value in values.items()} for system, values in found.items()}


def _merge(into: Figures, more: Figures) -> None:
    for system, values in more.items():
        into.setdefault(system, {}).update(values)


def _limits(bench: KvBench, hosts: Sequence[Host]) -> dict[str, float]:
    """Bytes per second between two processes: over a TCP connection, and in a gRPC stream without asyncio."""
    here, there = loopback(2)
    found = {f"{kind}_bytes_per_s": flow_bytes_per_s(here, there, kind) for kind in ("tcp", "grpc")}
    if hosts:
        found["link_capacity_bytes_per_s"] = bench.capacity
        found["link_tcp_bytes_per_s"] = flow_bytes_per_s(hosts[0], hosts[1], "tcp", seconds=1.0)
    return found


def _gathers(bench: KvBench, dataset: Path, report: BenchReport, number: int, say: Callable[[str], None]) -> Figures:
    """Local gathers with every number of threads."""
    found: Figures = {}
    jobs = [(system, threads) for threads in bench.threads for system in ("atta", *bench.vs)]
    for system, threads in jobs[:: 1 if number % 2 == 0 else -1]:
        if system in report.errors:
            continue
        say(f"gather, {system}, threads: {threads}")
        config = GatherConfig(str(dataset), system, bench.batch, threads, bench.repeats, bench.seed + number)
        section = "gather" if threads == bench.threads[0] else f"gather-{threads}-threads"
        try:
            _merge(found, figures(section, _ask(loopback(1)[0], "gather", _json(config), threads)))
        except AttaError as error:
            if system == "atta":
                raise
            report.fail(system, str(error))
    return found


def _served(bench: KvBench, dataset: Path, hosts: Sequence[Host], say: Callable[[str], None]) -> Figures:
    """Figures of pulling from a daemon on the first host to the second, and on loopback of mutable tables."""
    shaped = hosts[0].interface is not None
    threads = bench.threads[0]
    with tempfile.TemporaryDirectory(prefix="atta-bench-kv-") as logs, contextlib.ExitStack() as stack:
        addresses = stack.enter_context(addresses_on([(hosts[0], port) for port in _PORTS]))
        serve = _serve_command(bench, dataset, addresses[0])
        daemon = stack.enter_context(_background(hosts[0], serve, Path(logs) / "daemon.log"))
        send = _process("send", addresses[1])
        sender = stack.enter_context(_background(hosts[0], send, Path(logs) / "sender.log"))
        say(f"pull{' over the link' if shaped else ''}")
        common = {"batch": bench.batch, "threads": threads, "repeats": bench.repeats, "seed": bench.seed}
        pull = PullConfig(
            dataset=str(dataset),
            daemon=addresses[0],
            sender=addresses[1],
            daemon_pid=daemon.pid,
            sender_pid=sender.pid,
            together=1 if shaped else _PULLS,
            **common,
        )
        found = _ask(hosts[1], "pull", _json(pull), threads)
        if shaped:
            for values in found.values():
                values["capacity_share"] = values["bytes_per_s"] / bench.capacity
            return figures("link", found)
        say("mutable tables")
        config = TablesConfig(address=addresses[0], rows=bench.table_rows, dim=bench.dim, **common)
        tables = _ask(hosts[1], "tables", _json(config), threads)
        reads = ReadsConfig(
            address=addresses[0],
            daemon_pid=daemon.pid,
            rows=bench.table_rows,
            dim=bench.dim,
            batch=bench.batch,
            repeats=bench.repeats,
            seed=bench.seed,
        )
        result = figures("pull", found)
        _merge(result, figures("tables", tables))
        _merge(result, figures("reads", _ask(hosts[1], "reads", _json(reads), threads)))
        return result


def _serve_command(bench: KvBench, dataset: Path, address: str) -> list[str]:
    quota = 4 * 4 * bench.dim * bench.table_rows + (64 << 20)  # Adam's table and some room
    options = ("--threads", str(bench.threads[0]), "--memory", "copy", "--tables", str(quota))
    return serve_command(dataset, 0, address, None, *options)


def _process(what: str, argument: str) -> list[str]:
    """The command of a measuring process."""
    home = "kv_tables" if what in ("tables", "reads") else "kv_rows"
    return [sys.executable, "-m", f"atta_bench.pieces.{home}", what, argument]


def _json(config: Any) -> str:
    return json.dumps(asdict(config))


@contextlib.contextmanager
def _background(host: Host, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives as long as the block."""
    with log.open("wb") as out:
        process = host.popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
    try:
        yield process
    except AttaError as error:
        if process.poll() is None:
            raise
        raise AttaError(f"{error}; {log.stem}: {_end_of(log.read_text(errors='replace'))}") from error
    finally:
        process.kill()
        process.communicate()


def _ask(host: Host, what: str, settings: str, threads: int) -> Figures:
    return ask(host, _process(what, settings), threads, what)


def ask(host: Host, command: Sequence[str], threads: int, what: str) -> dict[str, Any]:
    """The figures that a measuring process prints in the end. Raises AttaError: it failed, or was not done in time."""
    env = {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}
    process = host.popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise AttaError(f"{what}: not done after {_TIMEOUT_S:g} s") from None
    finally:
        process.kill()
        process.communicate()
    if process.returncode:
        raise AttaError(f"{what}: {_end_of(err.decode(errors='replace'))}")
    found: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return found


def _end_of(text: str) -> str:
    return " | ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())[-600:]


@measured(KvBench, run, "Draw bytes per second of the local gather.")
def kv() -> None:
    """Table rows: gathered in memory, pulled from a daemon, read from mutable tables and pushed to them.

    Example: atta bench kv --rows 2000000 --dim 100 --batch 100000 --vs dgl --link 1gbit --json kv.json
    """
