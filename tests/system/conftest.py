"""A small graph with everything that can confuse a sampler, partitioned on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import atta


@dataclass
class SmallGraph:
    """About 300 vertices with scattered user ids; hubs, isolated vertices, self-loops and multi-edges."""

    folder: Path
    ids: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    edge_weight: np.ndarray
    edge_time: np.ndarray
    note: np.ndarray
    _datasets: dict[tuple[int, str], Path] = field(default_factory=dict)

    @property
    def src_ids(self) -> np.ndarray:
        return self.ids[self.src]

    @property
    def dst_ids(self) -> np.ndarray:
        return self.ids[self.dst]

    @property
    def train_ids(self) -> np.ndarray:
        return self.ids[self.train]

    def dataset(self, parts: int, method: str) -> Path:
        """The graph, partitioned (built once per session)."""
        from atta.partition import partition_graph

        key = (parts, method)
        if key not in self._datasets:
            path = self.folder / f"{method}-{parts}"
            partition_graph(self.folder / "graph", path, parts=parts, method=method, seed=1)
            self._datasets[key] = path
        return self._datasets[key]


@pytest.fixture(scope="session")
def small_graph(tmp_path_factory: pytest.TempPathFactory) -> SmallGraph:
    from atta.partition.graph import GraphWriter

    rng = np.random.default_rng(11)
    n, m = 300, 3000
    ids = rng.permutation(10_000)[:n].astype(np.int64)
    weight = 1.0 / (1 + np.arange(n)) ** 0.7
    dst = rng.choice(n - 10, m, p=weight[: n - 10] / weight[: n - 10].sum())  # the last ten have no in-edges
    src = rng.integers(0, n - 5, m)  # the last five are isolated
    src[:20], dst[:20] = np.arange(20), np.arange(20)  # self-loops
    src[20:40], dst[20:40] = src[40:60], dst[40:60]  # multi-edges
    edge_weight = np.where(rng.random(m) < 0.1, 0.0, rng.exponential(size=m)).astype(np.float32)
    x = rng.standard_normal((n, 16)).astype(np.float32)
    y = rng.integers(0, 4, n).astype(np.int64)
    order = rng.permutation(n)
    train, val = np.sort(order[:120]), np.sort(order[120:180])
    folder = tmp_path_factory.mktemp("small")
    with GraphWriter(folder / "graph") as writer:
        writer.add_nodes("node", n, ids=ids, tables={"x": x, "y": y}, splits={"train": train, "val": val})
        edge_time, note = rng.integers(0, 50, m), rng.random((m, 3)).astype(np.float32)
        writer.add_edges("node__to__node", src, dst, tables={"weight": edge_weight, "time": edge_time, "note": note})
    return SmallGraph(folder, ids, src, dst, x, y, train, edge_weight, edge_time, note)


@pytest.fixture(scope="session")
def placements(small_graph: SmallGraph) -> Iterator[dict[str, atta.LocalCluster]]:
    """Clusters by description. They differ in how the graph is cut, in the number of daemons and of threads."""
    with ExitStack() as stack:
        yield {
            f"{parts} parts by {method}{where}, {threads} threads": stack.enter_context(
                atta.local(small_graph.dataset(parts, method), threads=threads, daemons=daemons)
            )
            for parts, method, threads, where, daemons in [
                (1, "random", 1, "", None),
                (2, "random", 2, "", None),
                (2, "metis", 1, "", None),
                (4, "metis", 2, "", None),
                (4, "random", 1, "", None),
                (4, "metis", 1, " on 2 daemons", 2),
                (4, "random", 1, " on 3 daemons", 3),
                (4, "random", 1, " on 1 daemon", 1),
            ]
        }


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the only trainer."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
