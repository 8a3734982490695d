"""A small graph with everything that can confuse a sampler, partitioned on demand."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

import atta


def read(address: str) -> str:
    """The page at an address; nothing while nobody answers there."""
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=10) as page:
            return str(page.read(), "utf-8")
    except urllib.error.URLError:
        return ""


def ran(*words: object) -> str:
    """What ``atta`` prints, which has run in this process and ended well. A text may be several words."""
    from atta.cli.main import cli

    done = CliRunner().invoke(cli, " ".join(map(str, words)).split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


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

    def rows(self, ids: Any) -> np.ndarray:
        """Where ``ids`` stand in those of the graph."""
        order = np.argsort(self.ids)
        return order[np.searchsorted(self.ids, np.asarray(ids), sorter=order)]

    def dataset(self, parts: int, method: str) -> Path:
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


class Placements(Mapping[str, atta.LocalCluster]):
    """Clusters of the small graph by description. They start when they are first asked for, and stay for the session."""

    KINDS: ClassVar = {
        f"{parts} parts by {method}{where}, {threads} threads": (parts, method, threads, daemons)
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

    def __init__(self, graph: SmallGraph, stack: ExitStack) -> None:
        self._graph, self._stack = graph, stack
        self._started: dict[str, atta.LocalCluster] = {}

    def __getitem__(self, name: str) -> atta.LocalCluster:
        if name not in self._started:
            parts, method, threads, daemons = self.KINDS[name]
            made = atta.local(self._graph.dataset(parts, method), threads=threads, daemons=daemons)
            self._started[name] = self._stack.enter_context(made)
        return self._started[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.KINDS)

    def __len__(self) -> int:
        return len(self.KINDS)


@pytest.fixture(scope="session")
def placements(small_graph: SmallGraph) -> Iterator[Mapping[str, atta.LocalCluster]]:
    """Clusters that differ in how the graph is cut, in the number of daemons and of threads."""
    with ExitStack() as stack:
        yield Placements(small_graph, stack)


@pytest.fixture(scope="session")
def pair(placements: Mapping[str, atta.LocalCluster]) -> atta.LocalCluster:
    return placements["2 parts by metis, 1 threads"]


@pytest.fixture
def running() -> Iterator[Any]:
    """Daemons in this process: a ``Running``."""
    from tests.system.running import daemons

    with daemons() as found:
        yield found


CITES, WRITES, IN = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "in", "venue")


@pytest.fixture(scope="session")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """PyG's ``HeteroData``, and a folder of the same graph. No edge ends at an author. Samples around papers never reach
    a venue."""
    import torch
    from torch_geometric.data import HeteroData

    from atta.partition.graph import GraphWriter

    rng, data = np.random.default_rng(8), HeteroData()
    data["author"].x = torch.from_numpy(rng.random((30, 2), dtype=np.float32))
    data["paper"].x = torch.from_numpy(rng.random((60, 4), dtype=np.float32))
    data["paper"].y = torch.arange(60)
    data["venue"].x = torch.from_numpy(rng.random((7, 3), dtype=np.float32))
    for edge_type, count in ((CITES, 300), (WRITES, 200), (IN, 60)):
        ends = [rng.integers(0, data[edge_type[i]].num_nodes, count) for i in (0, 2)]
        data[edge_type].edge_index = torch.from_numpy(np.stack(ends))
        data[edge_type].edge_note = torch.from_numpy(rng.random((count, 3), dtype=np.float32))
    folder = tmp_path_factory.mktemp("types")
    with GraphWriter(folder / "graph") as out:
        for node_type in data.node_types:
            tables = {name: data[node_type][name].numpy() for name in data[node_type] if name in ("x", "y")}
            splits = {"train": np.arange(0, 60, 3)} if node_type == "paper" else {}
            out.add_nodes(node_type, data[node_type].num_nodes, tables=tables, splits=splits)
        for edge_type in data.edge_types:
            store = data[edge_type]
            out.add_edges("__".join(edge_type), *store.edge_index.numpy(), tables={"note": store.edge_note.numpy()})
    return data, folder / "graph"


@pytest.fixture(scope="session")
def typed(typed_graph: tuple[Any, Path]) -> Iterator[tuple[Any, atta.LocalCluster]]:
    from atta.partition import partition_graph

    data, graph = typed_graph
    partition_graph(graph, graph.parent / "parts", parts=2, method="random")
    with atta.local(graph.parent / "parts", threads=1) as made:
        yield data, made


@pytest.fixture(scope="session")
def parts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Partitions of a graph of three classes that features show well, with edges mostly within classes, by their number."""
    from atta.partition import partition_graph
    from atta.partition.graph import GraphWriter

    folder, rng, n = tmp_path_factory.mktemp("classes"), np.random.default_rng(3), 120
    labels = rng.integers(0, 3, n)
    x = (np.eye(3)[labels] + 0.3 * rng.normal(size=(n, 3))).astype(np.float32)
    order = rng.permutation(n)
    with GraphWriter(folder / "graph") as out:
        splits = {"train": order[:60], "val": order[60:90], "test": order[90:]}
        out.add_nodes("node", n, tables={"x": x, "y": labels}, splits=splits)
        sources = rng.integers(0, n, 800)
        alike = [rng.choice(np.flatnonzero(labels == labels[source])) for source in sources]
        out.add_edges("node__to__node", sources, np.where(rng.random(800) < 0.9, alike, rng.integers(0, n, 800)))

    @cache
    def parts(count: int) -> Path:
        partition_graph(folder / "graph", folder / f"parts-{count}", parts=count, method="random", seed=0)
        return folder / f"parts-{count}"

    return parts


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives what ``atta`` says of arguments that it refuses: one line, with exit code 2."""
    from atta.cli import main as root

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["atta", *words])
        with pytest.raises(SystemExit) as stopped:
            root.main()
        text = capfd.readouterr().err
        assert stopped.value.code == 2, text
        assert len(text.strip().splitlines()) == 1, text
        return text

    return said


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``graph`` of 400 vertices in three classes, and with its two ``parts``."""
    from atta.partition import partition_graph
    from atta.partition.generate import GenerateOptions, generate

    folder = tmp_path_factory.mktemp("classes")
    options = GenerateOptions(
        nodes=400, edges=4000, features=6, classes=3, seed=5, train=0.4, val=0.2, test=0.4, inter=0.2
    )
    generate("sbm", folder / "graph", options)
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    return folder


@pytest.fixture(scope="session")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, atta.LocalCluster]]:
    """A graph of 600 vertices in four classes, and the two daemons of its parts."""
    from atta.partition import partition_graph
    from atta.partition.generate import GenerateOptions, generate

    folder = tmp_path_factory.mktemp("learnable")
    shares = {"train": 0.4, "val": 0.2, "test": 0.4}
    options = GenerateOptions(600, 6000, features=12, classes=4, seed=3, **shares, inter=0.3, signal=0.5)
    generate("sbm", folder / "graph", options)
    partition_graph(folder / "graph", folder / "parts", parts=2, method="metis", seed=0)
    with atta.local(folder / "parts", threads=1) as running:
        yield folder / "graph", running
