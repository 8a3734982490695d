"""``atta bench loader``: mini-batches per second, sampling and feature fetching included, with nobody training.

Every system runs as its users run it: one daemon (server) and one consumer per partition. Rounds alternate between systems, so
that a machine that slows down slows all of them down; ratios pair the figures of a round. The first epoch of a round warms up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from atta.bench import limits
from atta.bench.netlab import NetLab, unavailable
from atta.bench.peers import distdgl
from atta.bench.report import BenchReport
from atta.client.local import free_addresses
from atta.clusterfile import write_cluster
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition.dataset import Dataset

__all__ = ["LoaderBench", "run"]

PEERS = ("dgl",)


@dataclass(frozen=True)
class LoaderBench:
    """Settings of the benchmark."""

    data: str
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    vs: tuple[str, ...] = ()
    runs: int = 5
    epochs: int = 4
    """Per round, the first of which is not counted."""
    threads: int = 1
    """Of every daemon and every peer's process."""
    netns: str = "auto"
    """"on": each machine in a network namespace; "off": loopback; "auto": on when a peer needs it."""
    link: str | None = None
    """Rate of the links between the namespaces, e.g. 1gbit."""
    frontier: str | None = None
    """"all": every hop expands every known vertex, as DGL does; "new": once only, as PyG does. Default: "all" beside DGL."""
    work: str | None = None
    """Folder for converted datasets (default: a temporary one)."""

    def __post_init__(self) -> None:
        for peer in self.vs:
            if peer not in PEERS:
                raise UnknownNameError.of("peer", peer, PEERS)
        if self.netns not in ("auto", "on", "off"):
            raise UnknownNameError.of("--netns", self.netns, ("auto", "on", "off"))
        if self.runs < 1 or self.epochs < 2:
            raise ConfigError("at least one run of two epochs: the first epoch warms up")
        if self.link and self.netns == "off":
            raise ConfigError("--link shapes the links between namespaces: not with --netns off")


def run(bench: LoaderBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
    """
    dataset = Dataset.open(bench.data, verify=False)
    frontier = bench.frontier or ("all" if "dgl" in bench.vs else "new")
    config = {**asdict(bench), "frontier": frontier, "parts": dataset.num_parts, "dataset_id": dataset.dataset_id}
    report = BenchReport("loader", config)
    node_type = dataset.schema.node_types[0]
    row_bytes = sum(t.row_bytes for t in dataset.schema.node_tables[node_type].values())
    say("measuring the machine's limits")
    report.limits = {
        "copy_bytes_per_s": limits.copy_bytes_per_s(),
        "gather_bytes_per_s": limits.gather_bytes_per_s(max(1, row_bytes)),
    }
    with contextlib.ExitStack() as stack:
        work = Path(bench.work or stack.enter_context(tempfile.TemporaryDirectory(prefix="atta-bench-")))
        work.mkdir(parents=True, exist_ok=True)
        lab = _lab(bench, dataset.num_parts, stack)
        systems: dict[str, Callable[[], contextlib.AbstractContextManager[list[subprocess.Popen[str]]]]] = {
            "atta": lambda: _atta(bench, dataset, frontier, lab)
        }
        if frontier == "all":
            systems["atta-new"] = lambda: _atta(bench, dataset, "new", lab)
        if "dgl" in bench.vs:
            _add_dgl(bench, dataset, lab, work, systems, report, say)
        for number in range(bench.runs):
            for name, system in systems.items():
                say(f"round {number + 1} of {bench.runs}: {name}")
                report.add(name, _round(system, bench.epochs, lab))
    return report


def _lab(bench: LoaderBench, machines: int, stack: contextlib.ExitStack) -> NetLab | None:
    wanted = bench.netns == "on" or bench.link is not None or (bench.netns == "auto" and bool(bench.vs))
    if not wanted or (bench.netns == "auto" and bench.link is None and unavailable()):
        return None
    return stack.enter_context(NetLab(machines, rate=bench.link))


def _add_dgl(
    bench: LoaderBench,
    dataset: Dataset,
    lab: NetLab | None,
    work: Path,
    systems: dict[str, Callable[[], contextlib.AbstractContextManager[list[subprocess.Popen[str]]]]],
    report: BenchReport,
    say: Callable[[str], None],
) -> None:
    if lab is None or (reason := distdgl.why_not()):
        report.fail("dgl", (distdgl.why_not() or "DistDGL needs network namespaces: not with --netns off"))
        return
    try:
        say("converting the dataset for DistDGL")
        parts = distdgl.convert(bench.data, work, dataset.dataset_id)
    except AttaError as error:
        report.fail("dgl", str(error))
        return

    @contextlib.contextmanager
    def start() -> Iterator[list[subprocess.Popen[str]]]:
        consumers = distdgl.start(
            lab,
            parts,
            work,
            num_neighbors=bench.num_neighbors,
            batch_size=bench.batch_size,
            epochs=bench.epochs,
            threads=bench.threads,
        )
        with _stopping(consumers):
            yield consumers

    systems["dgl"] = start


@contextlib.contextmanager
def _atta(
    bench: LoaderBench, dataset: Dataset, frontier: str, lab: NetLab | None
) -> Iterator[list[subprocess.Popen[str]]]:
    """Daemons and consumers of Atta, the consumers not yet begun."""
    machines = dataset.num_parts
    addresses = free_addresses(machines) if lab is None else [f"{a}:7070" for a in lab.addresses]
    with tempfile.TemporaryDirectory(prefix="atta-bench-") as folder:
        cluster = f"{folder}/cluster.toml"
        write_cluster(cluster, addresses)
        daemons, consumers = [], []
        for machine, address in enumerate(addresses):
            serve = [sys.executable, "-m", "atta.cli.main", "serve", "--data", bench.data, "--part", str(machine)]
            serve += ["--listen", address, "--peers", cluster, "--threads", str(bench.threads), "--no-verify"]
            serve += ["--log-level", "warning", "--drain-s", "0"]
            daemons.append(_start(serve, lab, machine, {}))
            settings = {
                "addresses": addresses,
                "rank": machine,
                "world": machines,
                "num_neighbors": list(bench.num_neighbors),
                "batch_size": bench.batch_size,
                "epochs": bench.epochs,
                "frontier": frontier,
            }
            consume = [sys.executable, "-m", "atta.bench.consumer"]
            consumers.append(_start(consume, lab, machine, {"ATTA_BENCH": json.dumps(settings)}))
        with _stopping([*consumers, *daemons]):
            yield consumers


def _start(command: list[str], lab: NetLab | None, machine: int, extra: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command if lab is None else lab.command(machine, command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **extra},
        start_new_session=True,
    )


@contextlib.contextmanager
def _stopping(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """End the processes and all that they started."""
    try:
        yield
    finally:
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=patience)


def _round(
    system: Callable[[], contextlib.AbstractContextManager[list[subprocess.Popen[str]]]],
    epochs: int,
    lab: NetLab | None,
) -> dict[str, float]:
    """Figures of one round, over all consumers and all epochs but the first."""
    with system() as consumers:
        for consumer in consumers:
            if _line(consumer) != "ready":
                raise AttaError("a consumer did not come up; its standard error says why")
        for consumer in consumers:
            assert consumer.stdin is not None
            consumer.stdin.write("go\n")
            consumer.stdin.flush()
        reports = [[json.loads(_line(c))] for c in consumers]
        psutil.cpu_percent(None)
        before = _link_bytes(lab)
        start = time.perf_counter()
        for consumer, report in zip(consumers, reports, strict=True):
            report += [json.loads(_line(consumer)) for _ in range(epochs - 1)]
        wall = time.perf_counter() - start
        cpu = psutil.cpu_percent(None)
        moved = _link_bytes(lab) - before
    counted = [epoch for report in reports for epoch in report[1:]]

    def total(name: str) -> float:
        return float(sum(epoch.get(name, 0.0) for epoch in counted))

    def rate(name: str) -> float:
        return sum(
            sum(e.get(name, 0.0) for e in report[1:]) / sum(e["seconds"] for e in report[1:]) for report in reports
        )

    seeds = total("seeds")
    figures = {
        "seeds_per_s": rate("seeds"),
        "edges_per_s": rate("edges"),
        "feature_bytes_per_s": rate("feature_bytes"),
        "vertices_per_seed": total("nodes") / seeds,
        "edges_per_seed": total("edges") / seeds,
        "cpu_percent": cpu,
        "wall_s": wall,
    }
    if any("remote_rows" in e for e in counted):
        figures |= {
            "remote_rows_per_seed": total("remote_rows") / seeds,
            "remote_bytes_per_seed": total("remote_bytes") / seeds,
        }
    if lab is not None:
        figures["link_bytes_per_seed"] = moved / seeds
    return figures


def _line(consumer: subprocess.Popen[str]) -> str:
    assert consumer.stdout is not None
    line = consumer.stdout.readline()
    if not line:
        raise AttaError(f"a consumer ended early (exit code {consumer.wait()}); its standard error says why")
    return line.strip()


def _link_bytes(lab: NetLab | None) -> int:
    return 0 if lab is None else sum(lab.received_bytes(m) for m in range(len(lab.addresses)))
