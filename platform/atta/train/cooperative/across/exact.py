"""The exact forward pass: a trainer computes its own vertices from all their neighbours, and rows of this step travel."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

import atta
from atta.train.cooperative.across.meeting import HaloRows, meet
from atta.train.cooperative.across.reads import halo_rows
from atta.train.cooperative.exchange import ExactSource
from atta.train.cooperative.groups import ServerGroups
from atta.train.cooperative.sharing.shares import TrainerShare
from atta.train.cooperative.sharing.subgraphs import ServerData
from atta.train.cooperative.step import TrainerBatch
from atta.train.settings import CooperativeSettings
from atta.train.steps.timing import Stopwatch
from atta.train.tasks import LearningTask

__all__ = ["exact_batch", "exact_share"]


def exact_share(
    config: CooperativeSettings, cluster: atta.Cluster, groups: ServerGroups, device: torch.device, task: LearningTask
) -> tuple[TrainerShare, TrainerBatch]:
    """This trainer's share of the whole graph, extracted anew, and its tensors; all ranks call this.

    Raises the errors of ``ServerData.prepare`` and ``meet``.
    """
    once = replace(config, co_batches=1, memory=None)
    watch = Stopwatch(device)
    data = ServerData(once, cluster, groups, device, task, halo=True)
    data.prepare(0, watch, lambda view: 0)  # without memory nobody asks what a step needs
    share = data.whole(watch)
    found = meet(share.view, groups.place, device)
    return TrainerShare(found.view, share.splits), exact_batch(found, groups, device)


def exact_batch(found: HaloRows, groups: ServerGroups, device: torch.device) -> TrainerBatch:
    """The tensors of a trainer's share, with a source of rows of the present step."""
    view, place, world = found.view, groups.place, dist.group.WORLD
    assert world is not None
    elsewhere = halo_rows(found, place).elsewhere
    across = ExactSource(found.lists, len(view.own), world, device=device, elsewhere=elsewhere)
    return TrainerBatch.of(view, groups.inside, device=device, machines=place.machines, across=across)
