"""Makes DGL blocks from local ids, without the checks of ``dgl.create_block``, which read every edge again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atta.errors import ConfigError

if TYPE_CHECKING:
    from atta.client.loaders.sampled import SampledBatch

__all__ = ["block", "to_blocks"]


def to_blocks(batch: SampledBatch) -> list[Any]:
    """See ``MiniBatch.to_dgl``.

    The block of hop h leads from the vertices known after the hop to those known before it. If the hop draws only for
    vertices that the hop before has reached, the edges of the other vertices are those of the block before.
    """
    import dgl
    import torch

    schema, origin = batch.schema, batch.origin
    if len(schema.node_types) > 1 or len(schema.edge_types) > 1:
        raise ConfigError(
            "to_dgl: blocks are made of graphs with one node type and one edge type; to_pyg knows several"
        )
    if origin.whole:
        raise ConfigError(
            "to_dgl: an operator has sampled this batch as a whole, so that it has no hops to make blocks of; "
            "dgl.graph(tuple(batch.edge_index())) is its graph"
        )
    row, col = batch.edge_index()
    nodes = np.cumsum(batch.num_sampled_nodes())
    edges = np.concatenate([[0], np.cumsum(batch.num_sampled_edges())])
    ids, e_id = torch.from_numpy(batch.n_id()), batch.e_id()
    blocks: list[Any] = []
    first = 0
    for hop in range(len(edges) - 1):
        if origin.redrawn[hop : hop + 1] == (True,):
            first = edges[hop]
        part = slice(first, edges[hop + 1])
        made = block(row[part], col[part], int(nodes[hop + 1]), int(nodes[hop]))
        made.srcdata[dgl.NID], made.dstdata[dgl.NID] = ids[: nodes[hop + 1]], ids[: nodes[hop]]
        if e_id is not None:
            made.edata[dgl.EID] = torch.from_numpy(e_id[part])
        blocks.insert(0, made)
    return blocks


def block(row: np.ndarray, col: np.ndarray, num_src: int, num_dst: int) -> Any:
    """A homogeneous ``DGLBlock`` over ``row`` and ``col``: int64 local ids of the edges' ends, not checked."""
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
