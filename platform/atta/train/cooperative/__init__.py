"""Server-aware training after GraNNDis: the trainers of a server share one subgraph, and only gradients leave the
server. A *server* is a machine with N trainers, or several of them. If the subgraph is complete, the result is the
exact gradient that one process would compute on the whole graph (``TrainingGraph.exact_layers``)."""

from atta.train.cooperative.exchange import (
    TrainerBatch,
    backward,
    broadcast_weights,
    count_targets,
    exchange,
    start_exchange,
)
from atta.train.cooperative.graph import TrainingGraph, WorkerView, worker_view
from atta.train.cooperative.groups import Place, ServerGroups
from atta.train.cooperative.model import CooperativeModel
from atta.train.cooperative.shares import split_vertices
from atta.train.models.deep import DeepGNN

__all__ = [
    "CooperativeModel",
    "DeepGNN",
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
