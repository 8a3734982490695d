"""``atta train``: PyG models, DistributedDataParallel, distributed sampling.

Reading order: ``config`` (every setting), ``launch`` (daemons and trainer processes), ``worker`` (one trainer process),
``trainer`` (the training loop), ``models`` (which PyG model), ``transfer`` (batches to the device), ``step`` (one step),
``timing`` and ``allreduce`` (where the time goes), ``checkpoint``, ``failure`` (which of several is the cause), ``report`` (what is
printed and written).
"""

from atta.train.config import TrainConfig
from atta.train.launch import fit
from atta.train.report import EpochReport, TrainReport

__all__ = ["EpochReport", "TrainConfig", "TrainReport", "fit"]
