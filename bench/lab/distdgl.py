"""DistDGL on the hosts of a NetLab: a graph converted for it, one of its servers per host, and any number of trainers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import dataset as parted
from atta.partition.graph import MANIFEST as GRAPH_MANIFEST
from atta.partition.graph import Graph
from atta.partition.schema import Schema
from atta_bench.lab.distdgl_worker import GRAPH_NAME, MASK, DistDglConfig, mask_of
from atta_bench.lab.netlab import Host
from atta_bench.lab.processes import Measured, SystemProcesses
from atta_bench.lab.workload import BenchWorkload, Recipe


@dataclass(frozen=True)
class PlainGraph:
    """A homogeneous graph in memory.

    Attributes:
        num_nodes: number of vertices, n.
        src, dst: end points of the edges, int64 [E], 0 to n - 1.
        tables: by name, [n, *row_shape].
        splits: by name, ascending vertices, int64 [S].
        seeds: the vertices of the chosen split.
    """

    num_nodes: int
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    tables: Mapping[str, npt.NDArray[Any]]
    splits: Mapping[str, npt.NDArray[np.int64]]
    seeds: npt.NDArray[np.int64]


def fingerprint(path: str | Path) -> str:
    """16 hex digits that identify the contents of a graph folder or partitioned dataset."""
    if (Path(path) / GRAPH_MANIFEST).exists():
        files = Graph.open(path, verify=False).files
        text = "\n".join(f"{name} {record.xxh3}" for name, record in sorted(files.items()))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return parted.Dataset.open(path, parts=[], verify=False).dataset_id


def read_plain(path: str | Path, split: str = "train") -> PlainGraph:
    """Read a graph folder, or join a partitioned dataset (internal ids then number the vertices).

    Raises DataError: the folder is damaged; ConfigError: it has several node or edge types; UnknownNameError: it has no
    such split.
    """
    if (Path(path) / GRAPH_MANIFEST).exists():
        return _from_graph(Graph.open(path, verify=False), split)
    return _from_dataset(parted.Dataset.open(path, verify=False), split)


def _from_graph(graph: Graph, split: str) -> PlainGraph:
    node_type, edge_type = _only_types(graph.schema, split)
    edges = graph.edges(edge_type)
    splits = {name: np.asarray(graph.split(node_type, name), dtype=np.int64) for name in graph.schema.splits[node_type]}
    return PlainGraph(
        graph.schema.node_counts[node_type],
        np.asarray(edges.src, dtype=np.int64),
        np.asarray(edges.dst, dtype=np.int64),
        {name: graph.table(node_type, name) for name in graph.schema.node_tables[node_type]},
        splits,
        splits[split],
    )


def _from_dataset(dataset: parted.Dataset, split: str) -> PlainGraph:
    node_type, edge_type = _only_types(dataset.schema, split)
    parts = [dataset.part(p) for p in range(dataset.num_parts)]
    stored = [part.csc(edge_type) for part in parts]
    starts = [dataset.book.range(node_type, p)[0] for p in range(dataset.num_parts)]
    targets = [
        s + np.repeat(np.arange(len(c.indptr) - 1), np.diff(c.indptr)) for s, c in zip(starts, stored, strict=True)
    ]
    splits = {
        name: np.asarray(dataset.split(node_type, name), dtype=np.int64) for name in dataset.schema.splits[node_type]
    }
    return PlainGraph(
        dataset.schema.node_counts[node_type],
        np.concatenate([np.asarray(c.indices, dtype=np.int64) for c in stored]),
        np.concatenate(targets),
        {
            name: np.concatenate([part.table(node_type, name) for part in parts])
            for name in dataset.schema.node_tables[node_type]
        },
        splits,
        splits[split],
    )


def _only_types(schema: Schema, split: str) -> tuple[str, str]:
    if len(schema.node_types) != 1 or len(schema.edge_types) != 1:
        raise ConfigError("peers take graphs with one node type and one edge type")
    node_type = schema.node_types[0]
    if split not in schema.splits[node_type]:
        raise UnknownNameError.of("split", split, schema.splits[node_type])
    return node_type, schema.edge_types[0]


_TABLES = "tables.json"
_TIMEOUT_S = 3600.0


def prepare(graph: Path, parts: int, split: str, cache: Path) -> Path:
    """Convert ``graph`` unless the cache has it, and return DGL's partition configuration (a JSON file).

    Raises AttaError: DGL is missing or fails.
    """
    try:
        dgl = version("dgl")
    except PackageNotFoundError:
        raise AttaError("DGL is not installed: install atta[dgl]") from None
    folder = cache / f"distdgl-{dgl}-splits-{fingerprint(graph)}-{split}-{parts}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".distdgl-", dir=cache) as scratch:
            made = Path(scratch) / "parts"
            _convert_elsewhere(graph, made, parts, split)
            try:
                made.rename(folder)
            except OSError:  # another process was quicker
                if not folder.exists():
                    raise
    return folder / f"{GRAPH_NAME}.json"


def _convert_elsewhere(graph: Path, out: Path, parts: int, split: str) -> None:
    command = [sys.executable, "-m", "atta_bench.lab.distdgl", str(graph), str(out), str(parts), split]
    env = {**os.environ, "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise AttaError(f"DGL cannot partition the graph: {lines[-1] if lines else done.returncode}")


def read_tables(config: Path) -> tuple[str, ...]:
    """Names of the vertex tables of a converted graph."""
    return tuple(json.loads((config.parent / _TABLES).read_text(encoding="utf-8")))


def convert(graph: Path, out: Path, parts: int, split: str) -> None:
    """Write the folder with DistDGL's defaults: METIS, balanced by training vertices and edges, one hop of HALO."""
    import dgl
    import torch

    plain = read_plain(graph, split)
    whole = dgl.graph((torch.from_numpy(plain.src), torch.from_numpy(plain.dst)), num_nodes=plain.num_nodes)
    for name, rows in plain.tables.items():
        whole.ndata[name] = torch.from_numpy(rows.copy())
    for name, ids in {MASK: plain.seeds, **{mask_of(split): ids for split, ids in plain.splits.items()}}.items():
        whole.ndata[name] = torch.zeros(plain.num_nodes, dtype=torch.bool)
        whole.ndata[name][torch.from_numpy(ids.copy())] = True
    out.mkdir(parents=True)
    (out / _TABLES).write_text(json.dumps(list(plain.tables)), encoding="utf-8")
    try:
        dgl.distributed.partition_graph(
            whole,
            GRAPH_NAME,
            parts,
            str(out),
            num_hops=1,
            part_method="metis",
            balance_ntypes=whole.ndata[MASK].long(),
            balance_edges=True,
        )
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


_SERVER_PORT, _RENDEZVOUS_PORT = 30_050, 29_777


def run_distdgl(
    partitions: Path,
    workload: BenchWorkload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    recipe: Recipe | None = None,
    trainers: int = 1,
    eval_every: int = 0,
    means: bool = False,
) -> Measured:
    """Start all processes, measure, and end them.

    Args:
        partitions: from ``partition.prepare``, with one part per host.
        workload: the batches to load.
        hosts: of a NetLab.
        folder: for logs.
        recipe: the model to train; None: the trainers only load.
        trainers: number of trainers of each host.
        eval_every: epochs between evaluations of the trained model; 0: none.
        means: whether trainers that only load make the first layer's means.

    Raises:
        AttaError: a process failed or hangs.
    """
    ips = folder / "machines.txt"
    ips.write_text("".join(f"{host.address} {_SERVER_PORT}\n" for host in hosts), encoding="ascii")
    command = [sys.executable, "-m", "atta_bench.lab.distdgl_worker"]
    tables = read_tables(partitions) if recipe is None else ("x", "y")
    with SystemProcesses("dgl", folder) as processes:
        for index, host in enumerate(hosts):
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            processes.start_support(
                f"server{index}", host, command, {**env, "DGL_ROLE": "server", "DGL_SERVER_ID": str(index)}
            )
        for rank, host in enumerate(host for host in hosts for _ in range(trainers)):
            config = DistDglConfig.of(
                workload,
                rank=rank,
                world_size=len(hosts) * trainers,
                rendezvous=f"tcp://{hosts[0].address}:{_RENDEZVOUS_PORT}",
                recipe=recipe,
                config=str(partitions),
                tables=tables,
                eval_every=eval_every,
                means=means,
            )
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            processes.start_rank(host, [*command, config.text()], {**env, "DGL_ROLE": "client"})
        return processes.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def _environment(partitions: Path, ips: Path, clients: int, host: Host, threads: int) -> dict[str, str]:
    return {
        "DGLBACKEND": "pytorch",
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(ips),
        "DGL_NUM_SERVER": "1",  # per machine
        "DGL_NUM_CLIENT": str(clients),  # trainers, which sample in their own processes
        "DGL_NUM_SAMPLER": "0",  # with this version sampler processes sometimes hang
        "DGL_CONF_PATH": str(partitions),
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",  # its servers end with the last client
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": host.interface or "lo",
        "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
