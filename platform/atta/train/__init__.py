"""``atta train``: PyG models on sampled mini-batches, or on the subgraphs of whole servers. Names are imported when
they are first used, so that ``atta train --help`` starts quickly."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atta.train.config import TrainConfig
    from atta.train.launching.launch import fit
    from atta.train.launching.nodes import Nodes
    from atta.train.reports.epochs import EpochReport
    from atta.train.reports.run import TrainReport

__all__ = ["EpochReport", "Nodes", "TrainConfig", "TrainReport", "fit"]

_HOMES = {
    "AttaDataModule": "atta.train.launching.lightning",  # not in __all__, for it needs the extra atta[lightning]
    "EpochReport": "atta.train.reports.epochs",
    "Nodes": "atta.train.launching.nodes",
    "TrainConfig": "atta.train.config",
    "TrainReport": "atta.train.reports.run",
    "fit": "atta.train.launching.launch",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'atta.train' has no attribute {name!r}")
