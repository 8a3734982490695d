"""Which server has which partition, and which trainers: what ``atta train --trainers-per-server`` does, told beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError
from atta.samplers.seed_plan import home_of, local_counts

__all__ = ["MOST_TRAINERS", "ServerPlace", "TrainerPlace", "placement"]

MOST_TRAINERS = 1024
"""Per server; more are a slip of the finger."""


@dataclass(frozen=True)
class TrainerPlace:
    """A trainer: its rank among all, and how many training vertices are its own with mini-batches (``--seed-policy local``)."""

    rank: int
    training_vertices: int


@dataclass(frozen=True)
class ServerPlace:
    """Server s has partition s: vertices, in-edges, training vertices and HALO vertices of it, and the trainers."""

    server: int
    vertices: int
    in_edges: int
    training_vertices: int
    halo: int
    trainers: tuple[TrainerPlace, ...]


def placement(parts: Sequence[Mapping[str, Any]], trainers_per_server: int = 1) -> list[ServerPlace]:
    """The servers of a dataset when every ``trainers_per_server`` consecutive ranks are one.

    parts: counts of each partition, as ``quality["parts"]`` of ``atta.partition.describe.describe`` has them; node and edge types
    are added up. A trainer's training vertices are those before padding. They come from near its server, but are shared out
    evenly, so where partitions are uneven some are another server's.

    Raises:
        ConfigError: fewer than one trainer per server, or more than 1024.
    """
    if not 1 <= trainers_per_server <= MOST_TRAINERS:
        raise ConfigError(f"--trainers-per-server {trainers_per_server}: must be 1 to {MOST_TRAINERS}")
    world = len(parts) * trainers_per_server
    training = [{t: sizes.get("train", 0) for t, sizes in part["splits"].items()} for part in parts]
    by_type = [local_counts(sum(part[t] for part in training), world) for t in (training[0] if training else ())]
    trainers = [TrainerPlace(rank, sum(counts[rank] for counts in by_type)) for rank in range(world)]
    return [
        ServerPlace(
            server=server,
            vertices=sum(part["nodes"].values()),
            in_edges=sum(part["edges"].values()),
            training_vertices=sum(training[server].values()),
            halo=sum(part["halo"].values()),
            trainers=tuple(t for t in trainers if home_of(t.rank, world, len(parts)) == server),
        )
        for server, part in enumerate(parts)
    ]
