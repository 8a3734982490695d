"""What a training loop iterates over: loaders, and the mini-batches that they give."""

from atta.client.loaders.batch import BatchLoader
from atta.client.loaders.dag import DagLoader
from atta.client.loaders.neighbor import NeighborLoader

__all__ = ["BatchLoader", "DagLoader", "NeighborLoader"]
