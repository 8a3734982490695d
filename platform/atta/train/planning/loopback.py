"""Measures messages between two trainers of a machine: two processes send each other the same amount, as trainers do.

    python -m atta.train.planning.loopback RANK FOLDER SECONDS

Rank 0 prints the bytes per second that each process receives while it sends the same amount.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from atta.errors import AttaError

_MESSAGE = 1 << 20  # boundary rows of a layer are a few MB
_TIMEOUT_S = 60.0


def internal_bytes_per_s(seconds: float) -> float:
    """Bytes per second that each of two processes on this machine receives from the other, by gloo. Raises AttaError: a
    process failed."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    with tempfile.TemporaryDirectory(prefix="atta-wire-") as folder:
        command = [sys.executable, "-m", "atta.train.planning.loopback"]
        pair = [
            subprocess.Popen(
                [*command, str(rank), folder, str(seconds)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **loopback},
            )
            for rank in (0, 1)
        ]
        try:
            (out, _), _ = answers = [process.communicate(timeout=_TIMEOUT_S + seconds) for process in pair]
        except subprocess.TimeoutExpired:
            raise AttaError("measuring rows between trainers: no answer") from None
        finally:
            for process in pair:
                process.kill()
                process.wait()
    for process, (_, err) in zip(pair, answers, strict=True):
        if process.returncode:
            raise AttaError(f"measuring rows between trainers: {err.strip()[-300:]}")
    return float(out)


def main() -> None:
    """Run one of the two processes."""
    rank, folder, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timeout)
    sent, got = torch.ones(_MESSAGE, dtype=torch.uint8), torch.empty(_MESSAGE, dtype=torch.uint8)

    def swap() -> None:
        for work in (dist.isend(sent, 1 - rank), dist.irecv(got, 1 - rank)):
            assert work is not None
            work.wait()

    for _ in range(5):  # buffers and connections
        swap()
    begin, times = time.perf_counter(), 0
    more = torch.ones(1)
    while more.item():
        for _ in range(8):
            swap()
        times += 8
        more.fill_(float(time.perf_counter() < begin + seconds))
        dist.broadcast(more, 0)  # both must stop after the same message
    if rank == 0:
        print(times * _MESSAGE / (time.perf_counter() - begin))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
