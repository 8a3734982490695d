"""``atta bench partition``: time, memory and quality of partitioning, by Atta's methods and by DistDGL."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.extras import missing, not_installed
from atta.partition import Dataset, Graph
from atta.partition.methods import make_method
from atta_bench.results import BenchReport

__all__ = ["PartitionBench", "run"]

PEERS = ("dgl",)
_TIMEOUT_S = 3600.0
_POLL_S = 0.02


@dataclass(frozen=True)
class PartitionBench:
    """Settings of the benchmark.

    Attributes:
        graph: a graph folder.
        parts: number of partitions.
        methods: each ``NAME`` or ``NAME:KEY=VALUE+KEY=VALUE``; ratios are about the first one.
        vs: peers.
        runs: number of rounds; methods alternate within a round.
    """

    graph: str
    parts: int = 4
    methods: tuple[str, ...] = ("metis", "metis:tame=no", "ldg", "fennel", "block", "random")
    vs: tuple[str, ...] = ()
    runs: int = 1

    def __post_init__(self) -> None:
        for peer in self.vs:
            if peer not in PEERS:
                raise UnknownNameError.of("peer", peer, PEERS)
        for name in ("parts", "runs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: must be at least 1")
        if not self.methods:
            raise ConfigError("--methods: name at least one")
        for spec in self.methods:
            make_method(*_parsed(spec))


def run(bench: PartitionBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError: the graph is damaged.
        AttaError: partitioning failed; a peer that fails only appears with its error in the report.
    """
    graph = Graph.open(bench.graph)
    sizes = {"nodes": sum(graph.schema.node_counts.values()), "edges": sum(graph.schema.edge_counts.values())}
    report = BenchReport("partition", {**asdict(bench), **sizes}, ours=bench.methods[0], drawn="edge_cut")
    for peer in bench.vs:
        if missing(peer):
            report.fail(peer, not_installed(peer))
    systems = [*bench.methods, *(peer for peer in bench.vs if peer not in report.errors)]
    for number in range(bench.runs):
        for system in systems[:: 1 if number % 2 == 0 else -1]:
            if system in report.errors:
                continue
            say(f"round {number + 1} of {bench.runs}: {system}")
            try:
                report.add(system, _measure(bench, system))
            except AttaError as error:
                if system not in PEERS:
                    raise
                report.fail(system, str(error))
    return report


def _parsed(spec: str) -> tuple[str, dict[str, str]]:
    name, _, options = spec.partition(":")
    pairs = [pair.partition("=") for pair in options.split("+")] if options else []
    return name, {key: value for key, _, value in pairs}


def _measure(bench: PartitionBench, system: str) -> dict[str, float]:
    with _scratch(bench.graph) as folder:
        out = Path(folder) / "parts"
        if system in PEERS:
            module = "atta_bench.peers.distdgl.partition"
            return _watched([sys.executable, "-m", module, bench.graph, str(out), str(bench.parts), "train"])
        name, options = _parsed(system)
        words = ["partition", bench.graph, str(out), "--quiet", "--parts", str(bench.parts), "--method", name]
        for key, value in options.items():
            words += ["--option", f"{key}={value}"]
        found = _watched([sys.executable, "-m", "atta.cli.main", *words])
        started = time.perf_counter()
        quality = Dataset.open(out, verify=True).quality
        found["verify_s"] = time.perf_counter() - started
        found["edge_cut"] = float(quality["edge_cut"])
        found["halo_ratio"] = float(quality["halo_ratio"])
        return found | {f"balance_{what}": float(value) for what, value in quality["balance"].items()}


def _scratch(graph: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for a dataset, on the disk of the graph."""
    beside = Path(graph).parent
    try:
        return tempfile.TemporaryDirectory(prefix="atta-bench-partition-", dir=beside)
    except OSError as error:
        raise ConfigError(
            f"--graph {graph}: datasets are made beside it, and {beside} cannot be written to: {error.strerror}"
        ) from None


def _watched(command: list[str]) -> dict[str, float]:
    """Seconds and peak resident memory (GiB) of a command: all its processes, with pages of mapped files."""
    env = {**os.environ, "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}
    started = time.perf_counter()
    with tempfile.TemporaryFile(mode="w+") as errors:
        child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=errors)
        peak, done = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(child.pid, peak, done), daemon=True)
        watcher.start()
        try:
            status = child.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        seconds = time.perf_counter() - started
        done.set()
        watcher.join()
        if status:
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            raise AttaError(f"exit status {status}: {lines[-1] if lines else 'no message'}")
    return {"seconds": seconds, "peak_gib": peak[0] / 2**30}


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    try:
        root = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    while not done.wait(_POLL_S):
        total = 0
        for process in _family(root):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
        peak[0] = max(peak[0], total)


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []
