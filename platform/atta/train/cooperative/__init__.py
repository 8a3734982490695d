"""Server-aware training after GraNNDis: the trainers of a server share one subgraph, and only gradients leave the
server.

A *server* is a machine with N trainers. Links within a server are fast, links between servers are slow. Each server has
its own vertices and everything that their outputs depend on, so one step is

    loss on own targets ── backward ──► gradients ── sum over all trainers of all servers ──► optimiser
          ▲      │
          │      ▼  before each layer: rows that another trainer of this server reads (and their gradients on the way back)
       layer by layer, own rows only

If the subgraph is complete, the result is the exact gradient that one process would compute on the whole graph.
``TrainingGraph.exact_layers`` says for how many layers it is complete.

Reading order: ``graph`` (a server's subgraph, and what a trainer reads and sends of it), ``split`` (which trainer
computes which vertex), ``groups`` (process groups), ``source`` (rows of other trainers, and their gradients), ``exchange``
(such rows in a layer, for autograd), ``dropout`` (after the exchange), ``model`` (PyG layers and models on a trainer's
rows), ``step`` (one training step), ``shares`` and ``subgraphs`` (from a server's subgraph to a share for each trainer),
``memory`` (how many co-batches fit), ``halo`` (rows of other servers) and ``trainer`` (an epoch).
"""

from atta.train.cooperative.exchange import CooperativeGraph, exchange, start_exchange
from atta.train.cooperative.graph import TrainingGraph, WorkerView, worker_view
from atta.train.cooperative.groups import Place, ServerGroups
from atta.train.cooperative.model import CooperativeModel, Exchanged
from atta.train.cooperative.source import Source, source_inside
from atta.train.cooperative.split import split_vertices
from atta.train.cooperative.step import TrainerBatch, backward, broadcast_weights, count_targets
from atta.train.models.deep import DeepGNN

__all__ = [
    "CooperativeGraph",
    "CooperativeModel",
    "DeepGNN",
    "Exchanged",
    "Place",
    "ServerGroups",
    "Source",
    "TrainerBatch",
    "TrainingGraph",
    "WorkerView",
    "backward",
    "broadcast_weights",
    "count_targets",
    "exchange",
    "source_inside",
    "split_vertices",
    "start_exchange",
    "worker_view",
]
