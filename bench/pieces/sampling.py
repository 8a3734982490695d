"""``atta bench sampling``: neighbour sampling and compaction in one process, beside other libraries.

    python -m atta_bench.pieces.sampling '{"system": "atta", "dataset": "...", ...}'

is a measured process. It loads a graph, samples batches, and prints one line of JSON. The system ``renumber`` numbers the
vertices of batches alone: by Atta, DGL and torch, beside a loop of reads.
Every system gets the same CSC arrays, in which positions are the edge ids, and delivers compacted batches in its own
form.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from atta import _native
from atta.errors import ConfigError
from atta.observe.settings import Option, check_bounds
from atta.partition.dataset import Dataset
from atta.samplers import kernels
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import Method
from atta_bench.command import measured
from atta_bench.lab import flow
from atta_bench.lab.netlab import loopback
from atta_bench.lab.rounds import alternate
from atta_bench.lab.workload import BatchSize, FanOuts, Seed
from atta_bench.pieces.kv import ask
from atta_bench.results import BenchReport

METHODS = tuple(method.value for method in Method if method is not Method.UNIFORM)
VARIANTS = (*METHODS, "disjoint", "untyped", "hetero", "hetero-16")
_NEEDS = {"dgl": ("dgl",), "pyg": ("torch_geometric", "pyg_lib")}


@dataclass(frozen=True)
class SamplingBench:
    """Settings of the benchmark.

    Seeds are drawn at random. Every hop expands all known vertices, as DGL does for its blocks. Variants run with the
    first number of threads: the methods of ``atta.samplers.methods`` (random weights and times; seeds at the median
    time), ``disjoint`` trees, ``hetero`` (edges of four types between four node types), ``untyped`` (the same edges
    without types), ``hetero-16`` (16 edge types, a quarter of the fan-out each).
    """

    dataset: Annotated[str, Option("Dataset of one partition and one edge type.")]
    num_neighbors: FanOuts = (15, 10, 5)
    batch_size: BatchSize = 1024
    threads: Annotated[tuple[int, ...], Option("Every system runs with each of these.", at_least=1)] = (1, 2)
    batches: Annotated[int, Option("Measured per system and round.", at_least=1)] = 40
    vs: Annotated[
        tuple[str, ...], Option("Libraries to compare with: dgl, pyg (needs pyg_lib).", choices=tuple(_NEEDS))
    ] = ()
    variants: Annotated[
        tuple[str, ...],
        Option(
            "Other ways to sample: a neighbour method by name, disjoint, untyped, hetero, hetero-16.", choices=VARIANTS
        ),
    ] = ()
    runs: Annotated[int, Option("Rounds; systems alternate within a round.", at_least=1)] = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("threads", "num_neighbors"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                given = ",".join(map(str, getattr(self, name)))
                raise ConfigError(f"--{name.replace('_', '-')} {given}: each must be at least 1")


def run(bench: SamplingBench, say: Callable[[str], None] = lambda _: None) -> BenchReport:
    """Run all rounds; ``say`` is told what happens.

    Raises DataError, ConfigError: the dataset or a setting is wrong; AttaError: Atta itself failed; a peer that fails
    only appears with its error in the report.
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
    runs = [("atta", n) for n in bench.threads] + [(f"atta-{variant}", bench.threads[0]) for variant in bench.variants]
    for peer in bench.vs:
        if not report.lacks(peer, *_NEEDS[peer]):
            runs += [(peer, n) for n in bench.threads]
    systems: dict[str, Callable[[Path], dict[str, float]]] = {
        name if threads == bench.threads[0] else f"{name}-{threads}-threads": partial(_measure, bench, name, threads)
        for name, threads in runs
    }

    limits_of = partial(_limits, edges)
    alternate(systems, bench.runs, report, lambda found: found, limits_of=limits_of, say=say, peers=tuple(_NEEDS))
    return report


def _measure(bench: SamplingBench, system: str, threads: int, _: Path) -> dict[str, float]:
    config = {**asdict(bench), "system": system, "threads": threads}
    words = [sys.executable, "-m", "atta_bench.pieces.sampling", json.dumps(config)]
    return ask(loopback(1)[0], words, threads, system)


def _limits(edges: int) -> dict[str, float]:
    return {"random_reads_per_s": flow.random_reads_per_s(4 * edges)}


_WARM_UP = 4
_TIMES = 1_000_000
_KINDS = 4


@dataclass(frozen=True, kw_only=True)
class SamplerConfig(SamplingBench):
    """Settings of the process, with one number of threads."""

    system: str
    threads: int  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """They have been checked."""


@dataclass
class _SamplingSystem:
    """A system, and what it has sampled.

    Attributes:
        run: samples one batch per array of seeds (int64 [batch size]).
        edges, nodes, nbytes: edges, vertices and bytes of all batches so far.
        table_bytes: bytes of the tables that the method needs besides the graph.
    """

    run: Callable[[list[np.ndarray]], None]
    edges: int = 0
    nodes: int = 0
    nbytes: int = 0
    table_bytes: int = 0


def main() -> None:
    """Measure, as the module docstring says."""
    config = SamplerConfig(**json.loads(sys.argv[1]))
    dataset = Dataset.open(config.dataset, verify=False)
    csc = dataset.part(0).csc(dataset.schema.edge_types[0])
    if config.system == "renumber":
        print(json.dumps(_renumbering(config, csc.indptr, csc.indices)), flush=True)
        os._exit(0)
    system = {"dgl": _dgl, "pyg": _pyg}.get(config.system, _atta)(config, csc.indptr, csc.indices)
    rng, vertices = np.random.default_rng(config.seed), len(csc.indptr) - 1
    seeds = [rng.choice(vertices, config.batch_size, replace=False) for _ in range(_WARM_UP + config.batches)]
    system.run([seeds[0][:1]])  # what a sampler makes only once is not a cost of a batch
    system.nbytes = 0
    before = _peak(reset=True)
    system.run(seeds[:1])
    first_peak, first_bytes = _peak() - before, system.nbytes
    system.run(seeds[1:_WARM_UP])
    system.edges = system.nodes = system.nbytes = 0
    cpu, start = time.process_time(), time.perf_counter()
    system.run(seeds[_WARM_UP:])
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    drawn = config.batches * config.batch_size
    found = {
        "seeds_per_s": drawn / seconds,
        "edges_per_s": system.edges / seconds,
        "ns_per_edge": 1e9 * seconds / system.edges,
        "cpu_ns_per_edge": 1e9 * cpu / system.edges,
        "edges_per_seed": system.edges / drawn,
        "vertices_per_seed": system.nodes / drawn,
        "peak_per_output": first_peak / max(1, first_bytes),
        "table_bytes_per_edge": system.table_bytes / len(csc.indices),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # some libraries take seconds to free a large graph


def _atta(config: SamplerConfig, indptr: np.ndarray, indices: np.ndarray) -> _SamplingSystem:
    kernels.retain_heap()
    variant = config.system.partition("-")[2]
    if variant.startswith("hetero"):
        return _hetero(config, indptr, indices, ring=variant == "hetero")
    if variant == "untyped":  # the same edges as in "hetero", to compare with
        targets = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
        indices = _ring(indices, targets, len(indptr) - 1)
    method = Method(variant) if variant in {m.value for m in Method} else Method.UNIFORM
    rng, edges = np.random.default_rng(config.seed), len(indices)
    weight = rng.exponential(size=edges) if method is Method.WEIGHTED else None
    time = rng.integers(0, _TIMES, edges) if method.temporal else None
    graph = LocalGraph.from_csc(kernels.resident(indptr), kernels.resident(indices), weight=weight, time=time)
    sampler = LocalSampler(graph, method=method, threads=os.cpu_count() or 1)

    def run(batches: list[np.ndarray]) -> None:
        seeds = np.concatenate(batches)
        stream = sampler.batches(
            seeds, config.num_neighbors, config.batch_size, threads=config.threads, frontier="all",
            disjoint=variant == "disjoint", input_time=np.full(len(seeds), _TIMES // 2) if method.temporal else None
        )  # fmt: skip
        for batch in stream:
            system.edges += len(batch.row)
            system.nodes += len(batch.n_id)
            system.nbytes += sum(a.nbytes for a in (batch.n_id, batch.row, batch.col, batch.e_id))

    system = _SamplingSystem(run, table_bytes=sampler.table_bytes)
    return system


def _typed_edges(indptr: np.ndarray, indices: np.ndarray, *, ring: bool) -> dict[str, Any]:
    """The edges of the graph between four node types: vertex v has type v mod 4.

    With ``ring`` there are four edge types: sources move by up to three places, so that every edge comes from the type
    after that of its target. Otherwise all 16 pairs of types occur, and every vertex has in-edges of four types.
    """
    graphs: dict[str, Any] = {}
    targets = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    moved = _ring(indices, targets, len(indptr) - 1) if ring else indices
    counts = [len(range(kind, len(indptr) - 1, _KINDS)) for kind in range(_KINDS)]
    for target in range(_KINDS):
        mine = targets % _KINDS == target
        sources, rows = moved[mine], targets[mine] // _KINDS
        for source in [(target + 1) % _KINDS] if ring else range(_KINDS):
            chosen = sources % _KINDS == source
            ends = np.concatenate([[0], np.cumsum(np.bincount(rows[chosen], minlength=counts[target]))])
            graphs[f"t{source}__to__t{target}"] = LocalGraph.from_csc(
                kernels.resident(ends), kernels.resident(sources[chosen] // _KINDS),
                source_keys=None if source == target else np.arange(counts[source])
            )  # fmt: skip
    return graphs


def _ring(indices: np.ndarray, targets: np.ndarray, nodes: int) -> np.ndarray:
    """Sources moved to the type after that of their target, and away from the last vertices: all types have as many."""
    blocks = nodes // _KINDS - 1
    moved: np.ndarray = np.minimum(indices // _KINDS, blocks) * _KINDS + (targets + 1) % _KINDS
    return moved.astype(indices.dtype)


def _hetero(config: SamplerConfig, indptr: np.ndarray, indices: np.ndarray, *, ring: bool) -> _SamplingSystem:
    graphs = _typed_edges(indptr, indices, ring=ring)
    per_type = 1 if ring else _KINDS
    sampler = LocalSampler(graphs)
    fan_outs = {key: [-(-count // per_type) for count in config.num_neighbors] for key in graphs}

    def run(batches: list[np.ndarray]) -> None:
        seeds = np.concatenate(batches) // _KINDS
        stream = sampler.batches(
            seeds, fan_outs, config.batch_size, threads=config.threads, frontier="all", seed_type="t0"
        )
        for batch in stream:
            system.edges += sum(map(len, batch.row.values()))
            system.nodes += sum(map(len, batch.n_id.values()))
            parts = batch.n_id, batch.row, batch.col, batch.e_id
            system.nbytes += sum(a.nbytes for part in parts for a in part.values())

    system = _SamplingSystem(run)
    return system


def _dgl(config: SamplerConfig, indptr: np.ndarray, indices: np.ndarray) -> _SamplingSystem:
    import dgl
    import torch

    torch.set_num_threads(config.threads)
    arrays = tuple(torch.from_numpy(a.astype(np.int64)) for a in (indptr, indices, indices[:0]))
    graph = dgl.graph(("csc", arrays), num_nodes=len(indptr) - 1)
    sampler = dgl.dataloading.NeighborSampler(list(config.num_neighbors)[::-1])  # DGL counts from the input side

    def run(batches: list[np.ndarray]) -> None:
        for seeds in batches:
            inputs, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(seeds))
            edges = sum(block.num_edges() for block in blocks)
            system.edges += edges
            system.nodes += len(inputs)
            system.nbytes += 24 * edges + 8 * len(inputs)

    system = _SamplingSystem(run)
    return system


def _pyg(config: SamplerConfig, indptr: np.ndarray, indices: np.ndarray) -> _SamplingSystem:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    torch.set_num_threads(config.threads)
    targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    edge_index = torch.from_numpy(np.stack([indices.astype(np.int64), targets]))
    data = Data(edge_index=edge_index, num_nodes=len(indptr) - 1)
    sampler = NeighborSampler(data, num_neighbors=list(config.num_neighbors))

    def run(batches: list[np.ndarray]) -> None:
        for seeds in batches:
            out: Any = sampler.sample_from_nodes(NodeSamplerInput(None, torch.from_numpy(seeds)))
            system.edges += len(out.row)
            system.nodes += len(out.node)
            system.nbytes += 8 * (3 * len(out.row) + len(out.node))

    system = _SamplingSystem(run)
    return system


def _renumbering(config: SamplerConfig, indptr: np.ndarray, indices: np.ndarray) -> dict[str, float]:
    """Nanoseconds to number the source of one edge of a batch, by way: medians over batches. ``loop`` reads 4 bytes of a
    table for each, and does nothing else. Of Atta, every thread numbers a batch of its own. DGL makes a block of the edges.
    """
    import dgl
    import torch

    torch.set_num_threads(config.threads)
    vertices, rng = len(indptr) - 1, np.random.default_rng(config.seed)
    seeds = rng.choice(vertices, (config.batches, config.batch_size), replace=False).ravel()
    sampler = LocalSampler(LocalGraph.from_csc(kernels.resident(indptr), kernels.resident(indices)))
    compactors = [kernels.Compactor(vertices) for _ in range(config.threads)]
    table, pool = kernels.resident(np.ones((vertices, 4), np.uint8)), ThreadPoolExecutor(config.threads)

    def time_of(batch: Any) -> dict[str, float]:
        ids, ends = batch.n_id[batch.row], torch.from_numpy(batch.n_id[batch.col])
        sources, out = torch.from_numpy(ids), np.ones((len(ids), 4), np.uint8)
        edges, targets, found = dgl.graph((sources, ends), num_nodes=vertices), torch.unique(ends), dict[str, float]()

        ways: dict[str, Callable[[], Any]] = {
            "atta": lambda: [*pool.map(lambda c: (c.reset(), c.insert(ids)), compactors)],
            "loop": lambda: _native.reference_gather(table, ids, out, 32, False, config.threads),
            "torch": lambda: torch.unique(sources, return_inverse=True),
            "dgl": lambda: dgl.to_block(edges, targets),
        }
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            found[name] = 1e9 * (time.perf_counter() - start) / len(ids)
        return {**found, "atta": found["atta"] / config.threads}

    times = [time_of(b) for b in sampler.batches(seeds, config.num_neighbors, config.batch_size, frontier="all")]
    return {name: float(np.median([found[name] for found in times])) for name in times[0]}


def _peak(*, reset: bool = False) -> int:
    """Largest resident size since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return 0


@measured(SamplingBench, run, "Draw edges per second.")
def sampling() -> None:
    """Sampling and compaction alone, in one process, without daemons or features.

    Example: atta bench sampling --dataset data/products-1p --num-neighbors 15,10,5 --vs dgl --json sampling.json
    """


if __name__ == "__main__":
    main()
