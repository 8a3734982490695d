"""Samplers of whole batches, written as programs over ``atta.samplers.requests``. Each is a frozen dataclass of its
options.

Their results are functions of a batch's stream and of user ids: any partitioning of the graph, and any process, gives
the same. Everything that an operator of your own needs can be imported from here (docs/own-operator.md).
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
"""The operators that come with Atta, by the names under which daemons know them."""
