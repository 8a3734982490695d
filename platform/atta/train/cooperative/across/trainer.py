"""The trainer of strategies in which servers read each other's rows: what one rank does."""

from __future__ import annotations

import torch
import torch.distributed as dist

import atta
from atta.train.cooperative.across.meeting import HaloRows, meet
from atta.train.cooperative.exchange import ExactSource, Source
from atta.train.cooperative.sharing.shares import TrainerShare
from atta.train.cooperative.trainer import ServerTrainer, StepInput
from atta.train.settings import CooperativeSettings, ExchangeSettings
from atta.train.steps.timing import Stopwatch

__all__ = ["ExchangeTrainer"]


class ExchangeTrainer(ServerTrainer):
    """Computes the rows of its own vertices only; all others come from the trainers that compute them.

    A sub-class says where the rows of other servers come from (``across``). Rows of the same server are always those of
    this step.
    """

    def __init__(self, config: ExchangeSettings, cluster: atta.Cluster, device: torch.device) -> None:
        """Raises the errors of ``ServerTrainer``."""
        super().__init__(CooperativeSettings(**vars(config)), cluster, device, halo=True)

    def across(self, found: HaloRows) -> Source:
        """The source of HALO rows."""
        world = dist.group.WORLD
        assert world is not None
        place = self.groups.place
        return ExactSource(
            found.lists,
            len(found.view.own),
            world,
            device=self.device,
            elsewhere=[rank // place.trainers != place.server for rank in range(place.world_size)],
        )

    def _on_device(self, share: TrainerShare, watch: Stopwatch) -> StepInput:
        start = watch.now()
        found = meet(share.view, self.groups.place, self.device)
        watch.add("fetch", start, watch.now())
        return self._placed(TrainerShare(found.view, share.splits), watch, self.across(found))
