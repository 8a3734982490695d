"""Atta: sampled mini-batches for graph neural networks, from graphs that outgrow one machine.

    import atta
    cluster = atta.local("data/demo-2p")                  # or atta.connect("cluster.toml")
    loader = atta.NeighborLoader(cluster, num_neighbors=[15, 10, 5], input_nodes="train", batch_size=1024)
    for batch in loader:
        data = batch.to_pyg()

Names are imported when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atta.errors import (
    AttaError,
    ConfigError,
    DaemonEndedError,
    DataError,
    DeadlineError,
    DiskFullError,
    DrainingError,
    NonFiniteError,
    NotAllowedError,
    NotAuthenticatedError,
    PeerLostError,
    PluginError,
    ProtocolError,
    QuotaExceededError,
    RemoteError,
    RestartedError,
    SamplingContractError,
    StaleRowError,
    TrainerLostError,
    UnavailableError,
    UnknownClientError,
    UnknownNameError,
    WrongDatasetError,
)

OWN_VERBOSITY = "GRPC_VERBOSITY" not in os.environ
if OWN_VERBOSITY:  # gRPC reads it when it is imported. Atta's errors say the same as its lines.
    os.environ["GRPC_VERBOSITY"] = "NONE"

if TYPE_CHECKING:
    from atta.client.cluster import Cluster, connect
    from atta.client.loaders.batch import BatchLoader
    from atta.client.loaders.dag import DagLoader
    from atta.client.loaders.link import LinkNeighborLoader, NegativeSampling
    from atta.client.loaders.minibatch import MiniBatch
    from atta.client.loaders.neighbor import HGTLoader, NeighborLoader
    from atta.client.loaders.prefetch import PrefetchLoader
    from atta.client.loaders.server import ServerLoader, server_subgraph
    from atta.client.local import LocalCluster, local
    from atta.client.tables.embedding import DistEmbedding
    from atta.client.tables.tensor import DistTensor
    from atta.kvstore.spec import OptimiserSpec
    from atta.observe.packages import __version__
    from atta.partition.importers.networkx import from_networkx
    from atta.wire.credentials import Credentials

__all__ = [
    "AttaError",
    "BatchLoader",
    "Cluster",
    "ConfigError",
    "Credentials",
    "DaemonEndedError",
    "DagLoader",
    "DataError",
    "DeadlineError",
    "DiskFullError",
    "DistEmbedding",
    "DistTensor",
    "DrainingError",
    "HGTLoader",
    "InferenceFollower",
    "LinkNeighborLoader",
    "LocalCluster",
    "MiniBatch",
    "NegativeSampling",
    "NeighborLoader",
    "NonFiniteError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "OptimiserSpec",
    "PeerLostError",
    "PluginError",
    "PrefetchLoader",
    "ProtocolError",
    "QuotaExceededError",
    "RemoteError",
    "RestartedError",
    "SamplingContractError",
    "ServerLoader",
    "StaleRowError",
    "TrainerLostError",
    "UnavailableError",
    "UnknownClientError",
    "UnknownNameError",
    "WrongDatasetError",
    "__version__",
    "check",
    "connect",
    "explain",
    "from_networkx",
    "local",
    "predict",
    "server_subgraph",
]

_HOMES = {
    "BatchLoader": "atta.client.loaders.batch",
    "Cluster": "atta.client.cluster",
    "Credentials": "atta.wire.credentials",
    "DagLoader": "atta.client.loaders.dag",
    "DistEmbedding": "atta.client.tables.embedding",
    "DistTensor": "atta.client.tables.tensor",
    "HGTLoader": "atta.client.loaders.neighbor",
    "InferenceFollower": "atta.train.launching.follow",
    "LinkNeighborLoader": "atta.client.loaders.link",
    "LocalCluster": "atta.client.local",
    "MiniBatch": "atta.client.loaders.minibatch",
    "NegativeSampling": "atta.client.loaders.link",
    "NeighborLoader": "atta.client.loaders.neighbor",
    "OptimiserSpec": "atta.kvstore.spec",
    "PrefetchLoader": "atta.client.loaders.prefetch",
    "ServerLoader": "atta.client.loaders.server",
    "__version__": "atta.observe.packages",
    "check": "atta.train.launching.check",
    "connect": "atta.client.cluster",
    "explain": "atta.train.launching.explain",
    "from_networkx": "atta.partition.importers.networkx",
    "local": "atta.client.local",
    "predict": "atta.train.launching.predict",
    "server_subgraph": "atta.client.loaders.server",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            from atta.observe.packages import EXTRAS, need

            if error.name in EXTRAS:
                need(f"atta.{name}", error.name)
            raise
    if name in ("nn", "ray"):
        return import_module(f"atta.{name}")
    raise AttributeError(f"module 'atta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
