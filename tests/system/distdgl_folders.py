"""Folders that ``dgl.distributed.partition_graph`` wrote, and the graphs in memory that they hold, by the same ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch


@dataclass
class Folder:
    """``config``: the partition configuration. ``whole``: the graph, numbered as DistDGL has renumbered it."""

    config: Path
    whole: Any
    parts: np.ndarray


def plain(folder: Path, parts: int = 2) -> Folder:
    """Four classes that edges and features tell; self-loops, multi-edges and vertices without in-edges."""
    rng, n, m = np.random.default_rng(3), 400, 4000
    y = rng.integers(0, 4, n)
    by_class = [np.flatnonzero((y == c) & (np.arange(n) < n - 20)) for c in range(4)]
    src = rng.integers(0, n, m)
    dst = np.array([rng.choice(by_class[y[s]]) if rng.random() < 0.8 else rng.integers(0, n - 20) for s in src])
    src[:10], src[10:20], dst[10:20] = dst[:10], src[20:30], dst[20:30]
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=n)
    noise = 2 * rng.standard_normal((n, 4))
    graph.ndata["features"] = torch.from_numpy((2 * np.eye(4)[y] + noise).astype(np.float32))
    graph.ndata["labels"] = torch.from_numpy(y)
    split = rng.permutation(np.arange(n) % 4)
    for name, kinds in (("train", (0, 1)), ("val", (2,)), ("test", (3,))):
        graph.ndata[f"{name}_mask"] = torch.from_numpy(np.isin(split, kinds))
    graph.edata["w"] = torch.from_numpy(rng.random((m, 2), np.float32))
    return partitioned(graph, folder, parts)


def typed(folder: Path, parts: int = 2) -> Folder:
    rng, counts = np.random.default_rng(4), {"paper": 120, "author": 60}
    names = (("author", "writes", "paper"), 400), (("paper", "cites", "paper"), 500), (("paper", "by", "author"), 400)
    ends = {name: tuple(torch.from_numpy(rng.integers(0, counts[name[end]], m)) for end in (0, 2)) for name, m in names}
    graph = dgl.heterograph(ends, num_nodes_dict=counts)
    graph.nodes["paper"].data["feat"] = torch.from_numpy(rng.random((120, 3), np.float32))
    graph.nodes["paper"].data["label"] = torch.from_numpy(rng.integers(0, 3, 120))
    graph.nodes["paper"].data["train_mask"] = torch.from_numpy(rng.random(120) < 0.5)
    return partitioned(graph, folder, parts)


def partitioned(graph: Any, folder: Path, parts: int) -> Folder:
    nodes, edges = dgl.distributed.partition_graph(
        graph, "toy", parts, str(folder), part_method="random", return_mapping=True
    )
    if not isinstance(nodes, dict):
        nodes, edges = {graph.ntypes[0]: nodes}, {graph.canonical_etypes[0]: edges}
    new = {t: torch.empty_like(ids).scatter_(0, ids, torch.arange(len(ids))) for t, ids in nodes.items()}
    ends = {}
    for (source, relation, target), ids in edges.items():
        src, dst = graph.edges(etype=(source, relation, target), order="eid")
        ends[source, relation, target] = new[source][src[ids]], new[target][dst[ids]]
    whole = dgl.heterograph(ends, num_nodes_dict={t: len(ids) for t, ids in nodes.items()})
    for t, ids in nodes.items():
        for name, rows in graph.nodes[t].data.items():
            whole.nodes[t].data[name] = rows[ids]
    for e, ids in edges.items():
        for name, rows in graph.edges[e].data.items():
            whole.edges[e].data[name] = rows[ids]
    book = dgl.distributed.load_partition_book(str(folder / "toy.json"), 0)[0]
    first = graph.ntypes[0]
    found = book.nid2partid(torch.arange(len(nodes[first])), first)
    return Folder(folder / "toy.json", whole, found.numpy())
