"""Runs DistDGL on the hosts of a NetLab: one of its servers per host, and any number of trainers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atta_bench.lab.netlab import Host
from atta_bench.lab.processes import Measured, SystemProcesses
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.peers.distdgl.partition import read_tables
from atta_bench.peers.distdgl.worker import DistDglConfig

__all__ = ["run_distdgl"]

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

    Raises:
        AttaError: a process failed or hangs.
    """
    ips = folder / "machines.txt"
    ips.write_text("".join(f"{host.address} {_SERVER_PORT}\n" for host in hosts), encoding="ascii")
    module = "atta_bench.peers.distdgl." + ("worker" if recipe is None else "train_worker")
    command = [sys.executable, "-m", module]
    tables = read_tables(partitions) if recipe is None else ("x", "y")
    training = {} if recipe is None else {"recipe": asdict(recipe), "eval_every": eval_every}
    with SystemProcesses("dgl", folder) as processes:
        for index, host in enumerate(hosts):
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            processes.start_support(
                f"server{index}", host, command, {**env, "DGL_ROLE": "server", "DGL_SERVER_ID": str(index)}
            )
        for rank, host in enumerate(host for host in hosts for _ in range(trainers)):
            config = DistDglConfig(
                config=str(partitions),
                rank=rank,
                world_size=len(hosts) * trainers,
                rendezvous=f"tcp://{hosts[0].address}:{_RENDEZVOUS_PORT}",
                num_neighbors=workload.num_neighbors,
                batch_size=workload.batch_size,
                tables=tables,
                warm_up=workload.warm_up,
                threads=workload.threads,
                think_ms=workload.think_ms,
                seeds=workload.seeds,
                drop_last=workload.drop_last,
                seed=workload.seed,
            )
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            processes.start_rank(
                host, [*command, json.dumps({**asdict(config), **training})], {**env, "DGL_ROLE": "client"}
            )
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
