"""Process groups: the trainers of a server, and the servers' first trainers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from atta.errors import ConfigError
from atta.kvstore import codecs
from atta.train.steps.timing import Stopwatch

_WIDTH = 128


@dataclass(frozen=True)
class Place:
    """Server and number of a rank. Consecutive ranks form a server, as torchrun numbers them. A server has ``trainers``, on
    ``machines`` with the same number of consecutive ones each. Raises ConfigError: they do not divide so.
    """

    rank: int
    world_size: int
    trainers: int
    machines: int = 1

    def __post_init__(self) -> None:
        if self.trainers < 1 or self.world_size < 1 or self.world_size % self.trainers:
            raise ConfigError(f"{self.world_size} trainers cannot form servers of {self.trainers}")
        if self.machines < 1 or self.trainers % self.machines:
            raise ConfigError(f"the {self.trainers} trainers of a server cannot be on {self.machines} machines alike")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank}: there are {self.world_size}, from 0 on")

    @property
    def servers(self) -> int:
        """Number of servers."""
        return self.world_size // self.trainers

    @property
    def server(self) -> int:
        """The rank's server."""
        return self.rank // self.trainers

    @property
    def local_rank(self) -> int:
        """The rank's number within its server."""
        return self.rank % self.trainers

    @property
    def leader(self) -> int:
        """First rank of the server. Only this one exchanges messages with other servers."""
        return self.server * self.trainers

    @property
    def elsewhere(self) -> list[bool]:
        """For each rank whether it is on another server."""
        return [rank // self.trainers != self.server for rank in range(self.world_size)]

    def members(self, server: int) -> list[int]:
        """Ranks of a server."""
        return list(range(server * self.trainers, (server + 1) * self.trainers))


def machines_per_server(server_size: int, trainers_here: int) -> int:
    """How many machines a server of ``server_size`` trainers spans when each machine has ``trainers_here``. Raises
    ConfigError: a server would have one whole machine and a part of another."""
    if server_size % trainers_here and trainers_here % server_size:
        raise ConfigError(
            f"--trainers-per-server {server_size}: a machine has {trainers_here} trainers; take a multiple or a divisor of that"
        )
    return max(1, server_size // trainers_here)


class ServerGroups:
    """The process groups of a rank: ``inside`` its server, and one of all servers' first ranks.

    A sum is made within servers first, then between servers, then sent back within servers. So a server sends as much
    over the slow link as a single trainer would (GraNNDis section 4.2: only gradients leave a server).

    Attributes:
        handover: of the server again, for arrays in the machine's memory (gloo), in another thread.
        watch: where ``sum_`` counts its time, as phases ``sync`` (inside) and ``external``; None: it is not counted.
    """

    def __init__(self, trainers: int, machines: int = 1, *, timeout_s: float | None = None) -> None:
        """Make the groups; all ranks of the default process group must call this, with the same numbers. trainers,
        machines: per server; timeout_s: of a collective, None: torch's. ``handover`` has torch's in any case, since a
        large subgraph takes long to extract. Raises ConfigError as ``Place`` does."""
        self.place = Place(dist.get_rank(), dist.get_world_size(), trainers, machines)
        self.watch: Stopwatch | None = None
        # Every rank must take part in making every group, in the same order, even if it is not in the group.
        servers = [self.place.members(server) for server in range(self.place.servers)]
        limit = None if timeout_s is None else timedelta(seconds=timeout_s)
        self.inside = [dist.new_group(members, timeout=limit) for members in servers][self.place.server]
        self.handover = [dist.new_group(members, backend="gloo") for members in servers][self.place.server]
        self._leaders = dist.new_group(list(range(0, self.place.world_size, trainers)), timeout=limit)

    def sum_(self, tensor: torch.Tensor, codec: str = "none") -> torch.Tensor:
        """Sum over all ranks, in place; every rank gets the same bits. ``codec``: how numbers, float32 [n], travel between
        servers."""
        place = self.place
        watch = self.watch or Stopwatch(tensor.device)
        moments = [watch.now()]
        if place.trainers > 1:
            dist.reduce(tensor, place.leader, group=self.inside)
        moments.append(watch.now())
        if place.servers > 1 and place.rank == place.leader:
            if codec == "none":
                dist.all_reduce(tensor, group=self._leaders)
            else:
                tensor.copy_(packed_sum(tensor, codec, self._leaders))
        moments.append(watch.now())
        if place.trainers > 1:
            dist.broadcast(tensor, place.leader, group=self.inside)
        moments.append(watch.now())
        for phase, start, end in zip(("sync", "external", "sync"), moments, moments[1:], strict=False):
            watch.add(phase, start, end)
        return tensor


def packed_sum(numbers: torch.Tensor, codec: str, group: dist.ProcessGroup) -> torch.Tensor:
    """The sum of ``numbers``, float32 [n], over a group. Each rank adds up a part of them, and hands it out. What travels
    is rounded by ``codec``: bf16, fp16, or int8 with a scale for ``_WIDTH`` numbers."""

    def pack(rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(codecs.encode(codec, rows.cpu().numpy())).to(numbers.device)

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        rows = np.empty((len(packed), _WIDTH), np.float32)
        codecs.decode(codec, packed.cpu().numpy(), rows)
        return torch.from_numpy(rows).to(numbers.device)

    ranks = dist.get_world_size(group)
    mine = pack(F.pad(numbers, (0, -len(numbers) % (ranks * _WIDTH))).view(-1, _WIDTH))
    parts = torch.empty_like(mine)
    dist.all_to_all_single(parts, mine, group=group)
    dist.all_gather(list(parts.chunk(ranks)), pack(unpack(parts).view(ranks, -1, _WIDTH).sum(0)), group=group)
    return unpack(parts).view(-1)[: len(numbers)]
