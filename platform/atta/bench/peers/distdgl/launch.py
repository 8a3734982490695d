"""Run DistDGL on the hosts of a NetLab: one server per host, and as many trainers as wanted."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atta.bench.lab.drive import Measured, Troupe
from atta.bench.lab.netlab import Host
from atta.bench.lab.workload import Recipe, Workload
from atta.bench.peers.distdgl.partition import read_tables
from atta.bench.peers.distdgl.worker import WorkerConfig

__all__ = ["run_distdgl"]

_SERVER_PORT, _RENDEZVOUS_PORT = 30_050, 29_777


def run_distdgl(
    partitions: Path,
    workload: Workload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    recipe: Recipe | None = None,
    trainers: int = 1,
    eval_every: int = 0,
) -> Measured:
    """Start everything, measure, end everything.

    ``partitions`` comes from ``partition.prepare`` with as many parts as there are hosts; ``folder`` is for logs; ``recipe``: the
    trainers train by it, else they only load; ``trainers``: of each host; ``eval_every``: epochs between looks at the accuracy of
    what is trained, 0: none.

    Raises:
        AttaError: a process failed or hangs.
    """
    ips = folder / "machines.txt"
    ips.write_text("".join(f"{host.address} {_SERVER_PORT}\n" for host in hosts), encoding="ascii")
    module = "atta.bench.peers.distdgl." + ("worker" if recipe is None else "train_worker")
    command = [sys.executable, "-m", module]
    tables = read_tables(partitions) if recipe is None else ("x", "y")
    training = {} if recipe is None else {"recipe": asdict(recipe), "eval_every": eval_every}
    with Troupe("dgl", folder) as troupe:
        for index, host in enumerate(hosts):
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            troupe.extra(f"server{index}", host, command, {**env, "DGL_ROLE": "server", "DGL_SERVER_ID": str(index)})
        for rank, host in enumerate(host for host in hosts for _ in range(trainers)):
            config = WorkerConfig(
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
            )
            env = _environment(partitions, ips, len(hosts) * trainers, host, workload.threads)
            troupe.rank(host, [*command, json.dumps({**asdict(config), **training})], {**env, "DGL_ROLE": "client"})
        return troupe.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def _environment(partitions: Path, ips: Path, clients: int, host: Host, threads: int) -> dict[str, str]:
    return {
        "DGLBACKEND": "pytorch",
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(ips),
        "DGL_NUM_SERVER": "1",  # per machine
        "DGL_NUM_CLIENT": str(clients),  # trainers, which sample by themselves:
        "DGL_NUM_SAMPLER": "0",  # sampler processes were seen to hang with this version
        "DGL_CONF_PATH": str(partitions),
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",  # servers end with the last client
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": host.interface or "lo",
        "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
