"""DGL blocks from local ids, without the checks of ``dgl.create_block``, which read every edge again."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["block"]


def block(row: np.ndarray, col: np.ndarray, num_src: int, num_dst: int) -> Any:
    """A homogeneous ``DGLBlock`` over the memory of ``row`` and ``col`` (int64 local ids of the edges' ends, known to be right)."""
    import torch
    from dgl import graph_index, heterograph_index
    from dgl.heterograph import DGLBlock
    from dgl.utils import toindex

    edges = heterograph_index.create_unitgraph_from_coo(
        2, num_src, num_dst, torch.from_numpy(row), torch.from_numpy(col), ["coo", "csr", "csc"], False, False
    )
    metagraph = graph_index.from_coo(2, [0], [1], True)
    index = heterograph_index.create_heterograph_from_relations(
        metagraph, [edges], toindex([num_src, num_dst], "int64")
    )
    return DGLBlock(index, (["_N"], ["_N"]), ["_E"])
