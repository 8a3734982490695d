"""DGL's distributed interface on Atta's daemons: a DistDGL script runs with its import line changed.

    from atta.compat import dgl                # was: import dgl

    dgl.distributed.initialize("ip_config.txt")
    g = dgl.distributed.DistGraph("products")
    train = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book())
    sampler = dgl.dataloading.NeighborSampler([10, 25])
    for inputs, seeds, blocks in dgl.dataloading.DistNodeDataLoader(g, train, sampler, batch_size=1000, shuffle=True):
        x, y = g.ndata["feat"][inputs], g.ndata["label"][seeds]

``docs/guide/from-dgl.md`` tells what differs. Importing this package needs neither DGL nor PyTorch; what makes blocks and
sampled graphs needs ``atta[dgl]``. Names that are neither distributed nor loaders, such as ``dgl.nn``, are DGL's own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from atta.compat import refuse
from atta.observe.packages import load

__all__ = ["dataloading", "distributed"]

OF_DGL = (
    "EID", "ETYPE", "NID", "NTYPE", "DGLError", "DGLGraph", "backend", "batch", "create_block", "function", "graph",
    "heterograph", "nn", "ops", "to_block", "to_homogeneous", "transforms",
)  # fmt: skip
"""Names that are those of DGL: they work on graphs in the memory of one process."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    if name in OF_DGL:
        module = load(f"{__name__}.{name}", "dgl", "torch")
        return import_module("dgl.nn") if name == "nn" else getattr(module, name)
    raise refuse(__name__, name, (*__all__, *OF_DGL))


def __dir__() -> list[str]:
    return [*__all__, *OF_DGL]
