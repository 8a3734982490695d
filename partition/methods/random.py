"""Random partitioning by a hash of the user id: balanced to one vertex, independent of the order in the folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atta.errors import ConfigError
from atta.observe.progress import Progress
from atta.partition.cutting.balance import TYPES
from atta.partition.graph import Graph


@dataclass(frozen=True)
class Random:
    """Deals out the vertices of each type in the order of their hashes."""

    def check_balance(self, balance: Sequence[str]) -> None:
        """Refuse all but vertices."""
        if set(balance) != {"nodes"}:
            raise ConfigError(f"--balance {','.join(balance)}: the method random balances nodes only")

    def bounds(self, names: Sequence[str]) -> dict[str, float]:
        return {TYPES: 0.0}

    def assign(
        self, graph: Graph, parts: int, *, seed: int, balance: Sequence[str] | None = None, progress: Progress
    ) -> dict[str, npt.NDArray[np.int32]]:
        progress.stage("random assignment", None)
        out = {}
        for node_type in graph.schema.node_types:
            count = graph.schema.node_counts[node_type]
            user = graph.user_ids(node_type)
            ids = np.arange(count, dtype=np.int64) if user is None else np.asarray(user)
            owners = np.empty(count, np.int32)
            shares = np.arange(count, dtype=np.int64) * parts // max(1, count)
            owners[np.argsort(_hash(ids, seed), kind="stable")] = shares
            out[node_type] = owners
        return out


def _hash(ids: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """Mix 64 bits (the finaliser of SplitMix64), a bijection: distinct ids never collide."""
    x = ids.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
