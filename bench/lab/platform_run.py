"""Runs Atta as the measured system: a daemon and a consumer or trainer per partition, each pair on one host."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atta.client.local.dividing import divided_memory
from atta.daemon.security.security import is_loopback
from atta.partition.dataset import Dataset
from atta.wire.clusterfile import write_cluster
from atta_bench.lab.netlab import Host, addresses_on
from atta_bench.lab.processes import Measured, SystemProcesses
from atta_bench.lab.workload import BenchWorkload, Recipe
from atta_bench.loader.consumer import ConsumerConfig

__all__ = ["PORT", "cache_options", "quiet_environment", "run_atta", "serve_command"]

PORT, _RENDEZVOUS_PORT = 7070, 7069
"""Of a daemon, and of the place where trainers meet, on hosts that have ports of their own."""


def cache_options(share: float | None) -> list[str]:
    """Options of ``atta serve`` for a cache of ``share`` percent of the HALO vertices; None: the default.

    With 0 every batch pulls its remote rows for itself, as with the peers.
    """
    if share is None:
        return []
    return ["--cache-share", str(share), *(["--no-share-pulls"] if share == 0 else [])]


def run_atta(
    data: Path,
    workload: BenchWorkload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    frontier: str,
    deliver: str,
    recipe: Recipe | None = None,
    serve: Sequence[str] = (),
) -> Measured:
    """Start all processes, measure, and end them. Partition i and rank i are on ``hosts[i]``; logs go to ``folder``.

    Args:
        data: partitioned dataset.
        workload: the batches to load.
        hosts: one per partition.
        folder: for logs and the cluster file.
        frontier: see ``NeighborLoader``.
        deliver: form in which the ranks take batches, see ``consumer.DELIVERIES``.
        recipe: the model that the ranks train; None: they only load.
        serve: further options of ``atta serve``.

    Raises:
        AttaError: a process failed or hangs.
    """
    cluster, dataset = folder / "cluster.toml", Dataset.open(data, parts=[], verify=False)
    groups = [range(part, part + 1) for part in range(len(hosts))]
    places = [*((host, PORT) for host in hosts), (hosts[0], _RENDEZVOUS_PORT)]
    with addresses_on(places) as (*addresses, meeting), SystemProcesses("atta", folder) as processes:
        training = {} if recipe is None else {"rendezvous": f"tcp://{meeting}", "recipe": asdict(recipe)}
        write_cluster(cluster, addresses)
        with divided_memory(dataset, groups, serve, readers=len(hosts)) as memory:
            options = ["--threads", str(workload.threads), *memory, *serve]
        for part, host in enumerate(hosts):
            processes.start_support(
                f"daemon{part}", host, serve_command(data, part, addresses[part], cluster, *options)
            )
        for rank, host in enumerate(hosts):
            config = ConsumerConfig(
                addresses=tuple(addresses),
                rank=rank,
                world_size=len(hosts),
                num_neighbors=workload.num_neighbors,
                batch_size=workload.batch_size,
                split=workload.split,
                frontier=frontier,
                deliver=deliver,
                warm_up=workload.warm_up,
                threads=workload.threads,
                seed=workload.seed,
                think_ms=workload.think_ms,
                seed_policy=workload.seeds,
                drop_last=workload.drop_last,
            )
            module = "atta_bench.train.worker" if training else "atta_bench.loader.consumer"
            command = [sys.executable, "-m", module, json.dumps({**asdict(config), **training})]
            processes.start_rank(host, command, quiet_environment(host, workload.threads))
        return processes.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def quiet_environment(host: Host, threads: int) -> dict[str, str]:
    """The environment of a consumer or trainer: its number of threads, its network, and no chatter of libraries."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "DGLBACKEND": "pytorch",
        "GLOO_SOCKET_IFNAME": host.interface or "lo",
        "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def serve_command(
    data: Path, part: int, address: str, cluster: Path | None, *options: str, python: str = sys.executable
) -> list[str]:
    """The command of a daemon that ends when its standard input ends; ``cluster``: None if there is no other daemon.

    ``python`` is the interpreter of the installation or checkout whose daemon it is.
    """
    peers = [] if cluster is None else ["--peers", str(cluster)]
    if not is_loopback(address.rpartition(":")[0]):  # a namespace of our own
        options = (*options, "--insecure")
    return [
        *(python, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)),
        *("--listen", address, *peers, *options),
        *("--no-verify", "--log-level", "warning", "--drain", "0", "--exit-with-parent"),
    ]
