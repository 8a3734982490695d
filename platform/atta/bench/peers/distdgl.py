"""DistDGL (dgl 1.1.3) as a peer of the loader benchmark: one server and one consumer per network namespace.

Its servers of one machine share names in /dev/shm, so every machine needs a mount of its own besides its own address.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atta.bench.netlab import NetLab, unavailable
from atta.errors import AttaError

__all__ = ["convert", "start", "why_not"]

HERE = Path(__file__).parent
PORT = 30_050


def why_not() -> str | None:
    """Why DistDGL cannot run here, or None."""
    if importlib.util.find_spec("dgl") is None:
        return "dgl is not installed: install atta[dgl]"
    return unavailable()


def convert(dataset: str, work: Path, dataset_id: str) -> Path:
    """The dataset in DistDGL's format (made once per dataset); returns its JSON file."""
    folder = work / f"distdgl-{dataset_id}"
    config = folder / "bench.json"
    if not config.exists():
        command = [sys.executable, str(HERE / "distdgl_convert.py"), dataset, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment({}))
        if done.returncode or not config.exists():
            raise AttaError(f"dgl.distributed.partition_graph failed: {done.stderr.strip()[-400:]}")
    return config


def start(
    lab: NetLab, parts: Path, work: Path, *, num_neighbors: Sequence[int], batch_size: int, epochs: int, threads: int
) -> list[subprocess.Popen[str]]:
    """Start a server and a consumer on every machine of ``lab``; returns the consumers, not yet begun."""
    hosts = work / "distdgl-hosts.txt"
    hosts.write_text("".join(f"{address} {PORT}\n" for address in lab.addresses), encoding="ascii")
    world = len(lab.addresses)
    consumers = []
    for machine in range(world):
        settings: dict[str, Any] = {
            "hosts": str(hosts),
            "parts": str(parts),
            "rank": machine,
            "world": world,
            "threads": threads,
            "rendezvous": f"tcp://{lab.addresses[0]}:29777",
            "num_neighbors": list(num_neighbors),
            "batch_size": batch_size,
            "epochs": epochs,
        }
        extra = {
            "ATTA_BENCH": json.dumps(settings),
            "DGL_DIST_MODE": "distributed",
            "DGL_IP_CONFIG": str(hosts),
            "DGL_CONF_PATH": str(parts),
            "DGL_GRAPH_FORMAT": "csc",
            "DGL_NUM_SERVER": "1",
            "DGL_NUM_CLIENT": str(world),
            "DGL_NUM_SAMPLER": "0",
            "DGL_KEEP_ALIVE": "0",
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONWARNINGS": "ignore",
            "WORKER": str(HERE / "distdgl_worker.py"),
            "PYTHON": sys.executable,
        }
        # Both processes of a machine must share the private /dev/shm, hence one shell; the consumer inherits its standard input.
        log = work / f"distdgl-server-{machine}.log"
        script = (
            "mount -t tmpfs -o size=50% tmpfs /dev/shm; "
            f'DGL_ROLE=server DGL_SERVER_ID={machine} "$PYTHON" "$WORKER" > "{log}" 2>&1 < /dev/null & '
            f'DGL_ROLE=client RANK={machine} "$PYTHON" "$WORKER"; code=$?; wait; exit $code'
        )
        command = lab.command(machine, ["unshare", "-m", "sh", "-c", script])
        errors = (work / f"distdgl-consumer-{machine}.log").open("w")
        consumers.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(extra),
                start_new_session=True,
            )
        )
        errors.close()
    return consumers


def _environment(extra: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore", **extra}
