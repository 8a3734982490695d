"""Peak memory of `atta partition --engine ray` on three nodes beside that of one process.

    python -m bench.partitioning.on_ray [--nodes 1000000] [--edges 50000000] [--parts 4] [--work data/partition-ray]

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
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from atta.partition.generate import GenerateOptions, generate
from atta_bench.record import ROOT, command, document, head, parser_of, rows_of, write

MIB, NODES, LOOK_S = 1 << 20, 3, 0.1
KINDS = ("anonymous", "resident")
Figures = dict[str, float]


class GroupPeak(threading.Thread):
    """Samples groups of processes: each is that of some roots and all that they have started."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        super().__init__(daemon=True)
        self._groups, self._end = groups, threading.Event()
        self.peaks = {name: dict.fromkeys(KINDS, 0) for name in groups}

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
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
    parser = parser_of(__file__, __doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="vertices [1000000]")
    parser.add_argument("--edges", type=int, default=50_000_000, help="edges [50000000]")
    parser.add_argument("--parts", type=int, default=4, help="partitions [4]")
    parser.add_argument("--work", type=Path, default=ROOT / "data/partition-ray", help="where the graph is kept")
    given = parser.parse_args()
    source = given.work / f"{given.nodes}-{given.edges}"
    if not (source / "graph.json").exists():
        sizes = {"nodes": given.nodes, "edges": given.edges, "features": 32, "classes": 8, "seed": 0}
        generate("powerlaw", source, GenerateOptions(**sizes), overwrite=True)
    found = {"one process": alone(source, given.work / "alone", given)}
    print(found, flush=True)
    found["ray"] = on_ray(source, given.work / "on-ray", given)
    found["ray"]["same_files"] = same(given.work / "alone", given.work / "on-ray")
    print(found["ray"], flush=True)
    record(found, given, command(parser, given))


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


if __name__ == "__main__":
    main()
