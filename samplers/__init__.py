"""Sampling: the kernels, the samplers that run in one process, and the parts from which daemons make batches. It works
without a daemon (docs/guide/samplers.md)."""

from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.growth import HeteroBatch, LocalBatch
from atta.samplers.local.sampler import LocalSampler
from atta.samplers.methods import Method

__all__ = ["HeteroBatch", "LocalBatch", "LocalGraph", "LocalSampler", "Method"]
