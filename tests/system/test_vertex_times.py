"""Times of vertices on real daemons: any number of partitions, links and messages, new times, lost daemons."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch_geometric.loader import LinkLoader, NodeLoader

import atta
from atta.cli.main import cli
from atta.client.loaders.pyg import backends
from atta.client.tables.versions import publish
from atta.errors import ConfigError, DataError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.deploy import deploy
from atta.partition.graph import GraphWriter
from atta.samplers import LocalGraph, LocalSampler
from tests.addresses import held_addresses
from tests.system.running import daemons

CITES, WRITES, REVIEWS = "paper__cites__paper", "author__writes__paper", "venue__prints__paper"
HOPS = {CITES: [3, 2], WRITES: [2, 2], REVIEWS: [2, 1], "paper__by__author": [2, 2]}
SIZES = {"author": 60, "paper": 200, "venue": 7}


@dataclass
class Papers:
    """Papers and authors have times; venues have none. Edges ``cites`` have times of their own, too."""

    folder: Path
    ids: dict[str, np.ndarray] = field(init=False)
    times: dict[str, np.ndarray] = field(init=False)
    edges: dict[str, tuple[np.ndarray, np.ndarray]] = field(init=False)
    cited: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(17)
        self.ids = {t: rng.permutation(5_000)[:n].astype(np.int64) for t, n in SIZES.items()}
        self.times = {"paper": rng.integers(0, 60, 200).astype(np.int32), "author": rng.integers(-5, 60, 60)}
        ends = {CITES: 1500, WRITES: 600, REVIEWS: 200, "paper__by__author": 500}
        self.edges = {
            name: tuple(rng.integers(0, SIZES[t], count) for t in (name.split("__")[0], name.split("__")[2]))  # type: ignore[misc]
            for name, count in ends.items()
        }
        self.cited = rng.integers(0, 60, 1500)

    def written(self, name: str, times: dict[str, np.ndarray]) -> Path:
        with GraphWriter(self.folder / name) as out:
            for node_type, ids in self.ids.items():
                tables = {"time": times[node_type]} if node_type in times else {}
                out.add_nodes(node_type, len(ids), ids=ids, tables=tables, splits={"train": np.arange(len(ids) // 2)})
            for edge_type, (src, dst) in self.edges.items():
                out.add_edges(edge_type, src, dst, tables={"time": self.cited} if edge_type == CITES else {})
        return self.folder / name

    def cut(self, parts: int, method: str, times: dict[str, np.ndarray] | None = None) -> Path:
        to = self.folder / f"{method}-{parts}-{'as' if times is None else 'new'}"
        if not to.exists():
            graph = self.folder / ("graph" if times is None else "renewed")
            graph = graph if graph.exists() else self.written(graph.name, self.times if times is None else times)
            partition_graph(graph, to, parts=parts, method=method, seed=1)
        return to

    def since(self, node_type: str, ids: np.ndarray) -> np.ndarray:
        """When vertices begin to exist: int64, the least number where they always do."""
        order = np.argsort(self.ids[node_type])
        rows = order[np.searchsorted(self.ids[node_type][order], ids)]
        none = np.full(SIZES[node_type], np.iinfo(np.int64).min)
        return np.asarray(self.times.get(node_type, none)[rows])


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def clusters(papers: Papers) -> Iterator[dict[str, atta.LocalCluster]]:
    found = {
        "whole": atta.local(papers.cut(1, "random"), threads=1),
        "two": atta.local(papers.cut(2, "metis"), threads=2),
        "four by messages": atta.local(papers.cut(4, "random"), threads=1, daemons=2, options=("--no-links",)),
    }
    yield found
    for cluster in found.values():
        cluster.close()


KINDS: dict[str, dict[str, Any]] = {
    "own times": {"input_nodes": ("paper", "train")},
    "everything": {"input_nodes": ("author", None), "num_neighbors": {e: [-1, 2] for e in HOPS}},
    "redrawn": {"input_nodes": ("author", "train"), "frontier": "all", "replace": True},
}


def loader_of(cluster: atta.Cluster, papers: Papers, kind: str, **more: Any) -> atta.NeighborLoader:
    options = {"num_neighbors": HOPS, "batch_size": 16, "shuffle": True, "seed": 5, "seed_policy": "global"}
    options |= {**KINDS[kind], **more}
    return atta.NeighborLoader(cluster, time_attr="time", **options)


def told(batch: atta.MiniBatch) -> list[Any]:
    found: list[Any] = [batch.batch_id, batch.version]
    for node_type in SIZES:
        tree = batch.tree(node_type)
        found += [batch.n_id(node_type).tolist(), None if tree is None else tree.tolist()]
    for edge_type in HOPS:
        e_id = batch.e_id(edge_type)
        assert e_id is not None
        found += [batch.edge_index(edge_type).tolist(), e_id.tolist()]
    return found


def check_times(batch: atta.MiniBatch, papers: Papers, at: np.ndarray, seeds: dict[str, int]) -> int:
    """No vertex but the seeds (the first of their types), and no edge, is later than its tree's seed; returns how many
    vertices were looked at."""
    looked = 0
    for node_type in SIZES:
        tree = batch.tree(node_type)
        since, first = papers.since(node_type, batch.n_id(node_type)), seeds.get(node_type, 0)
        if tree is not None and len(since):
            assert (since[first:] <= at[tree[first:]]).all()
            looked += len(since) - first
    (_, col), e_id = batch.edge_index(CITES), batch.e_id(CITES)
    tree = batch.tree("paper")
    assert e_id is not None
    assert not len(col) or (papers.cited[e_id] <= at[tree[col]]).all()
    return looked


@pytest.mark.parametrize("kind", ["own times", "everything", "redrawn"])
def test_batches_do_not_depend_on_partitions(clusters: dict[str, atta.LocalCluster], papers: Papers, kind: str) -> None:
    reference = [told(batch) for batch in loader_of(clusters["whole"], papers, kind)]
    for name, cluster in clusters.items():
        assert [told(batch) for batch in loader_of(cluster, papers, kind)] == reference, name
    seed_type, looked = KINDS[kind]["input_nodes"][0], 0
    for batch in loader_of(clusters["two"], papers, kind):
        assert batch.seed_time is None
        at = papers.since(seed_type, batch.n_id(seed_type)[: batch.batch_size])
        looked += check_times(batch, papers, at, {seed_type: batch.batch_size})
    assert looked > 100


def test_given_times_override_and_untimed_types_stay(clusters: dict[str, atta.LocalCluster], papers: Papers) -> None:
    """Papers up to a year, though the author may begin later; venues always exist."""
    seeds, at = papers.ids["author"][:30], np.arange(30) * 2
    hops = {**{name: [0, -1] for name in HOPS}, "paper__by__author": [2, 0]}
    how: dict[str, Any] = {"input_time": at, "time_attr": "time", "batch_size": 30}
    assert (papers.since("author", seeds) > at).any()
    for name in ("whole", "two"):
        (batch,) = atta.NeighborLoader(clusters[name], hops, ("author", seeds), **how)
        assert len(batch.n_id("venue"))
        assert check_times(batch, papers, at, {"author": 30})
        assert batch.to_pyg()["author"].seed_time.tolist() == at.tolist()


@pytest.mark.parametrize("source", [None, "train"])
def test_times_of_a_split_and_of_all_go_by_ascending_id(
    clusters: dict[str, atta.LocalCluster], papers: Papers, source: str | None
) -> None:
    ids = np.sort(papers.ids["venue"] if source is None else papers.ids["venue"][:3])
    at = np.random.default_rng(3).integers(0, 60, len(ids))
    for cluster in clusters.values():
        loader = atta.NeighborLoader(
            cluster, HOPS, ("venue", source), input_time=at, time_attr="time", batch_size=2, shuffle=True
        )
        drawn: list[int] = []
        for batch in loader:
            seeds = batch.n_id("venue")[: batch.batch_size]
            times = dict(zip(ids.tolist(), at.tolist(), strict=True))
            assert batch.to_pyg()["venue"].seed_time.tolist() == [times[seed] for seed in seeds.tolist()]
            check_times(batch, papers, np.array([times[seed] for seed in seeds.tolist()]), {"venue": batch.batch_size})
            drawn += seeds.tolist()
        assert sorted(drawn) == ids.tolist()
    with pytest.raises(ConfigError, match=f"input_time: must be {len(ids)} integers"):
        atta.NeighborLoader(cluster, HOPS, ("venue", source), input_time=at[1:], time_attr="time")


def test_the_local_sampler_has_the_times_of_a_dataset(clusters: dict[str, atta.LocalCluster], papers: Papers) -> None:
    ids = papers.ids["paper"][:16]
    (batch,) = atta.NeighborLoader(clusters["two"], HOPS, ("paper", ids), batch_size=16, time_attr="time", seed=3)
    graphs = LocalGraph.open_all(papers.cut(1, "random"))
    rows = Dataset.open(papers.cut(1, "random")).to_internal("paper", ids)
    found = LocalSampler(graphs, method="temporal").sample(rows, HOPS, seed_type="paper", seed=3)
    for edge_type in HOPS:
        assert batch.edge_index(edge_type)[0].tolist() == found.row[edge_type].tolist()
        assert batch.e_id(edge_type).tolist() == found.e_id[edge_type].tolist()  # type: ignore[union-attr]
    assert batch.n_id("author").tolist() == found.n_id["author"].tolist()


def test_deployed_folders_have_the_times_of_all_vertices(papers: Papers, tmp_path: Path) -> None:
    whole = papers.cut(2, "metis")
    for part in (0, 1):
        deploy(whole, tmp_path / f"machine-{part}", [part])
    assert sorted((tmp_path / "machine-0/part-0001").rglob("*.npy")) == [
        tmp_path / f"machine-0/part-0001/nodes/{t}/time.npy" for t in ("author", "paper")
    ]
    peers = dict(enumerate(held_addresses(2)))
    with daemons() as running:
        for part, address in peers.items():
            running.start(tmp_path / f"machine-{part}", part, address, peers)
        with atta.connect([*peers.values()]) as deployed, atta.local(whole, threads=1) as here:
            found = [told(batch) for batch in loader_of(deployed, papers, "own times")]
            assert found == [told(batch) for batch in loader_of(here, papers, "own times")]
    gone = tmp_path / "machine-1/part-0000"
    shutil.rmtree(gone)
    with pytest.raises(DataError, match=r"part-0000/nodes/author/time\.npy: is missing: .*deploy it again"):
        Dataset.open(tmp_path / "machine-1", parts=[1]).times("author")


def test_new_times_come_to_every_daemon(papers: Papers, tmp_path: Path) -> None:
    """Of two daemons, one of partition 0, one of partitions 1 and 2."""
    rng = np.random.default_rng(5)
    times = {**papers.times, "paper": rng.integers(0, 60, 200).astype(np.int32)}
    for name, of in (("time", times), ("old", papers.times)):
        np.save(tmp_path / f"{name}.npy", of["paper"][np.argsort(papers.ids["paper"])])
    data, addresses = papers.cut(3, "random"), held_addresses(2)
    served = dict(zip(addresses, (range(1), range(1, 3)), strict=True))
    peers = {part: address for address, parts in served.items() for part in parts}
    with daemons() as running, ExitStack() as stack:
        for address, parts in served.items():
            running.start(data, parts, address, peers, cache_bytes=1 << 20)
        live = stack.enter_context(atta.connect(addresses, deadline_s=20))
        before = [told(batch) for batch in loader_of(live, papers, "own times")]
        reading = iter(loader_of(live, papers, "own times"))
        found = [told(next(reading))]
        words = ["update", "features", "--cluster", ",".join(addresses), "--data", str(data), "--table", "paper/time"]
        run = CliRunner().invoke(cli, [*words, "--from", str(tmp_path / "time.npy"), "--json", "-"])
        assert run.exit_code == 0, run.output
        assert '"version": 1' in run.stdout
        assert [*found, *(told(batch) for batch in reading)] == before, "a session goes on with its version"
        with atta.local(papers.cut(2, "metis", times), threads=1) as anew:
            wanted = {kind: [told(b)[2:] for b in loader_of(anew, papers, kind)] for kind in ("own times", "redrawn")}
        for kind, batches in wanted.items():
            for home in (0, 1):
                renewed = [told(batch) for batch in loader_of(live, papers, kind, home=home)]
                assert {version for _, version, *_ in renewed} == {1}
                assert [rest for _, _, *rest in renewed] == batches, (kind, home)
        assert wanted["own times"] != [rest for _, _, *rest in before]
        reading = iter(loader_of(live, papers, "own times"))
        found = [told(next(reading))]
        for address, parts in served.items():  # a daemon that is lost goes on with the same version
            running.kill(address)
            running.start(data, parts, address, peers, cache_bytes=1 << 20)
        found += [told(batch) for batch in reading]
        assert [rest for _, _, *rest in found] == wanted["own times"]
        assert publish(data, "paper/time", tmp_path / "old.npy", dict(enumerate(addresses))).number == 2
        after = [told(batch) for batch in loader_of(live, papers, "own times")]
        assert [rest for _, _, *rest in after] == [rest for _, _, *rest in before]


def test_what_is_refused(clusters: dict[str, atta.LocalCluster], papers: Papers, tmp_path: Path) -> None:
    cluster, links = clusters["two"], (WRITES, np.stack([papers.ids["author"][:3], papers.ids["paper"][:3]]))
    with pytest.raises(ConfigError, match=r"\(input_time\): vertices of type 'venue' have no table 'time'"):
        next(iter(atta.NeighborLoader(cluster, HOPS, ("venue", "train"), time_attr="time")))
    with pytest.raises(ConfigError, match=r"needs their times \(edge_label_time\)"):
        next(iter(atta.LinkNeighborLoader(cluster, HOPS, links, time_attr="time")))
    with pytest.raises(ConfigError, match="no other has a use for them"):
        next(iter(atta.NeighborLoader(cluster, HOPS, ("paper", papers.ids["paper"][:2]), input_time=[1, 2])))
    with pytest.raises(UnknownNameError, match="time_attr"):
        atta.NeighborLoader(cluster, HOPS, ("paper", "train"), time_attr="date")
    with GraphWriter(tmp_path / "graph") as out:
        out.add_nodes("node", 3, tables={"time": np.zeros(3, np.float32)})
        out.add_edges("node__to__node", np.array([0]), np.array([1]), tables={"time": np.array([4])})
    partition_graph(tmp_path / "graph", tmp_path / "data", parts=1)
    with (
        atta.local(tmp_path / "data", threads=1) as odd,
        pytest.raises(ConfigError, match=r"'time' of 'node' is <f4\[\]: times of vertices are one whole number each"),
    ):
        next(iter(atta.NeighborLoader(odd, [1], [1], input_time=[5], time_attr="time")))


def test_pygs_own_loaders(clusters: dict[str, atta.LocalCluster], papers: Papers) -> None:
    """What PyG's tests of its loaders ask of times, with vertices that are seeds and their trees."""
    features, graph, sampler = backends(clusters["two"], HOPS, time_attr="time")
    ids = torch.from_numpy(papers.ids["paper"][:40])
    for data in NodeLoader((features, graph), sampler, input_nodes=("paper", ids), batch_size=20):
        own = data["paper"].time[:20]
        for node_type in ("paper", "author"):
            assert (data[node_type].time <= own[data[node_type].batch]).all()
    links = torch.stack([torch.from_numpy(papers.ids["paper"][end[:90]]) for end in papers.edges[CITES]])
    at = torch.from_numpy(np.maximum(*(papers.since("paper", end.numpy()) for end in links)).astype(np.int64))
    edge_type = tuple(CITES.split("__"))
    loader = LinkLoader(
        (features, graph), sampler, edge_label_index=(edge_type, links), edge_label_time=at, neg_sampling="binary",
        batch_size=30,
    )  # fmt: skip
    for data in loader:
        times = torch.cat([data[edge_type].edge_label_time[:30]] * 2)
        for node_type in ("paper", "author"):
            assert (data[node_type].time <= times[data[node_type].batch % 30]).all()
