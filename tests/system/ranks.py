"""Writes the seeds of a rank: ``python -m tests.system.ranks LAUNCHER CLUSTER FOLDER``, however the process is launched.

``FOLDER/seeds-RANK`` has the seeds of two loaders: of training, padded, and of validation.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

BATCH = 8


def write_seeds(rank: int, cluster: str, folder: str) -> None:
    """As a script does it that knows nothing of ranks."""
    import atta

    with atta.connect(cluster) as running:
        loaders = [atta.NeighborLoader(running, [2], split, batch_size=BATCH, pad=False) for split in ("train", "val")]
        seeds = [[int(v) for batch in loader for v in batch.to_pyg().input_id] for loader in loaders]
    Path(folder, f"seeds-{rank}").write_text("\n".join(" ".join(map(str, ids)) for ids in seeds))


def work(rank: int, cluster: str, folder: str) -> None:
    """A process of ``mp.spawn``: nothing in the environment says its rank."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    write_seeds(rank, cluster, folder)
    torch.distributed.barrier()


def by_spawn(cluster: str, folder: str) -> None:
    torch.multiprocessing.spawn(work, (cluster, folder), 2)


def by_torchrun(cluster: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    write_seeds(int(os.environ["RANK"]), cluster, folder)
    torch.distributed.barrier()


def by_accelerate(cluster: str, folder: str) -> None:
    from accelerate import Accelerator

    write_seeds(Accelerator(cpu=True).process_index, cluster, folder)


def by_lightning(cluster: str, folder: str) -> None:
    """Lightning's own launcher sets WORLD_SIZE for the first process, but no RANK."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))  # ddp takes no module without one

        def on_fit_start(self) -> None:
            write_seeds(self.global_rank, cluster, folder)

        def train_dataloader(self) -> Any:
            return []

        def training_step(self) -> None:
            """Nothing is trained."""

        def configure_optimizers(self) -> None:
            """Nor here."""

    pl.Trainer(
        max_epochs=1, devices=2, accelerator="cpu", strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Module())  # fmt: skip


def by_ray(cluster: str, folder: str) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train(config: dict[str, str]) -> None:
        from ray.train import get_context

        from tests.system.ranks import write_seeds

        write_seeds(get_context().get_world_rank(), **config)

    here = {"env_vars": {"PYTHONPATH": os.getcwd()}}
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=here)
    config = {"cluster": cluster, "folder": folder}
    TorchTrainer(
        train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=f"{folder}/ray"),
    ).fit()  # fmt: skip


if __name__ == "__main__":
    launcher, *words = sys.argv[1:]
    globals()[f"by_{launcher}"](*words)
