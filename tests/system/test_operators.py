"""Batch operators and servers' subgraphs in daemons: every placement gives what a local graph gives. Users' operators work;
their mistakes are named."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.loaders.seeds import part_seeds
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.generate import GenerateOptions, generate
from atta.samplers.dag.spec import Hops, batch_spec, neighbor_spec
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import Rule, ServerGraph
from atta.samplers.local.server import server_subgraph as extracted_locally
from atta.samplers.operators import Closure, ExpansionAware, sample_locally
from tests.system.conftest import SmallGraph
from tests.unit.operators.test_contract import OPTIONS

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_parts"


@pytest.fixture(scope="module")
def local_graph(small_graph: SmallGraph) -> LocalGraph:
    return LocalGraph.from_edges(small_graph.src, small_graph.dst, len(small_graph.ids), keys=small_graph.ids)


@pytest.fixture
def placements(placements: dict[str, atta.LocalCluster]) -> dict[str, atta.LocalCluster]:
    """``unit/placement`` has any other."""
    names = ("1 parts by random, 1 threads", "4 parts by metis on 2 daemons, 1 threads")
    return {name: placements[name] for name in names}


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_rows_come_with_the_edges_of_operators(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, name: str, options: dict[str, Any]
) -> None:
    how: dict[str, Any] = {"input_nodes": small_graph.ids[:40], "batch_size": 20, "edge_tables": ["time", "weight"]}
    for cluster in placements.values():
        loader = atta.BatchLoader(cluster, name, options, edge_ids=name != "shadow", **how)
        plain = [batch.e_id() for batch in atta.BatchLoader(cluster, name, options, **{**how, "edge_tables": ()})]
        if any((e_id < 0).any() for e_id in plain):
            with pytest.raises(ConfigError, match="edge table 'time': the operator makes edges of its own"):
                list(loader)
            continue
        for batch, e_id in zip(loader, plain, strict=True):
            assert np.array_equal(batch.edge_table("time"), small_graph.edge_time[e_id])
            assert np.array_equal(batch.to_pyg().edge_weight.numpy(), small_graph.edge_weight[e_id])
            assert batch.num_sampled_edges() == [len(e_id)]


def test_roots_of_shadow(placements: dict[str, atta.LocalCluster], small_graph: SmallGraph) -> None:
    asked = small_graph.ids[[4, 9, 4]]
    for cluster in placements.values():
        (batch,) = atta.BatchLoader(cluster, "shadow", {"depth": 1}, input_nodes=asked, batch_size=3)
        data = batch.to_pyg()
        assert data.n_id[data.root_n_id].tolist() == asked.tolist()
        assert data.batch[data.root_n_id].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "options"),
    [("saint-nodes", {"budget": 40}), ("saint-edges", {"budget": 30}), ("saint-walks", {"length": 2})],
)
def test_norms_of_graphsaint(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, name: str, options: dict[str, Any]
) -> None:
    """PyG's counts: batches with a vertex, an edge and the edge's source, until vertices came often enough."""
    given = {"input_nodes": small_graph.ids, "batch_size": 25} if name == "saint-walks" else {"batches": 6}
    seen: list[Any] = []
    for cluster in placements.values():
        counting = atta.BatchLoader(cluster, name, options, tables=[], seed_policy="global", **given)
        nodes, edges, batches = dict.fromkeys(small_graph.ids.tolist(), 0), np.zeros(len(small_graph.src)), 0
        epoch = 1 << 63
        while sum(nodes.values()) < 4 * len(nodes):
            for batch in counting.resume(epoch, 0):
                batches += 1
                edges[batch.e_id()] += 1
                for vertex in batch.n_id().tolist():
                    nodes[vertex] += 1
            epoch += 1
        loader = atta.BatchLoader(cluster, name, options, sample_coverage=4, seed_policy="global", **given)
        for batch in loader:
            data, n_id, e_id = batch.to_pyg(), batch.n_id(), batch.e_id()
            counts = np.array([nodes[vertex] or 0.1 for vertex in n_id.tolist()])
            assert np.allclose(data.node_norm.numpy(), batches / counts / len(nodes), rtol=1e-6)
            pairs = [
                (nodes[source], edges[e]) for source, e in zip(small_graph.src_ids[e_id].tolist(), e_id, strict=True)
            ]
            wanted = [min(a / b, 1e4) if b else 1e4 if a else 0.1 for a, b in pairs]
            assert np.allclose(data.edge_norm.numpy(), wanted, rtol=1e-6)
        seen.append((data.node_norm.tolist(), data.edge_norm.tolist()))
    assert all(norms == seen[0] for norms in seen)


# -- a user's package --------------------------------------------------------------------------------------------------

FAULTY = """
from dataclasses import dataclass
import numpy as np
from atta.samplers.operators import Bounds, Expand, Sampled

@dataclass(frozen=True)
class Faulty:
    fault: str = ""

    def run(self, batch):
        found = yield (Expand(batch.seeds) if self.fault != "question" else "how many?")
        if self.fault == "raises":
            raise KeyError("lost")
        if self.fault == "elsewhere":
            yield Expand(batch.seeds + 10**6)
        if self.fault == "nothing":
            return None
        n = len(batch.seeds)
        none = np.empty(0, dtype=np.int64)
        vertices = {"far": np.append(batch.seeds, 10**9), "negative": np.append(batch.seeds, -1),
                    "reversed": batch.seeds[::-1].copy(), "twice": np.append(batch.seeds, batch.seeds[:1]),
                    "floats": batch.seeds / 2, "many": np.arange(300)}.get(self.fault, batch.seeds)
        row = {"edge": np.array([n]), "long": np.zeros(9, dtype=int)}.get(self.fault, none)
        trees = np.arange(n) if self.fault == "trees" else None
        extra = {"more": none} if self.fault == "extra" else {}
        return Sampled(vertices, row, row[:1], none if self.fault != "edge" else row, trees, extra)

    def bounds(self, seeds, nodes, edges):
        if self.fault == "bounds":
            raise ZeroDivisionError("bounds")
        return Bounds(seeds + 5, 10)
"""


def install(folder: Path, name: str, points: dict[str, str]) -> None:
    """The files that pip leaves behind for a package of one module that announces operators."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[atta.operators]", *lines, ""]))


@pytest.fixture(scope="module")
def extended(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[atta.LocalCluster]:
    """Daemons whose environment has the example of the documentation, and a package that does everything wrong."""
    folder = tmp_path_factory.mktemp("packages")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["atta.operators"]
    shutil.copytree(EXAMPLE / "atta_own_parts", folder / "atta_own_parts")
    install(folder, "atta_own_parts", points)
    (folder / "faulty.py").write_text(FAULTY)
    install(folder, "faulty", {"faulty": "faulty:Faulty", "absent": "nowhere:Nothing", "shadow": "faulty:Faulty"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with atta.local(small_graph.dataset(2, "metis"), threads=1) as cluster:
            yield cluster


def test_the_example_runs_in_daemons(
    extended: atta.LocalCluster, small_graph: SmallGraph, local_graph: LocalGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from atta_own_parts.snowball import Snowball  # type: ignore[import-not-found]

    options = {"rounds": 3, "width": 8}
    for number, batch in enumerate(
        atta.BatchLoader(
            extended, "snowball", options, input_nodes=small_graph.train_ids, batch_size=30, seed_policy="global"
        )
    ):
        seeds = small_graph.train[batch.input_id]
        expected = sample_locally(local_graph, Snowball(**options), seeds, number=number)
        assert np.array_equal(batch.n_id(), expected.n_id)
        assert np.array_equal(batch.e_id(), expected.e_id)
    with pytest.raises(ConfigError, match="width 0"):
        next(iter(atta.BatchLoader(extended, "snowball", {"width": 0}, input_nodes=small_graph.train_ids)))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises", "KeyError: 'lost'"),
        ("question", "not a question to a graph"),
        ("elsewhere", "edge type"),
        ("nothing", "returns NoneType"),
        ("far", "vertices: must lie in"),
        ("negative", "vertices: must lie in"),
        ("reversed", "begin with the seeds"),
        ("twice", "repeat"),
        ("floats", "vertices: must be integers"),
        ("many", "vertices: 300, its bounds"),
        ("edge", "row: must lie in"),
        ("long", "differ in length"),
        ("trees", "makes_trees"),
        ("extra", "extra"),
        ("bounds", "ZeroDivisionError"),
    ],
)
def test_a_faulty_operator_fails_alone(
    extended: atta.LocalCluster, small_graph: SmallGraph, fault: str, words: str
) -> None:
    def loader(name: str, options: dict[str, Any]) -> atta.BatchLoader:
        return atta.BatchLoader(extended, name, options, input_nodes=small_graph.train_ids, batch_size=8)

    with pytest.raises(AttaError, match=words):
        list(loader("faulty", {"fault": fault}))
    assert [len(b.n_id()) for b in loader("faulty", {})] == [8] * 15


def test_packages_that_do_not_load_and_names_that_are_taken(
    extended: atta.LocalCluster, small_graph: SmallGraph
) -> None:
    with pytest.raises(ConfigError, match=r"absent.*does not load: ModuleNotFoundError"):
        next(iter(atta.BatchLoader(extended, "absent", input_nodes=small_graph.train_ids)))
    batch = next(iter(atta.BatchLoader(extended, "shadow", input_nodes=small_graph.train_ids, batch_size=8)))
    assert len(batch.tree()) > 8  # Atta's own error, not the package's


# -- subgraphs of servers ----------------------------------------------------------------------------------------------


RULES: list[Rule] = [
    Closure(0),
    Closure(2),
    ExpansionAware(1, 2),
    ExpansionAware(2, 3, resample=4),
    ExpansionAware(2, 2, "degree"),
    ExpansionAware(3, -1),
]


def check(found: ServerGraph, expected: ServerGraph, graph: SmallGraph) -> None:
    for name in ("n_id", "hop", "row", "col", "e_id", "degree"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert mine.dtype == other.dtype, name
        assert np.array_equal(mine, other), name
    at = graph.rows(found.n_id)
    assert found.tables.keys() == {"x", "y"}
    assert np.array_equal(found.tables["x"], graph.x[at])
    assert np.array_equal(found.tables["y"], graph.y[at])


@pytest.mark.parametrize("rule", RULES)
def test_every_placement_gives_the_local_subgraph(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph, rule: Rule
) -> None:
    inner = np.random.default_rng(4).permutation(300)[:60]
    expected = extracted_locally(local_graph, inner, rule, seed=5)
    for cluster in placements.values():
        for part in {0, cluster.num_parts - 1}:
            found = atta.server_subgraph(cluster, small_graph.ids[inner], rule, part=part, seed=5)
            check(found, expected, small_graph)
            at = small_graph.rows(found.n_id)
            assert found.splits.keys() == {"train", "val"}
            assert np.array_equal(found.splits["train"], np.isin(at, small_graph.train))


def test_servers_are_partitions(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph
) -> None:
    for cluster in placements.values():
        owned = []
        for part in range(cluster.num_parts):
            found = atta.server_subgraph(cluster, part=part, splits=())
            mine = found.n_id[found.inner]
            assert (np.diff(mine) > 0).all()
            check(found, extracted_locally(local_graph, small_graph.rows(mine)), small_graph)
            assert found.splits == {}
            owned.append(mine)
        assert np.array_equal(np.sort(np.concatenate(owned)), np.sort(small_graph.ids))


def test_several_subgraphs_one_after_another(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph, local_graph: LocalGraph
) -> None:
    chunks = [np.arange(0, 50), np.arange(50, 50), np.arange(50, 53)]
    for cluster in placements.values():
        part = cluster.num_parts - 1
        ids = [small_graph.ids[chunk] for chunk in chunks]
        loader = atta.ServerLoader(cluster, ids, Closure(1), part=part)
        sizes = list(atta.ServerLoader(cluster, ids, Closure(0), part=part, transform=lambda found: found.num_nodes))
        assert sizes == [50, 0, 3]
        for _ in range(2):
            made = list(loader)
            assert len(made) == 3
            for chunk, found in zip(chunks, made, strict=True):
                check(found, extracted_locally(local_graph, chunk, Closure(1)), small_graph)


def test_repeated_ids_and_chosen_tables(placements: dict[str, atta.LocalCluster], small_graph: SmallGraph) -> None:
    for cluster in placements.values():
        found = atta.server_subgraph(cluster, small_graph.ids[[7, 3, 7]], tables=["y"], splits=["val"], edge_ids=False)
        assert found.n_id[:2].tolist() == small_graph.ids[[7, 3]].tolist()
        assert found.num_inner == 2
        assert set(found.tables) == {"y"}
        assert set(found.splits) == {"val"}
        assert found.e_id is None
        assert found.co_batch([0], 1).e_id is None


def test_a_split_without_members(tmp_path: Path) -> None:
    options = GenerateOptions(nodes=60, edges=300, features=4, classes=2, train=0.5, val=0.0, test=0.0)
    generate("sbm", tmp_path / "graph", options)
    partition_graph(tmp_path / "graph", tmp_path / "parts", parts=1, method="random")
    with atta.local(tmp_path / "parts", threads=1) as cluster:
        found = atta.server_subgraph(cluster, part=0)
    assert {name: int(mask.sum()) for name, mask in found.splits.items()} == {"train": 30, "val": 0, "test": 0}


def test_what_is_wrong_with_a_subgraph_is_named(
    placements: dict[str, atta.LocalCluster], small_graph: SmallGraph
) -> None:
    cluster, ids = next(iter(placements.values())), small_graph.ids[:3]
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"part": 1}, ConfigError, "part 1"),
        ({"inner": [123456]}, ConfigError, "123456"),
        ({"inner": np.ones(300, dtype=bool)}, ConfigError, "mask"),
        ({"inner": ids, "edge_type": "edges"}, UnknownNameError, "edges"),
        ({"inner": ids, "tables": ["z"]}, UnknownNameError, "z"),
        ({"inner": ids, "splits": ["tests"]}, UnknownNameError, "tests"),
    ]
    for given, error, words in cases:
        with pytest.raises(error, match=words):
            atta.server_subgraph(cluster, **given)


def test_daemons_check_for_themselves(placements: dict[str, atta.LocalCluster]) -> None:
    cluster = next(iter(placements.values()))
    whole = batch_spec(cluster.schema, "closure", {"hops": 1})
    with pytest.raises(ConfigError, match="partition 1 of 1"):
        next(iter(atta.DagLoader(cluster, whole, input_nodes=part_seeds("node", 1))))
    hops = neighbor_spec(cluster.schema, Hops([2]), seed_type="node")
    with pytest.raises(ConfigError, match="only a batch operator"):
        next(iter(atta.DagLoader(cluster, hops, input_nodes=part_seeds("node", 0))))
