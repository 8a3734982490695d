"""``atta train``: PyG models on sampled mini-batches, or on the subgraphs of whole servers.

Reading order: ``settings`` and ``config`` (every setting), ``strategies`` (which there are, one file each),
``launching`` (daemons and trainer processes), ``loop`` (epochs, evaluation and checkpoints of any strategy),
``checkpoint``, ``models``, ``labels``, ``reports`` (what is printed and written).

Trainers: ``steps.minibatch`` for sampled mini-batches, ``cooperative.trainer`` for whole servers; ``steps`` also has
what both of them measure. ``planning`` predicts which strategy is fastest.

Names are imported when they are first used, so that ``atta train --help`` starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atta.train.config import TrainConfig
    from atta.train.launching.launch import fit
    from atta.train.launching.nodes import Nodes
    from atta.train.reports.epochs import EpochReport, TrainReport

__all__ = ["EpochReport", "Nodes", "TrainConfig", "TrainReport", "fit"]

_HOMES = {
    "AttaDataModule": "atta.train.launching.lightning",  # not in __all__, for it needs the extra atta[lightning]
    "EpochReport": "atta.train.reports.epochs",
    "Nodes": "atta.train.launching.nodes",
    "TrainConfig": "atta.train.config",
    "TrainReport": "atta.train.reports.epochs",
    "fit": "atta.train.launching.launch",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'atta.train' has no attribute {name!r}")
