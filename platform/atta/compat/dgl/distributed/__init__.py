"""``dgl.distributed``: the graph, its tensors, and the division of work."""

from atta.compat import front

_HOMES = {
    **dict.fromkeys(("DistDataLoader", "DistEdgeDataLoader", "DistNodeDataLoader"), "..loaders"),
    "DistEmbedding": ".embedding",
    "DistGraph": ".graph",
    "DistTensor": ".tensor",
    **dict.fromkeys(("GraphPartitionBook", "PartitionPolicy"), ".book"),
    **dict.fromkeys(("barrier", "exit_client", "initialize", "is_initialized"), "..job"),
    **dict.fromkeys(("edge_split", "node_split"), ".split"),
    **dict.fromkeys(("in_subgraph", "sample_neighbors"), ".edges"),
    "optim": ".optim",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = front(__name__, _HOMES)
