"""Blocks, ids and pairs of a batch, in DGL's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atta.client.loaders.dgl import to_blocks, typed_block
from atta.client.loaders.minibatch import MiniBatch
from atta.compat.dgl.distributed.book import tensor
from atta.compat.dgl.distributed.names import TypeBook


def by_type(ids: Mapping[str, Any], types: TypeBook) -> Any:
    """Ids by the dataset's node types as DGL gives them: by its own names, or without a mapping where there is one
    type."""
    return next(iter(ids.values())) if len(ids) == 1 else {types.ntype(t): some for t, some in ids.items()}


def blocks_of(batch: MiniBatch, types: TypeBook) -> list[Any]:
    """The blocks of a batch whose hops draw for all known vertices, the input side first."""
    if len(types.schema.node_types) == len(types.schema.edge_types) == 1:
        return to_blocks(batch, types.canonical(types.schema.edge_types[0]))
    return _typed(batch, types)


def _typed(batch: MiniBatch, types: TypeBook) -> list[Any]:
    schema = types.schema
    names = {t: types.ntype(t) for t in schema.node_types}
    ids = {t: tensor(batch.n_id(t)) for t in names}
    nodes = {t: np.cumsum(batch.num_sampled_nodes(t)) for t in names}
    ends = {e: batch.edge_index(e) for e in schema.edge_types}
    e_ids = {e: batch.e_id(e) for e in schema.edge_types}
    edges = {e: np.concatenate([[0], np.cumsum(batch.num_sampled_edges(e))]) for e in schema.edge_types}
    hops = len(next(iter(edges.values()))) - 1
    blocks: list[Any] = []
    for hop in range(hops):
        parts = {e: slice(starts[hop], starts[hop + 1]) for e, starts in edges.items()}
        # As DistDGL's, a block has only the edge types that were drawn: modules of the others are not called.
        parts = {e: part for e, part in parts.items() if part.start < part.stop} or parts
        made = typed_block(
            {types.canonical(e): (ends[e][0][part], ends[e][1][part]) for e, part in parts.items()},
            {name: ids[t][: nodes[t][hop + 1]] for t, name in names.items()},
            {name: ids[t][: nodes[t][hop]] for t, name in names.items()},
            {
                types.canonical(e): None if (found := e_ids[e]) is None else tensor(found[part])
                for e, part in parts.items()
            },
        )
        blocks.insert(0, made)
    return blocks
