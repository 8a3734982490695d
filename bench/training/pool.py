"""Trainer processes that outlive a run: they import torch once, and train one configuration after another.

A comparison has hundreds of short runs. ``atta train`` would spend more time on starting processes than on training.
"""

from __future__ import annotations

import gc
import os
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from atta.train.config import TrainConfig

__all__ = ["TrainerPool"]

TIMEOUT = timedelta(seconds=300)
"""How long a trainer waits for the others."""
RUN_S = 3600
"""How long a run may take."""


class TrainerPool:
    """``count`` forked trainers, each with one thread; use it as a context manager.

    Make it before anything in this process has started threads: the trainers are forked.
    """

    def __init__(self, count: int) -> None:
        import torch_geometric  # noqa: F401 - trainers inherit what is imported here

        import atta.train.exchange.trainer  # noqa: F401

        self.count = count
        self._folder = tempfile.TemporaryDirectory(prefix="atta-pool-")
        self._runs = 0
        context = get_context("fork")
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, there), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def __enter__(self) -> TrainerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def fit(self, config: TrainConfig, addresses: Sequence[str]) -> list[dict[str, Any]]:
        """Train; returns the figures of all epochs. Raises RuntimeError with the traceback of a failed trainer."""
        self._runs += 1
        meeting = str(Path(self._folder.name) / f"run-{self._runs}")
        for end in self._ends:
            end.send((config.to_dict(), list(addresses), meeting))
        found: list[dict[str, Any]] = []
        for rank, end in enumerate(self._ends):
            if not end.poll(RUN_S):
                raise RuntimeError(f"trainer {rank} did not answer")
            try:
                failed, answer = end.recv()
            except EOFError:
                raise RuntimeError(f"trainer {rank} ended") from None
            if failed:
                raise RuntimeError(f"trainer {rank}:\n{answer}")
            found = found or answer
        return found


def _serve(rank: int, count: int, end: Connection) -> None:
    """A trainer: trains what arrives, until the pool ends."""
    import torch

    from atta.observe.machine.heap import keep_freed

    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    keep_freed()
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    while True:
        try:
            settings, addresses, meeting = end.recv()
        except EOFError:
            return
        try:
            answer = _fit(TrainConfig.from_dict(settings), addresses, meeting, rank, count)
            end.send((False, answer if rank == 0 else []))
        except Exception:
            end.send((True, traceback.format_exc()))
        gc.collect()


def _fit(config: TrainConfig, addresses: list[str], meeting: str, rank: int, count: int) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import atta
    from atta.train.strategies import STRATEGIES

    # A group for each run: trainers make groups of their own in it, and these go with it.
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=TIMEOUT)
    try:
        with atta.connect(addresses) as cluster:
            trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
            return [asdict(epoch) for epoch in trainer.fit()]
    finally:
        dist.destroy_process_group()
