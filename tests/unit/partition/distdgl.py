"""Writes folders of DistDGL for the tests. It runs in its own process, because DGL prints and keeps its memory.

    python -m tests.unit.partition.distdgl FOLDER

FOLDER gets ``truth.pt`` (the graphs as dictionaries of tensors). For every graph, number of parts and format, it gets a
folder of partitions with the original numbers in ``nodes.pt`` and ``edges.pt``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dgl
import numpy as np
import torch

FORMATS = ("coo", "csc", "csr")


def plain(rng: np.random.Generator) -> dgl.DGLGraph:
    """Self-loops, multi-edges, vertices without edges, and tensors of many kinds."""
    n, m = 90, 500
    src, dst = rng.integers(0, n - 5, m), rng.integers(0, n - 5, m)
    src[:10], src[10:20], dst[10:20] = dst[:10], src[20:30], dst[20:30]
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
    graph.ndata["feat"] = torch.from_numpy(rng.random((n, 3), np.float32))
    graph.ndata["label"] = torch.from_numpy(rng.integers(0, 4, n))
    graph.ndata["age"] = torch.from_numpy(rng.integers(0, 99, (n, 2)))
    for name in ("train", "val", "test", "fold"):
        graph.ndata[f"{name}_mask"] = torch.from_numpy(rng.random(n) < 0.3)
    graph.edata["weight"] = torch.from_numpy(rng.random((m, 1), np.float32))
    graph.edata["time"] = torch.from_numpy(rng.integers(0, 2**60, m))
    graph.edata["feat"] = torch.from_numpy(rng.random((m, 2)))
    return graph


def typed(rng: np.random.Generator) -> dgl.DGLGraph:
    counts = {"user": 60, "item": 40}
    ends = {
        key: tuple(torch.from_numpy(rng.integers(0, counts[key[side]], m)) for side in (0, 2))
        for key, m in ((("user", "buys", "item"), 300), (("item", "of", "user"), 200), (("user", "knows", "user"), 150))
    }
    graph = dgl.heterograph(ends, num_nodes_dict=counts)
    graph.nodes["user"].data["feat"] = torch.from_numpy(rng.random((60, 2), np.float32))
    graph.nodes["item"].data["label"] = torch.from_numpy(rng.integers(0, 3, 40))
    graph.nodes["item"].data["train_mask"] = torch.from_numpy(rng.random(40) < 0.5)
    graph.edges["buys"].data["price"] = torch.from_numpy(rng.random(300))
    graph.edges["knows"].data["weight"] = torch.from_numpy(rng.random(150, np.float32))
    return graph


def told(graph: dgl.DGLGraph) -> dict[str, dict]:
    ends = {e: torch.stack(graph.edges(etype=e, order="eid")) for e in graph.canonical_etypes}
    return {
        "nodes": {t: {"count": graph.num_nodes(t), **graph.nodes[t].data} for t in graph.ntypes},
        "edges": {e: {"ends": ends[e], **graph.edges[e].data} for e in ends},
    }


def main(folder: Path) -> None:
    rng = np.random.default_rng(1)
    graphs = {"plain": plain(rng), "typed": typed(rng)}
    torch.save({name: told(graph) for name, graph in graphs.items()}, folder / "truth.pt")
    for name, graph in graphs.items():
        for parts, fmt, hops in ((1, "coo", 1), *((3, fmt, 1) for fmt in FORMATS), (2, "coo", 2)):
            out = folder / f"{name}-{parts}-{fmt}"
            nodes, edges = dgl.distributed.partition_graph(
                graph, "g", parts, str(out), num_hops=hops, part_method="random", return_mapping=True, graph_formats=fmt
            )
            torch.save(nodes, out / "nodes.pt")
            torch.save(edges, out / "edges.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
