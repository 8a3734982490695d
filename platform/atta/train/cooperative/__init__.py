"""Server-aware training after GraNNDis: the trainers of a server share one subgraph, and only gradients leave the server.

A *server* is a machine with N trainers that reach each other fast; servers reach each other slowly. Each server holds the
vertices that it answers for and everything that their outputs depend on, so one step is

    loss on own targets ── backward ──► gradients ── sum over all trainers of all servers ──► optimiser
          ▲      │
          │      ▼  before each layer: rows that another trainer of this server reads (and their gradients on the way back)
       layer by layer, own rows only

What is computed is the gradient of the whole graph in one process, not an approximation, as long as the subgraph is complete;
``TrainingGraph.exact_layers`` says for how many layers it is.

Reading order: ``graph`` (what a server holds), ``split`` (who computes which vertex), ``views`` (what a trainer reads and
sends), ``groups`` (who talks to whom), ``exchange`` (rows and gradients within a server), ``layers`` and ``model`` (PyG layers
and whole models on a trainer's rows), ``deep`` (ResGCN+ and DeeperGCN), ``step`` (one training step), ``shares`` (who gets
what of a subgraph) and ``handover`` (shares on their way to the trainers).
"""

from atta.train.cooperative.exchange import CooperativeGraph, exchange, start_exchange
from atta.train.cooperative.graph import TrainingGraph
from atta.train.cooperative.groups import Place, ServerGroups
from atta.train.cooperative.layers import Exchanged
from atta.train.cooperative.model import CooperativeModel
from atta.train.cooperative.split import split_vertices
from atta.train.cooperative.step import TrainerBatch, backward, broadcast_weights, count_targets
from atta.train.cooperative.views import WorkerView, worker_view
from atta.train.models.deep import DeepGNN

__all__ = [
    "CooperativeGraph",
    "CooperativeModel",
    "DeepGNN",
    "Exchanged",
    "Place",
    "ServerGroups",
    "TrainerBatch",
    "TrainingGraph",
    "WorkerView",
    "backward",
    "broadcast_weights",
    "count_targets",
    "exchange",
    "split_vertices",
    "start_exchange",
    "worker_view",
]
