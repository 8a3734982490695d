"""The partition and the trainers of each server, as ``atta train --trainers-per-server`` will place them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atta.errors import ConfigError
from atta.samplers.seed_plan import home_of, local_counts

MOST_TRAINERS = 1024
"""At most this many trainers per server. A higher number is treated as a typing error."""


@dataclass(frozen=True)
class TrainerPlace:
    """A trainer: its rank among all trainers, and how many training vertices it has with mini-batches (``--seed-policy
    local``)."""

    rank: int
    training_vertices: int


@dataclass(frozen=True)
class ServerPlace:
    """A server. Server s has partition s: its numbers of vertices, in-edges, training vertices and HALO vertices, and
    the server's trainers."""

    server: int
    vertices: int
    in_edges: int
    training_vertices: int
    halo: int
    trainers: tuple[TrainerPlace, ...]


def placement(parts: Sequence[Mapping[str, Any]], trainers_per_server: int = 1) -> list[ServerPlace]:
    """The servers of a dataset, if every ``trainers_per_server`` consecutive ranks share a server.

    parts: counts of each partition, as in ``quality["parts"]`` of ``atta.partition.describe.describe``; node and edge
    types are added up. A trainer's training vertices are counted before padding. They come from near its server, but
    all trainers get equally many. So with uneven partitions some of them belong to another server.

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
