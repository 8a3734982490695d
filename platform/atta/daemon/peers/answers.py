"""What tasks ask of a peer, and the pieces in which its answers come.

``Peer`` asks over the network; tests answer in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from atta.samplers.batch.items import FeatureItem, SampleItem
from atta.samplers.shard import Answer

__all__ = ["AskedPeer", "AskedPeers", "PulledRows", "SampledRows"]


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

    address: str

    def sample(self, items: Sequence[SampleItem], *, age_ms: int = 0) -> AsyncIterator[SampledRows]:
        """Sampled edges of all rows of ``items``, in order, piece by piece."""
        ...

    def pull(self, items: Sequence[FeatureItem], codec: str = "", *, age_ms: int = 0) -> AsyncIterator[PulledRows]:
        """Table rows for all rows of ``items``, in order, piece by piece; float32 ones in ``codec``."""
        ...

    async def pair(
        self, edge_type: str, rows: np.ndarray, *, count: int, negative: bool, stream_key: int
    ) -> np.ndarray:
        """As ``Shard.pair``."""
        ...

    async def probe(
        self, edge_type: str, question: Any, rows: np.ndarray, operands: np.ndarray | None = None
    ) -> np.ndarray:
        """int64 [rows]: one number per core row of the peer (``ProbeRequest.Question``)."""
        ...


class AskedPeers(Protocol):
    """The other daemons, by partition."""

    def __getitem__(self, part: int) -> AskedPeer: ...
