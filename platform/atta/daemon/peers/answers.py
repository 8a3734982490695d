"""What tasks ask of peers, and the pieces in which their answers come.

``Peer`` asks over the network; tests answer in its place. ``Owners`` asks all peers that own rows of a task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.shard import Answer

__all__ = ["AskedOwners", "AskedPeer", "AskedPeers", "PulledRows", "SampledRows"]


class SampledRows(NamedTuple):
    """Sampled edges of consecutive rows of one item."""

    item: SampleItem
    first_row: int
    answer: Answer
    nbytes: int  # on the network


class PulledRows(NamedTuple):
    """Table rows for consecutive rows of one item."""

    item: int  # its position in the request
    first_row: int
    rows: int
    data: Any  # their bytes, table by table


class AskedPeer(Protocol):
    """A daemon of another partition, as tasks see it. ``age_ms``: age of the batch; peers answer the oldest first."""

    @property
    def address(self) -> str:
        """Where the owner is that is asked now."""

    def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> AsyncIterator[SampledRows]:
        """Sampled edges of all rows of ``items``, in order, piece by piece."""
        ...

    def pull(self, items: Sequence[FeatureItem], codec: str = "", *, age_ms: int = 0) -> AsyncIterator[PulledRows]:
        """Table rows for all rows of ``items``, in order, piece by piece; float32 ones in ``codec``."""
        ...

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int, version: int = 0
    ) -> np.ndarray:
        """As ``Shard.pair``; ``version``: as for ``SampleItem``."""
        ...

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None, *, version: int = 0
    ) -> np.ndarray:
        """int64 [rows]: one number per core row of the peer (``ProbeRequest.Question``); ``version``: as for
        ``SampleItem``."""
        ...


class AskedPeers(Protocol):
    """The other daemons, by partition."""

    def __getitem__(self, part: int) -> AskedPeer: ...


class AskedOwners(Protocol):
    """All owners of a task's rows at once. The items have ``starts`` and at least one row each, and their rows are internal
    ids.

    When a method returns or raises, nothing writes into the batch any more. Errors name the peer that is to blame.
    """

    async def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> list[SampledRows]:
        """Sampled edges of ``items``: every row once, piece by piece, in any order."""
        ...

    async def pull(
        self, items: Sequence[FeatureItem], outs: Sequence[Sequence[np.ndarray]], codec: str = "", *, age_ms: int = 0
    ) -> int:
        """Put the table rows of each item at its positions in its ``outs``, the batch's arrays of its tables.

        float32 rows come in ``codec``. Returns the number of bytes that came.
        """
        ...
