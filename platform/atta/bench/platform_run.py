"""Run Atta as the loader benchmark's subject: a daemon and a consumer per partition, each pair on a host of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atta.bench.consumer import ConsumerConfig
from atta.bench.drive import Measured, Troupe
from atta.bench.netlab import Host
from atta.bench.workload import Workload
from atta.client.local import free_addresses
from atta.clusterfile import write_cluster

__all__ = ["run_atta"]

_PORT = 7070


def run_atta(
    data: Path,
    workload: Workload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    frontier: str,
    deliver: str,
    cache_share: float,
) -> Measured:
    """Start everything, measure, end everything; partition i and rank i live on ``hosts[i]``, logs in ``folder``.

    Raises:
        AttaError: a process failed or hangs.
    """
    alone = all(host.interface is None for host in hosts)
    addresses = free_addresses(len(hosts)) if alone else [f"{host.address}:{_PORT}" for host in hosts]
    cluster = folder / "cluster.toml"
    write_cluster(cluster, addresses)
    options = ("--threads", str(workload.threads), "--cache-share", str(cache_share))
    with Troupe("atta", folder) as troupe:
        for part, host in enumerate(hosts):
            troupe.extra(f"daemon{part}", host, _serve(data, part, addresses[part], cluster, *options))
        for rank, host in enumerate(hosts):
            config = ConsumerConfig(
                addresses=tuple(addresses),
                rank=rank,
                world_size=len(hosts),
                interface=host.interface,
                num_neighbors=workload.num_neighbors,
                batch_size=workload.batch_size,
                split=workload.split,
                frontier=frontier,
                deliver=deliver,
                warm_up=workload.warm_up,
                threads=workload.threads,
                seed=workload.seed,
            )
            command = [sys.executable, "-m", "atta.bench.consumer", json.dumps(asdict(config))]
            troupe.rank(host, command, {"OMP_NUM_THREADS": str(workload.threads), "DGLBACKEND": "pytorch"})
        return troupe.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def _serve(data: Path, part: int, address: str, cluster: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)),
        *("--listen", address, "--peers", str(cluster), *options),
        *("--no-verify", "--log-level", "warning", "--drain", "0", "--exit-with-parent"),
    ]
