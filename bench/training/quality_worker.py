"""A trainer of ``bench.training.quality``: trains an example on running daemons, with the gradients of all trainers.

    python -m bench.training.quality_worker TASK CLUSTER SEED OUT -- OPTIONS OF THE EXAMPLE

torchrun's variables say which trainer it is. The examples know nothing of other trainers: before each step of their
optimiser gradients are averaged. Rank 0 writes OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

import atta
from atta_bench.record import ROOT

sys.path.insert(0, str(ROOT / "examples"))

import hetero_nodes
import link_prediction


def average(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Replace all gradients by their mean over the trainers."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = mean.reshape(p.shape)


def main() -> None:
    """Train once."""
    task, address, seed, out, _, *options = sys.argv[1:]
    example: Any = hetero_nodes if task == "hetero" else link_prediction
    arguments = example.parser().parse_args(options)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    register_optimizer_step_pre_hook(average)
    data = () if task == "hetero" else (link_prediction.read(arguments.data, arguments.dimensions)[0],)
    with atta.connect(address) as cluster:
        found = example.train(cluster, *data, arguments, int(seed))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main()
