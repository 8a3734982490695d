"""What a fill works with: the other daemons, and the thread that puts their answers into place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from atta.daemon.peers.owners import AskedOwners
from atta.daemon.peers.peers import AskedPeers

__all__ = ["FillSource", "of_one_owner"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class FillSource:
    """The other daemons of a cluster.

    Attributes:
        owners: answer with rows and in-edges, over links where there are some.
        peers: answer with degrees and digests.
        pool: checks and copies what comes, beside the workers and below them.
    """

    owners: AskedOwners
    peers: AskedPeers
    pool: Executor

    async def work(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call ``function`` on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *args)


def of_one_owner(parts: int, owner: int, rows: int) -> np.ndarray:
    """The ``starts`` of an item whose ``rows`` rows all belong to ``owner``: int64 [parts + 1]."""
    return np.where(np.arange(parts + 1) <= owner, 0, rows).astype(np.int64)
