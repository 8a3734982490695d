"""``dgl.dataloading.negative_sampler``: which pairs ``DistEdgeDataLoader`` makes beside its edges. Daemons draw them."""

from __future__ import annotations

from typing import Any

from atta.compat import refuse
from atta.samplers.arguments import whole

__all__ = ["PerSourceUniform", "Uniform"]


class Uniform:
    """``k`` pairs for each edge: its source, and any vertex of its destinations' type."""

    def __init__(self, k: int) -> None:
        self.k = whole("k", k, 1)


class PerSourceUniform(Uniform):
    """Another name of ``Uniform``."""


def __getattr__(name: str) -> Any:
    raise refuse(__name__, name, __all__)
