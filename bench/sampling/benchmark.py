"""``atta bench sampling``: neighbour sampling and compaction in one process, beside other libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.observe.extras import missing, not_installed
from atta.partition.dataset import Dataset
from atta.samplers.methods import Method
from atta_bench.lab import limits
from atta_bench.results import BenchReport
from atta_bench.sampling.worker import SamplerConfig

__all__ = ["SamplingBench", "run"]

PEERS = ("dgl", "pyg")
METHODS = tuple(method.value for method in Method if method is not Method.UNIFORM)
VARIANTS = (*METHODS, "disjoint", "untyped", "hetero", "hetero-16")
_NEEDS = {"dgl": ("dgl",), "pyg": ("torch_geometric", "pyg_lib")}
_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class SamplingBench:
    """Settings of the benchmark.

    Attributes:
        dataset: a dataset of one partition and one edge type.
        num_neighbors: fan-outs, counted from the seeds. Every hop expands all known vertices, as DGL does for its
            blocks.
        batch_size: seeds per batch, drawn at random.
        threads: thread counts; every system runs with each.
        batches: measured batches per round.
        vs: peers.
        variants: other ways to sample, with the first thread count: the methods of ``atta.samplers.methods`` (random
            weights and times; seeds at the median time), ``disjoint`` trees, ``hetero`` (edges of four types between
            four node types), ``untyped`` (the same edges without types), ``hetero-16`` (16 edge types, a quarter of the
            fan-out each).
        runs: number of rounds.
        seed: seed of the choice of vertices.
    """

    dataset: str
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    threads: tuple[int, ...] = (1, 2)
    batches: int = 40
    vs: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    runs: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for peer in self.vs:
            if peer not in PEERS:
                raise UnknownNameError.of("peer", peer, PEERS)
        for variant in self.variants:
            if variant not in VARIANTS:
                raise UnknownNameError.of("variant", variant, VARIANTS)
        for name, values in (("--threads", self.threads), ("--num-neighbors", self.num_neighbors)):
            if not values or any(value < 1 for value in values):
                raise ConfigError(f"{name} {','.join(map(str, values))}: each must be at least 1")
        for name in ("batch_size", "batches", "runs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")


def run(bench: SamplingBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises:
        DataError, ConfigError: the dataset or a setting is wrong.
        AttaError: Atta itself failed; a peer that fails only appears with its error in the report.
    """
    dataset = Dataset.open(bench.dataset, verify=False)
    if dataset.num_parts != 1 or len(dataset.schema.edge_types) != 1:
        raise ConfigError(f"{bench.dataset}: the benchmark takes a dataset of one partition and one edge type")
    edges = dataset.schema.edge_counts[dataset.schema.edge_types[0]]
    vertices = dataset.schema.node_counts[dataset.schema.endpoints(dataset.schema.edge_types[0])[1]]
    if bench.batch_size > vertices:
        raise ConfigError(f"--batch-size {bench.batch_size}: seeds are distinct, and there are {vertices} vertices")
    config, bounds = {**asdict(bench), "edges": edges}, {"edges_per_s": "random_reads_per_s"}
    report = BenchReport("sampling", config, drawn="edges_per_s", limit_of=bounds)
    systems = [("atta", n) for n in bench.threads]
    systems += [(f"atta-{variant}", bench.threads[0]) for variant in bench.variants]
    for peer in bench.vs:
        if lacking := missing(*_NEEDS[peer]):
            report.fail(peer, not_installed(*lacking))
        else:
            systems += [(peer, n) for n in bench.threads]
    failed: set[str] = set()
    for number in range(bench.runs):
        say(f"round {number + 1} of {bench.runs}: limits of the machine")
        report.add_limits({"random_reads_per_s": limits.random_reads_per_s(4 * edges)})
        for system, threads in systems[:: 1 if number % 2 == 0 else -1]:
            name = _name(system, threads, bench.threads[0])
            if name in failed:
                continue
            say(f"round {number + 1} of {bench.runs}: {name}")
            try:
                report.add(name, _measure(bench, system, threads))
            except AttaError as error:
                if system.startswith("atta"):
                    raise
                failed.add(name)
                report.fail(name, str(error))
    return report


def _name(system: str, threads: int, first: int) -> str:
    return system if threads == first else f"{system}-{threads}-threads"


def _measure(bench: SamplingBench, system: str, threads: int) -> dict[str, float]:
    config = SamplerConfig(
        system, bench.dataset, bench.num_neighbors, bench.batch_size, threads, bench.batches, bench.seed
    )
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"}
    command = [sys.executable, "-m", "atta_bench.sampling.worker", json.dumps(asdict(config))]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise AttaError(f"{system}: not done after {_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise AttaError(f"{system}: {' | '.join(done.stderr.strip().splitlines()[-3:])[-600:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "seeds_per_s": found["seeds"] / found["seconds"],
        "edges_per_s": found["edges"] / found["seconds"],
        "ns_per_edge": 1e9 * found["seconds"] / found["edges"],
        "cpu_ns_per_edge": 1e9 * found["cpu_s"] / found["edges"],
        "edges_per_seed": found["edges"] / found["seeds"],
        "vertices_per_seed": found["nodes"] / found["seeds"],
        "peak_per_output": found["peak_per_output"],
        "table_bytes_per_edge": found["table_bytes"] / found["graph_edges"],
    }
