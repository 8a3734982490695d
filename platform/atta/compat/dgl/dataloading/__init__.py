"""``dgl.dataloading``: samplers, and the loaders of distributed graphs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from atta.compat.dgl.offered import refuse

_HERE = __name__
_HOMES = {
    "DistEdgeDataLoader": f"{_HERE}.edge",
    "DistNodeDataLoader": f"{_HERE}.node",
    "MultiLayerFullNeighborSampler": f"{_HERE}.sampler",
    "MultiLayerNeighborSampler": f"{_HERE}.sampler",
    "NeighborSampler": f"{_HERE}.sampler",
}
__all__ = [
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "negative_sampler",
]


def __getattr__(name: str) -> Any:
    if name == "negative_sampler":
        return import_module(f"{_HERE}.negative_sampler")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise refuse(_HERE, name, __all__)


def __dir__() -> list[str]:
    return __all__
