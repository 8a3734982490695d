"""Shared by the tests of training without barriers: ``python -m tests.system.digest_async FOLDER RANK CLUSTER DELAY LEASE``.

One of two trainers. The second one stops itself in the middle, until somebody continues it.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import atta
from atta.train import TrainConfig
from atta.train.exchange.asynchronous import AsyncDigestTrainer
from atta.train.strategies import STRATEGIES

WORLD, UPDATES, STOPS_AT = 2, 60, 5


def main(folder: Path, rank: int, target: str, delay: int | None, lease: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=120), rank=rank, world_size=WORLD)
    config = TrainConfig(
        cluster=target, strategy="digest-async", trainers=WORLD, trainers_per_server=1, model="gcn", hidden=8, layers=2,
        device="cpu", verbose=False, max_updates=UPDATES, max_delay=delay, lease=lease, sync_every=2,
    )  # fmt: skip
    with atta.connect(target) as cluster:
        trainer = STRATEGIES[config.strategy].trainer(config.own, cluster, torch.device("cpu"))
        assert isinstance(trainer, AsyncDigestTrainer)
        train, gradient, stopped = trainer._train, trainer._gradient, [False]

        def noted(*arguments: Any) -> Any:
            saved = train(*arguments)
            (folder / f"{rank}.done").touch()
            return saved

        def interrupted(batch: Any, count: int, step: int, values: Any) -> Any:
            if rank == 1 and step == STOPS_AT and not stopped[0]:
                stopped[0] = True
                os.kill(os.getpid(), signal.SIGSTOP)
            return gradient(batch, count, step, values)

        trainer._train, trainer._gradient = noted, interrupted  # type: ignore[method-assign]
        reports = trainer.fit()
    assert sum(report.steps for report in reports) == UPDATES
    dist.destroy_process_group()


if __name__ == "__main__":
    bound = int(sys.argv[4]) if sys.argv[4] != "none" else None
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], bound, float(sys.argv[5]))
