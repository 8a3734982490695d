"""``python -m tests.system.in_group MEETING SETTINGS ADDRESSES``: a program that trains twice in a process group of its
own. It prints the losses.
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from atta.train import TrainConfig
from atta.train.launching.worker import run


def main(meeting: str, settings: str, addresses: str) -> None:
    dist.init_process_group("gloo", f"file://{meeting}", rank=0, world_size=1)
    config = TrainConfig.from_dict(json.loads(settings))
    losses = [[epoch.loss for epoch in run(config, json.loads(addresses))] for _ in range(2)]
    dist.barrier()
    dist.destroy_process_group()  # fails if nothing is open
    print(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
