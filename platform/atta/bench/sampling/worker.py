"""One measured process of ``atta bench sampling``: loads a graph, samples batches, prints one line of JSON.

    python -m atta.bench.sampling.worker '{"system": "atta", "dataset": "...", ...}'

Every system gets the same CSC arrays, whose edge ids are positions, and hands out compacted batches as it does by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atta.samplers import kernels

__all__ = ["WorkerConfig", "main"]

_WARM_UP = 4
_TIMES = 1_000_000
_KINDS = 4


@dataclass(frozen=True)
class WorkerConfig:
    """What a process is told: see ``SamplingBench``; ``batches`` are measured."""

    system: str
    dataset: str
    num_neighbors: tuple[int, ...]
    batch_size: int
    threads: int
    batches: int
    seed: int


@dataclass
class _Work:
    """Samples batches of the given seeds; counts edges and vertices and the bytes of the batches."""

    run: Callable[[list[np.ndarray]], None]
    edges: int = 0
    nodes: int = 0
    nbytes: int = 0
    table_bytes: int = 0


def main() -> None:
    """Measure, as the module docstring says."""
    config = WorkerConfig(**json.loads(sys.argv[1]))
    from atta.partition.dataset import Dataset

    dataset = Dataset.open(config.dataset, verify=False)
    csc = dataset.part(0).csc(dataset.schema.edge_types[0])
    work = {"dgl": _dgl, "pyg": _pyg}.get(config.system, _atta)(config, csc.indptr, csc.indices)
    rng, vertices = np.random.default_rng(config.seed), len(csc.indptr) - 1
    seeds = [rng.choice(vertices, config.batch_size, replace=False) for _ in range(_WARM_UP + config.batches)]
    work.run([seeds[0][:1]])  # what a sampler makes once is no cost of a batch
    work.nbytes = 0
    before = _peak(reset=True)
    work.run(seeds[:1])
    first_peak, first_bytes = _peak() - before, work.nbytes
    work.run(seeds[1:_WARM_UP])
    work.edges = work.nodes = work.nbytes = 0
    cpu, start = time.process_time(), time.perf_counter()
    work.run(seeds[_WARM_UP:])
    seconds = time.perf_counter() - start
    found = {
        "seconds": seconds,
        "cpu_s": time.process_time() - cpu,
        "seeds": config.batches * config.batch_size,
        "edges": work.edges,
        "nodes": work.nodes,
        "peak_per_output": first_peak / max(1, first_bytes),
        "table_bytes": work.table_bytes,
        "graph_edges": len(csc.indices),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # some libraries take seconds to say goodbye to a large graph


def _atta(config: WorkerConfig, indptr: np.ndarray, indices: np.ndarray) -> _Work:
    from atta.samplers.local.graph import LocalGraph
    from atta.samplers.local.sampler import LocalSampler
    from atta.samplers.methods import Method

    kernels.retain_heap()
    variant = config.system.partition("-")[2]
    if variant.startswith("hetero"):
        return _hetero(config, indptr, indices, ring=variant == "hetero")
    if variant == "untyped":  # what "hetero" is to be compared with: the same edges
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
            disjoint=variant == "disjoint", input_time=np.full(len(seeds), _TIMES // 2) if method.temporal else None,
        )  # fmt: skip
        for batch in stream:
            work.edges += len(batch.row)
            work.nodes += len(batch.n_id)
            work.nbytes += sum(a.nbytes for a in (batch.n_id, batch.row, batch.col, batch.e_id))

    work = _Work(run, table_bytes=sampler.table_bytes)
    return work


def _typed_edges(indptr: np.ndarray, indices: np.ndarray, *, ring: bool) -> dict[str, Any]:
    """The graph's edges between four node types: vertex v has type v mod 4.

    ``ring``: sources are moved by up to three places so that every edge comes from the type after its target's: four edge types.
    Otherwise all 16 pairs of types occur, and every vertex has in-edges of four types.
    """
    from atta.samplers.local.graph import LocalGraph

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
                source_keys=None if source == target else np.arange(counts[source]),
            )  # fmt: skip
    return graphs


def _ring(indices: np.ndarray, targets: np.ndarray, nodes: int) -> np.ndarray:
    """Sources of the type after their targets' types; the last few vertices are left out, so that every type has as many."""
    blocks = nodes // _KINDS - 1
    moved: np.ndarray = np.minimum(indices // _KINDS, blocks) * _KINDS + (targets + 1) % _KINDS
    return moved.astype(indices.dtype)


def _hetero(config: WorkerConfig, indptr: np.ndarray, indices: np.ndarray, *, ring: bool) -> _Work:
    from atta.samplers.local.sampler import LocalSampler

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
            work.edges += sum(len(row) for row in batch.row.values())
            work.nodes += sum(len(ids) for ids in batch.n_id.values())
            work.nbytes += sum(
                a.nbytes for part in (batch.n_id, batch.row, batch.col, batch.e_id) for a in part.values()
            )

    work = _Work(run)
    return work


def _dgl(config: WorkerConfig, indptr: np.ndarray, indices: np.ndarray) -> _Work:
    import dgl
    import torch

    torch.set_num_threads(config.threads)
    arrays = (
        torch.from_numpy(np.array(indptr)),
        torch.from_numpy(indices.astype(np.int64)),
        torch.empty(0, dtype=torch.int64),
    )
    graph = dgl.graph(("csc", arrays), num_nodes=len(indptr) - 1)
    sampler = dgl.dataloading.NeighborSampler(list(config.num_neighbors)[::-1])  # DGL counts from the input side

    def run(batches: list[np.ndarray]) -> None:
        for seeds in batches:
            inputs, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(seeds))
            edges = sum(block.num_edges() for block in blocks)
            work.edges += edges
            work.nodes += len(inputs)
            work.nbytes += 24 * edges + 8 * len(inputs)

    work = _Work(run)
    return work


def _pyg(config: WorkerConfig, indptr: np.ndarray, indices: np.ndarray) -> _Work:
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
            work.edges += len(out.row)
            work.nodes += len(out.node)
            work.nbytes += 8 * (3 * len(out.row) + len(out.node))

    work = _Work(run)
    return work


def _peak(*, reset: bool = False) -> int:
    """Largest resident size since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
