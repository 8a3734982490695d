"""``dgl.dataloading``: samplers, and the loaders of distributed graphs."""

from atta.compat.dgl.offered import front

_HOMES = {
    **dict.fromkeys(("DistEdgeDataLoader", "DistNodeDataLoader"), ".loaders"),
    **dict.fromkeys(("MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler", "NeighborSampler"), ".sampler"),
    "negative_sampler": ".negative_sampler",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = front(__name__, _HOMES)
