"""Sampling: kernels, the samplers of one process, and what daemons make batches with. Works without a daemon
(docs/samplers.md)."""

from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.sampler import HeteroBatch, LocalBatch, LocalSampler
from atta.samplers.methods import Method

__all__ = ["HeteroBatch", "LocalBatch", "LocalGraph", "LocalSampler", "Method"]
