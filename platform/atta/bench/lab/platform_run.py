"""Run Atta as a benchmark's subject: a daemon and a consumer or trainer per partition, each pair on a host of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from atta.bench.lab.drive import Measured, Troupe
from atta.bench.lab.netlab import Host
from atta.bench.lab.workload import Recipe, Workload
from atta.bench.loader.consumer import ConsumerConfig
from atta.client.local import free_addresses
from atta.wire.clusterfile import write_cluster

__all__ = ["cache_options", "run_atta", "serve_command"]

_PORT, _RENDEZVOUS_PORT = 7070, 7069


def cache_options(share: float | None) -> list[str]:
    """Options of `atta serve` for a cache of so many rows, in percent of the HALO vertices; None: its default.

    With 0 every batch pulls its remote rows for itself, as peers do.
    """
    if share is None:
        return []
    return ["--cache-share", str(share), *(["--no-share-pulls"] if share == 0 else [])]


def run_atta(
    data: Path,
    workload: Workload,
    hosts: Sequence[Host],
    folder: Path,
    *,
    frontier: str,
    deliver: str,
    recipe: Recipe | None = None,
    serve: Sequence[str] = (),
) -> Measured:
    """Start everything, measure, end everything; partition i and rank i live on ``hosts[i]``, logs in ``folder``.

    ``recipe``: the ranks train by it; None: they only load.
    ``serve``: further options of `atta serve`.

    Raises:
        AttaError: a process failed or hangs.
    """
    alone = all(host.interface is None for host in hosts)
    *addresses, meeting = (
        free_addresses(len(hosts) + 1)
        if alone
        else [*(f"{host.address}:{_PORT}" for host in hosts), f"{hosts[0].address}:{_RENDEZVOUS_PORT}"]
    )
    training = {} if recipe is None else {"rendezvous": f"tcp://{meeting}", "recipe": asdict(recipe)}
    cluster = folder / "cluster.toml"
    write_cluster(cluster, addresses)
    options = ["--threads", str(workload.threads), *serve]
    with Troupe("atta", folder) as troupe:
        for part, host in enumerate(hosts):
            troupe.extra(f"daemon{part}", host, serve_command(data, part, addresses[part], cluster, *options))
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
            )
            module = "atta.bench.train.worker" if training else "atta.bench.loader.consumer"
            command = [sys.executable, "-m", module, json.dumps({**asdict(config), **training})]
            troupe.rank(host, command, _environment(host, workload.threads))
        return troupe.measure(epochs=workload.epochs, seconds=workload.seconds, timeout_s=workload.timeout_s)


def _environment(host: Host, threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "DGLBACKEND": "pytorch",
        "GLOO_SOCKET_IFNAME": host.interface or "lo",
        "PYTHONWARNINGS": "ignore",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def serve_command(data: Path, part: int, address: str, cluster: Path, *options: str) -> list[str]:
    """The command of a daemon that ends when its standard input does."""
    return [
        *(sys.executable, "-m", "atta.cli.main", "serve", "--data", str(data), "--part", str(part)),
        *("--listen", address, "--peers", str(cluster), *options),
        *("--no-verify", "--log-level", "warning", "--drain", "0", "--exit-with-parent"),
    ]
