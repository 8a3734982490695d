"""``atta bench partition``: time, memory and quality of partitioning, by Atta's methods and by DistDGL. As a script: peak
memory of `atta partition --engine ray` on three nodes beside that of one process.

    python -m bench.pieces.partition [--nodes 1000000] [--edges 50000000] [--parts 4] [--work data/partition-ray]

A power-law graph is partitioned by LDG: once by one process, once by Ray on three nodes of this machine, which compare
their files at the end. A node's figure is the sum over the processes below its raylet of the memory that is theirs
alone (anonymous memory; pages of mapped files are shared and given back when memory is short) beyond what they held
before the run. The process that asks, which places the vertices, counts to its own node, the first. Writes
partition-ray.json and partition-ray.md. Bound: every node's peak is below that of the one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import psutil

from atta.errors import AttaError, ConfigError
from atta.observe.settings import Option, check_bounds, named_settings
from atta.partition import Dataset, Graph
from atta.partition.generate import GenerateOptions, generate
from atta.partition.methods import make_method
from atta_bench.command import measured
from atta_bench.lab.rounds import PEERS, alternate
from atta_bench.results import ROOT, BenchReport, arguments_of, document, head, rows_of, write

_TIMEOUT_S = 3600.0
_POLL_S = 0.02


@dataclass(frozen=True)
class PartitionBench:
    """Settings of the benchmark."""

    graph: Annotated[str, Option("Graph folder.")]
    parts: Annotated[int, Option("Number of partitions.", at_least=1)] = 4
    methods: Annotated[
        tuple[str, ...], Option("NAME or NAME:KEY=VALUE,KEY=VALUE each; ratios are about the first.")
    ] = ("metis", "metis:tame=no", "ldg", "fennel", "block", "random")
    vs: Annotated[
        tuple[str, ...], Option("Peers: dgl (dgl.distributed.partition_graph; needs atta[dgl]).", choices=PEERS)
    ] = ()
    runs: Annotated[int, Option("Rounds; methods alternate within a round.", at_least=1)] = 1

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.methods:
            raise ConfigError("--methods: name at least one")
        for spec in self.methods:
            make_method(*named_settings(spec))


def run(bench: PartitionBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises DataError: the graph is damaged; AttaError: partitioning failed; a peer that fails only appears with its
    error in the report.
    """
    graph = Graph.open(bench.graph)
    sizes = {"nodes": sum(graph.schema.node_counts.values()), "edges": sum(graph.schema.edge_counts.values())}
    report = BenchReport("partition", {**asdict(bench), **sizes}, ours=bench.methods[0], drawn="edge_cut")
    for peer in bench.vs:
        report.lacks(peer, peer)
    names = [*bench.methods, *(peer for peer in bench.vs if peer not in report.errors)]
    systems: dict[str, Callable[[Path], dict[str, float]]] = {name: partial(_measure, bench, name) for name in names}
    alternate(systems, bench.runs, report, lambda found: found, say=say)
    return report


def _measure(bench: PartitionBench, system: str, _: Path) -> dict[str, float]:
    with _scratch(bench.graph) as folder:
        out = Path(folder) / "parts"
        if system in PEERS:
            module = "atta_bench.lab.distdgl"
            return _watched([sys.executable, "-m", module, bench.graph, str(out), str(bench.parts), "train"])
        words = ["partition", bench.graph, str(out), "--quiet", "--parts", str(bench.parts), "--method", system]
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
        watch = GroupPeak({"all": [child.pid]}, _POLL_S)
        watch.start()
        try:
            status = child.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        seconds = time.perf_counter() - started
        watch.stop()
        if status:
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            raise AttaError(f"exit status {status}: {lines[-1] if lines else 'no message'}")
    return {"seconds": seconds, "peak_gib": watch.peaks["all"]["resident"] / 2**30}


MIB, NODES, LOOK_S = 1 << 20, 3, 0.1
KINDS = ("anonymous", "resident")
Figures = dict[str, float]


class GroupPeak(threading.Thread):
    """Samples groups of processes: each is that of some roots and all that they have started."""

    def __init__(self, groups: Mapping[str, Sequence[int]], every_s: float = LOOK_S) -> None:
        super().__init__(daemon=True)
        self._groups, self._every_s, self._end = groups, every_s, threading.Event()
        self.peaks = {name: dict.fromkeys(KINDS, 0) for name in groups}

    def run(self) -> None:
        while not self._end.wait(self._every_s):
            for name, roots in self._groups.items():
                found = held(roots)
                for kind in KINDS:
                    self.peaks[name][kind] = max(self.peaks[name][kind], found[kind])

    def stop(self) -> None:
        """Take no more samples."""
        self._end.set()
        self.join()


def held(roots: Sequence[int]) -> dict[str, int]:
    """Bytes of the processes ``roots`` and of all below them."""
    total = dict.fromkeys(KINDS, 0)
    seen: set[int] = set()
    for root in roots:
        try:
            top = psutil.Process(root)
            family = [top, *top.children(recursive=True)]
        except psutil.Error:  # it has ended
            continue
        for process in family:
            if process.pid not in seen:
                seen.add(process.pid)
                resident, anonymous = _memory(process.pid)
                total["resident"] += resident
                total["anonymous"] += anonymous
    return total


def _memory(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0, 0
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    found = [int(values.get(name, "0 kB").split()[0]) << 10 for name in ("VmRSS", "RssAnon")]
    return found[0], found[1]


@contextmanager
def ray_nodes(count: int, cpus: int) -> Iterator[Any]:
    """Ray as on ``count`` machines with so many cores each. Yields its ``Cluster``."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    try:
        for _ in range(count - 1):
            cluster.add_node(num_cpus=cpus)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace="atta", log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def words_of(source: Path, target: Path, given: Namespace, *more: str) -> list[str]:
    """The command of a run."""
    words = [sys.executable, "-m", "atta.cli.main", "partition", str(source), str(target), "--parts", str(given.parts)]
    return [*words, "--method", "ldg", "--seed", "1", "--overwrite", "--quiet", *more]


def alone(source: Path, target: Path, given: Namespace) -> dict[str, Any]:
    """One process."""
    began = time.monotonic()
    with subprocess.Popen(words_of(source, target, given)) as process:
        watch = GroupPeak({"one process": [process.pid]})
        watch.start()
        code = process.wait()
        watch.stop()
    if code:
        raise SystemExit(f"atta partition ended with {code}")
    return {"seconds": time.monotonic() - began, "peaks": watch.peaks}


def on_ray(source: Path, target: Path, given: Namespace) -> dict[str, Any]:
    """Three nodes, one core each."""
    with ray_nodes(NODES, cpus=1) as cluster:
        nodes = [cluster.head_node, *cluster.worker_nodes]
        raylets = {f"node {n}": [_raylet(node)] for n, node in enumerate(nodes)}
        before = {name: held(pids) for name, pids in raylets.items()}
        began = time.monotonic()
        process = subprocess.Popen(words_of(source, target, given, "--engine", "ray"), env=_address(cluster))
        watch = GroupPeak({**raylets, "asking process": [process.pid], "node 0": [*raylets["node 0"], process.pid]})
        watch.start()
        code = process.wait()
        watch.stop()
    if code:
        raise SystemExit(f"atta partition --engine ray ended with {code}")
    return {"seconds": time.monotonic() - began, "peaks": watch.peaks, "before": before}


def _raylet(node: Any) -> int:
    """The process id of a node's raylet."""
    return int(node.all_processes["raylet"][0].process.pid)


def _address(cluster: Any) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": str(cluster.address)}


def same(one: Path, other: Path) -> bool:
    """Whether two folders have the same files."""
    return subprocess.run(["diff", "-rq", str(one), str(other)], check=False).returncode == 0


def main() -> None:
    """Measure and write the record."""
    given = arguments_of(
        __file__,
        __doc__,
        nodes=(1000000, "vertices"),
        edges=(50000000, "edges"),
        parts=(4, "partitions"),
        work=(ROOT / "data/partition-ray", "where the graph is kept"),
    )
    source = given.work / f"{given.nodes}-{given.edges}"
    if not (source / "graph.json").exists():
        sizes = {"nodes": given.nodes, "edges": given.edges, "features": 32, "classes": 8, "seed": 0}
        generate("powerlaw", source, GenerateOptions(**sizes), overwrite=True)
    found = {"one process": alone(source, given.work / "alone", given)}
    print(found, flush=True)
    found["ray"] = on_ray(source, given.work / "on-ray", given)
    found["ray"]["same_files"] = same(given.work / "alone", given.work / "on-ray")
    print(found["ray"], flush=True)
    record(found, given, given.typed)


def record(found: dict[str, dict[str, Any]], given: Namespace, typed: str) -> None:
    """Write the figures."""
    about = document("partition-ray", command=typed, found=found)
    lines = head("atta partition --engine ray: memory", about, f"LDG, {given.parts} partitions, peaks in MiB")
    before = found["ray"]["before"]
    rows = []
    for run in found.values():
        for name, peak in run["peaks"].items():
            own = {kind: peak[kind] - before.get(name, {}).get(kind, 0) for kind in KINDS}
            rows.append([name, *(f"{own[kind] / MIB:,.0f}" for kind in KINDS)])
    lines += rows_of(["where", "anonymous memory", "resident, with mapped files"], *rows)
    took = ", ".join(f"{name} {run['seconds']:.1f} s" for name, run in found.items())
    lines += ["", f"Time: {took}. Same files: {'yes' if found['ray']['same_files'] else 'no'}."]
    write(given.out / "partition-ray.json", about, lines)


@measured(PartitionBench, run, "Draw the edge cuts.")
def partition_() -> None:
    """Time, memory and quality of partitioning methods, from graph folder to dataset.

    Example: atta bench partition --graph graphs/demo --parts 4 --methods metis,ldg --vs dgl --json partition.json
    """


if __name__ == "__main__":
    main()
