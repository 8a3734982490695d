"""``python distdgl_convert.py DATASET OUT``: a partitioned dataset as a DistDGL partition folder, cut by DGL itself with METIS."""

from __future__ import annotations

import sys

import dgl
import numpy as np
import torch

from atta.partition.dataset import Dataset


def main(source: str, out: str) -> None:
    dataset = Dataset.open(source, verify=False)
    schema = dataset.schema
    node_type, edge_type = schema.node_types[0], schema.edge_types[0]
    parts = [dataset.part(p) for p in range(dataset.num_parts)]
    # Internal ids number all vertices without gaps: the parts' rows follow each other.
    degrees = np.concatenate([np.diff(p.csc(edge_type).indptr) for p in parts])
    src = np.concatenate([p.csc(edge_type).indices for p in parts]).astype(np.int64)
    dst = np.repeat(np.arange(len(degrees), dtype=np.int64), degrees)
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=len(degrees))
    for name, ours in (("feat", "x"), ("label", "y")):
        graph.ndata[name] = torch.from_numpy(np.concatenate([p.table(node_type, ours) for p in parts]))
    mask = torch.zeros(len(degrees), dtype=torch.bool)
    mask[torch.from_numpy(np.array(dataset.split(node_type, "train")))] = True
    graph.ndata["train_mask"] = mask
    dgl.distributed.partition_graph(
        graph, "bench", dataset.num_parts, out, part_method="metis", balance_ntypes=mask.long(), balance_edges=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
