"""Which node gets what: daemons by what they need, trainers beside their home daemons. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atta.errors import ConfigError
from atta.partition.graph.needs import Needs
from atta.samplers.seed_plan import home_of

__all__ = ["Rank", "bundles", "check_name", "home_nodes", "ranks_on"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_name(name: str) -> str:
    """``name`` if a cluster may have it, otherwise ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r}: takes letters, digits, '_', '.' and '-', at most 100, and begins with neither"
        )
    return name


def bundles(needs: Sequence[Needs], threads: int, cache: int, buffer: int) -> list[dict[str, float]]:
    """What Ray reserves for the daemon of each partition: cores and bytes of memory."""
    if threads < 1:
        raise ConfigError(f"threads is {threads}: must be at least 1")
    return [{"CPU": float(threads), "memory": float(need.memory(cache, buffer))} for need in needs]


def home_nodes(trainers: int, nodes: Sequence[str]) -> list[str]:
    """The node of each trainer's home daemon. ``nodes``: of the daemons, by partition."""
    return [nodes[home_of(rank, trainers, len(nodes))] for rank in range(trainers)]


@dataclass(frozen=True)
class Rank:
    """One trainer among all, in torchrun's terms."""

    rank: int
    world: int
    local_rank: int
    local_world: int

    def environment(self, host: str, port: int, threads: int) -> dict[str, str]:
        """The variables that torchrun sets. ``host``, ``port``: where rank 0 listens."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": str(threads),
        }


def ranks_on(nodes: Sequence[str]) -> list[Rank]:
    """Number the trainers of each node. ``nodes``: where each rank runs."""
    counts, seen, found = Counter(nodes), Counter[str](), []
    for rank, node in enumerate(nodes):
        found.append(Rank(rank, len(nodes), seen[node], counts[node]))
        seen[node] += 1
    return found
