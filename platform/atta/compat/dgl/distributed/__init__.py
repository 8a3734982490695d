"""``dgl.distributed``: the graph, its tensors, and the division of work."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from atta.compat.dgl.offered import refuse

_HERE = __name__
_HOMES = {
    "DistDataLoader": "atta.compat.dgl.dataloading.ids",
    "DistEdgeDataLoader": "atta.compat.dgl.dataloading",
    "DistEmbedding": f"{_HERE}.embedding",
    "DistGraph": f"{_HERE}.graph",
    "DistNodeDataLoader": "atta.compat.dgl.dataloading",
    "DistTensor": f"{_HERE}.tensor",
    "GraphPartitionBook": f"{_HERE}.book",
    "PartitionPolicy": f"{_HERE}.book",
    "barrier": "atta.compat.dgl.job",
    "edge_split": f"{_HERE}.split",
    "exit_client": "atta.compat.dgl.job",
    "in_subgraph": f"{_HERE}.queries",
    "initialize": "atta.compat.dgl.job",
    "is_initialized": "atta.compat.dgl.job",
    "node_split": f"{_HERE}.split",
    "sample_neighbors": f"{_HERE}.queries",
}
__all__ = [
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistEmbedding",
    "DistGraph",
    "DistNodeDataLoader",
    "DistTensor",
    "GraphPartitionBook",
    "PartitionPolicy",
    "barrier",
    "edge_split",
    "exit_client",
    "in_subgraph",
    "initialize",
    "is_initialized",
    "node_split",
    "optim",
    "sample_neighbors",
]


def __getattr__(name: str) -> Any:
    if name == "optim":
        return import_module(f"{_HERE}.optim")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise refuse(_HERE, name, __all__)


def __dir__() -> list[str]:
    return __all__
