"""A tiny graph in two partitions, made once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from atta.partition import partition_graph
from atta.partition.graph import GraphWriter

__all__ = ["PARTS", "graph"]

PARTS = 2
NODES, EDGES = 60, 400


@cache
def graph() -> Path:
    """Its folder: 60 vertices with 400 in-edges, 4 features, 40 training seeds."""
    rng = np.random.default_rng(3)
    folder = Path(mkdtemp(prefix="atta-sim-"))
    with GraphWriter(folder / "graph") as writer:
        features = rng.standard_normal((NODES, 4)).astype(np.float32)
        labels = rng.integers(0, 3, NODES).astype(np.int64)
        train = np.sort(rng.permutation(NODES)[:40])
        writer.add_nodes("node", NODES, tables={"x": features, "y": labels}, splits={"train": train})
        writer.add_edges("node__to__node", rng.integers(0, NODES, EDGES), rng.integers(0, NODES, EDGES))
    partition_graph(folder / "graph", folder / "data", parts=PARTS, method="random", seed=1)
    return folder / "data"
