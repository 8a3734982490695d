"""Samplers of whole batches, written as programs over ``atta.samplers.requests``. Each operator is a frozen dataclass
of its options.

A result is a function of the batch's seed, epoch and number and of user ids. So it is the same for any partitioning and
in any process. Everything that an operator of your own needs can be imported from here (docs/guide/own-operator.md).
"""

from atta.samplers.operators.base import Batch, Bounds, Operator, Sampled
from atta.samplers.operators.cluster import Induced
from atta.samplers.operators.layers import FastGcn, Ladies
from atta.samplers.operators.local import Subgraph, sample_locally
from atta.samplers.operators.pagerank import PageRank
from atta.samplers.operators.parts.subgraph import first_seen, induced_subgraph
from atta.samplers.operators.saint import SaintEdges, SaintNodes, SaintWalks
from atta.samplers.operators.server import Closure, ExpansionAware
from atta.samplers.operators.shadow import Shadow
from atta.samplers.operators.walks import PinSage, Walks
from atta.samplers.requests import Contains, Degrees, DegreeSums, Expand, Neighbors, Program, Request, Step

__all__ = [
    "BUILT_IN",
    "Batch",
    "Bounds",
    "Closure",
    "Contains",
    "DegreeSums",
    "Degrees",
    "Expand",
    "ExpansionAware",
    "FastGcn",
    "Induced",
    "Ladies",
    "Neighbors",
    "Operator",
    "PageRank",
    "PinSage",
    "Program",
    "Request",
    "SaintEdges",
    "SaintNodes",
    "SaintWalks",
    "Sampled",
    "Shadow",
    "Step",
    "Subgraph",
    "Walks",
    "first_seen",
    "induced_subgraph",
    "sample_locally",
]

BUILT_IN: dict[str, type] = {
    "shadow": Shadow,
    "saint-nodes": SaintNodes,
    "saint-edges": SaintEdges,
    "saint-walks": SaintWalks,
    "induced": Induced,
    "ladies": Ladies,
    "fastgcn": FastGcn,
    "walks": Walks,
    "pinsage": PinSage,
    "pagerank": PageRank,
    "closure": Closure,
    "expansion-aware": ExpansionAware,
}
"""The operators that come with Atta, by the names that daemons know."""
