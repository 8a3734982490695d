"""``atta train``: PyG models on sampled mini-batches, or on the subgraphs of whole servers.

Reading order: ``config`` (every setting), ``nodes`` (on which machines), ``launch`` (daemons and trainer processes), ``worker``
(one trainer process), ``loop`` (epochs, evaluation and checkpoints of any strategy), ``models`` (which PyG model), ``checkpoint``,
``failure`` (which of several is the cause), ``report`` (what is printed and written), ``timing`` (where the time goes).

Mini-batches: ``trainer`` (an epoch), ``transfer`` (batches to the device), ``step`` (one step) and ``allreduce``. Whole servers:
``server_trainer`` (an epoch), ``servers`` (subgraphs, whole or in co-batches), ``ahead`` (the next one, in the background),
``memory`` (how many of them), and the package ``cooperative``.
"""

from atta.train.config import TrainConfig
from atta.train.launching.launch import fit
from atta.train.launching.nodes import Nodes
from atta.train.report import EpochReport, TrainReport

__all__ = ["EpochReport", "Nodes", "TrainConfig", "TrainReport", "fit"]
