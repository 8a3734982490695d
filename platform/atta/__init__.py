"""Atta: sampled mini-batches for graph neural networks, from graphs that outgrow one machine.

    import atta
    cluster = atta.local("data/demo-2p")                  # or atta.connect("cluster.toml")
    loader = atta.NeighborLoader(cluster, num_neighbors=[15, 10, 5], input_nodes="train", batch_size=1024)
    for batch in loader:
        data = batch.to_pyg()

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atta.errors import (
    AttaError,
    ConfigError,
    DataError,
    DeadlineError,
    DiskFullError,
    QuotaExceededError,
    RemoteError,
    RestartedError,
    UnavailableError,
    UnknownClientError,
    UnknownNameError,
    WrongDatasetError,
)
from atta.version import __version__

if TYPE_CHECKING:
    from atta.client.cluster import Cluster, connect
    from atta.client.local import LocalCluster, local
    from atta.embedding import DistEmbedding
    from atta.kvstore.spec import OptimiserSpec
    from atta.links import LinkNeighborLoader, NegativeSampling
    from atta.loader import BatchLoader, DagLoader, NeighborLoader
    from atta.minibatch import MiniBatch
    from atta.partition.importers.networkx import from_networkx
    from atta.server_graph import ServerLoader, server_subgraph
    from atta.tensor import DistTensor

__all__ = [
    "AttaError",
    "BatchLoader",
    "Cluster",
    "ConfigError",
    "DagLoader",
    "DataError",
    "DeadlineError",
    "DiskFullError",
    "DistEmbedding",
    "DistTensor",
    "LinkNeighborLoader",
    "LocalCluster",
    "MiniBatch",
    "NegativeSampling",
    "NeighborLoader",
    "OptimiserSpec",
    "QuotaExceededError",
    "RemoteError",
    "RestartedError",
    "ServerLoader",
    "UnavailableError",
    "UnknownClientError",
    "UnknownNameError",
    "WrongDatasetError",
    "__version__",
    "connect",
    "from_networkx",
    "local",
    "server_subgraph",
]

_HOMES = {
    "BatchLoader": "atta.loader",
    "Cluster": "atta.client.cluster",
    "DagLoader": "atta.loader",
    "DistEmbedding": "atta.embedding",
    "DistTensor": "atta.tensor",
    "LinkNeighborLoader": "atta.links",
    "LocalCluster": "atta.client.local",
    "MiniBatch": "atta.minibatch",
    "NegativeSampling": "atta.links",
    "NeighborLoader": "atta.loader",
    "OptimiserSpec": "atta.kvstore.spec",
    "ServerLoader": "atta.server_graph",
    "connect": "atta.client.cluster",
    "from_networkx": "atta.partition.importers.networkx",
    "local": "atta.client.local",
    "server_subgraph": "atta.server_graph",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'atta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
