"""New edges on real daemons: batches are those of the graph cut anew with these edges, for every kind of sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.tables.versions import publish, publish_edges
from atta.errors import AttaError, ConfigError, UnknownNameError
from atta.kvstore.live import book
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running
from tests.unit.operators.test_contract import OPTIONS

OLD = 2200
"""So many edges of the small graph are there from the beginning. The others come later."""
KINDS: list[dict[str, Any]] = [
    {},
    {"weight_attr": "weight"},
    {"replace": True, "frontier": "all"},
    {"num_neighbors": [-1, 2]},
    {"method": "labor"},
    {"disjoint": True},
    {"time_attr": "time", "unbiased": True},
    {"edge_norm": "gcn", "unbiased": True},
    {"edge_norm": "both"},
    {"edge_norm": "gcn", "norm_attr": "weight", "unbiased": True},
]


def edge_tables(graph: SmallGraph, at: np.ndarray) -> dict[str, np.ndarray]:
    return {"weight": graph.edge_weight[at], "time": graph.edge_time[at], "note": graph.note[at]}


def cut(graph: SmallGraph, at: np.ndarray, to: Path, parts: int, method: str) -> Path:
    """The small graph with the edges ``at``, partitioned."""
    with GraphWriter(to / "graph") as writer:
        tables = {"x": graph.x, "y": graph.y}
        writer.add_nodes("node", len(graph.ids), ids=graph.ids, tables=tables, splits={"train": graph.train})
        writer.add_edges("node__to__node", graph.src[at], graph.dst[at], tables=edge_tables(graph, at))
    partition_graph(to / "graph", to / "data", parts=parts, method=method, seed=1)
    return to / "data"


class Live:
    """Daemons of the graph with its old edges: one of partition 0, one of partitions 1 and 2."""

    def __init__(self, graph: SmallGraph, folder: Path) -> None:
        self.graph, self.folder, self.running = graph, folder, Running()
        self.data = cut(graph, np.arange(OLD), folder / "old", 3, "random")
        self.served = {0: range(1), 1: range(1, 3)}
        self.addresses = held_addresses(len(self.served))
        self.peers = {part: self.addresses[n] for n, parts in self.served.items() for part in parts}
        self.targets = dict(enumerate(self.addresses))
        for number in self.served:
            self.start(number)
        self.cluster = atta.connect(self.addresses, deadline_s=20)

    def start(self, number: int) -> None:
        options: dict[str, Any] = {"cache_bytes": 1 << 20, "buffer_bytes": 64 << 20}
        where = self.data, self.served[number], self.addresses[number], self.peers
        setattr(self, f"daemon{number}", self.running.start(*where, **options))

    def write(self, at: np.ndarray, name: str = "new") -> Path:
        """A folder of edges as ``atta update edges`` takes it."""
        (self.folder / name).mkdir(exist_ok=True)
        arrays = {"src": self.graph.src_ids[at], "dst": self.graph.dst_ids[at], **edge_tables(self.graph, at)}
        for table, array in arrays.items():
            np.save(self.folder / name / f"{table}.npy", array)
        return self.folder / name

    def publish(self, **what: Any) -> int:
        return publish_edges(self.data, None, self.targets, **what).number

    def remove(self, ids: np.ndarray) -> int:
        np.save(self.folder / "gone.npy", ids)
        return self.publish(removed=self.folder / "gone.npy")

    def held(self) -> float:
        """Bytes of later versions that the daemons hold."""
        return sum(float(getattr(self, f"daemon{n}")._stats()["tables_version_bytes"]) for n in self.served)

    def close(self) -> None:
        self.cluster.close()
        self.running.kill_all()


@pytest.fixture
def live(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Live]:
    found = Live(small_graph, tmp_path)
    yield found
    found.close()


Found = list[tuple[Any, ...]]


def of_batch(batch: atta.MiniBatch, ids: np.ndarray | None = None) -> tuple[Any, ...]:
    """All that a batch says of its edges; ``ids``: what their ids are called."""
    n_id, e_id, (row, col) = batch.n_id(), batch.e_id(), batch.edge_index()
    assert e_id is not None
    named = e_id if ids is None else np.where(e_id < 0, e_id, ids[e_id])
    tables = {name: rows.tolist() for name, rows in batch.edge_tables().items()}
    if (weight := batch.edge_weight()) is not None:
        tables["weight of norm"] = weight.tolist()
    return n_id.tolist(), row.tolist(), col.tolist(), named.tolist(), tables


def sampled(cluster: atta.Cluster, graph: SmallGraph, kind: dict[str, Any], ids: np.ndarray | None = None) -> Found:
    more: dict[str, Any] = {"num_neighbors": [4, 3], "edge_tables": ["note", "weight"], "input_nodes": "train", **kind}
    if "time_attr" in kind:
        more |= {"input_nodes": graph.train_ids, "input_time": np.arange(len(graph.train_ids)) % 50}
    loader = atta.NeighborLoader(cluster, batch_size=16, shuffle=True, seed_policy="global", seed=7, **more)
    return [of_batch(batch, ids) for batch in loader]


def operated(cluster: atta.Cluster, graph: SmallGraph, name: str, options: dict[str, Any]) -> Found:
    seeds = graph.ids[np.random.default_rng(2).permutation(300)[:40]]
    how: dict[str, Any] = {"input_nodes": seeds, "batch_size": 20, "seed": 9, "seed_policy": "global"}
    return [of_batch(batch) for batch in atta.BatchLoader(cluster, name, options, **how)]


def linked(cluster: atta.Cluster, graph: SmallGraph, strategy: str) -> Found:
    links = np.stack([graph.src_ids[:60], graph.dst_ids[:60]])
    negatives = {"mode": "binary", "amount": 2, "strategy": strategy}
    how: dict[str, Any] = {"batch_size": 20, "seed": 3, "seed_policy": "global", "neg_sampling": negatives}
    loader = atta.LinkNeighborLoader(cluster, [3, 2], links, **how)
    return [(*of_batch(batch), batch.links()["edge_label_index"].tolist()) for batch in loader]


@pytest.mark.filterwarnings("ignore:edge_tables")
def test_added_edges_give_the_batches_of_the_graph_cut_anew(live: Live, small_graph: SmallGraph) -> None:
    graph = small_graph
    before = sampled(live.cluster, graph, {})
    assert live.publish(added=live.write(np.arange(OLD, 2600))) == 1
    assert live.publish(added=live.write(np.arange(2600, 3000))) == 2
    with atta.local(graph.dataset(2, "metis"), threads=1) as anew:
        for kind in KINDS:
            found = sampled(live.cluster, graph, kind)
            assert found == sampled(anew, graph, kind), kind
            assert found != before
        for name, options in OPTIONS:
            assert operated(live.cluster, graph, name, options) == operated(anew, graph, name, options), name
        for strategy in ("uniform", "degree", "in_batch", "exact"):
            assert linked(live.cluster, graph, strategy) == linked(anew, graph, strategy), strategy
    assert sum(stats.get("remote_rows", 0) for stats in live.cluster.stats()) > 0, "vertices of both daemons"
    for home in (0, 1):
        assert sampled(live.cluster, graph, {"home": home}) == sampled(live.cluster, graph, {})


@pytest.mark.filterwarnings("ignore:edge_tables")
def test_removed_and_replaced_edges(live: Live, small_graph: SmallGraph, tmp_path: Path) -> None:
    graph = small_graph
    gone = np.random.default_rng(4).permutation(OLD)[:500]
    left = np.setdiff1d(np.arange(OLD), gone)
    assert live.remove(gone) == 1
    data = cut(graph, left, tmp_path / "left", 2, "metis")
    with atta.local(data, threads=1) as anew:  # it has numbered its edges anew
        for kind in KINDS:
            assert sampled(live.cluster, graph, kind) == sampled(anew, graph, kind, left), kind
    live.publish(added=live.write(np.arange(OLD, 2300)))
    ids = np.concatenate([left, np.arange(OLD, 2300)])
    with atta.local(cut(graph, ids, tmp_path / "more", 2, "metis"), threads=1) as anew:
        assert sampled(live.cluster, graph, {}) == sampled(anew, graph, {}, ids)
    live.publish(added=live.write(gone), replaces=True)
    with atta.local(cut(graph, gone, tmp_path / "other", 2, "metis"), threads=1) as anew:
        for kind in KINDS:
            assert sampled(live.cluster, graph, kind) == sampled(anew, graph, kind), kind


def test_a_session_draws_from_one_version(live: Live, monkeypatch: pytest.MonkeyPatch, small_graph: SmallGraph) -> None:
    monkeypatch.setattr(book, "IDLE_S", 0.0)

    def loader() -> atta.NeighborLoader:
        how: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 7, "seed_policy": "global"}
        return atta.NeighborLoader(live.cluster, [4, 3], input_nodes="train", edge_tables=["note", "weight"], **how)

    whole = [of_batch(batch) for batch in loader()]
    reading = iter(loader())
    first = next(reading)
    live.publish(added=live.write(np.arange(OLD, 2600)))
    between = iter(loader())
    found = [next(between)]
    np.save(live.folder / "x.npy", small_graph.x[np.argsort(small_graph.ids)] + 1)
    assert publish(live.data, "x", live.folder / "x.npy", live.targets).number == 2
    live.remove(np.arange(700))
    assert live.held() > 0
    assert [of_batch(batch) for batch in (first, *reading)] == whole
    found += between
    assert {batch.version for batch in found} == {1}
    with atta.local(cut(small_graph, np.arange(2600), live.folder / "then", 2, "metis"), threads=1) as anew:
        assert [of_batch(batch) for batch in found] == sampled(anew, small_graph, {})
    newest = [*loader()]
    assert {batch.version for batch in newest} == {3}
    order = np.argsort(small_graph.ids)
    rows = order[np.searchsorted(small_graph.ids[order], newest[0].n_id())]
    assert np.array_equal(newest[0].table("x"), small_graph.x[rows] + 1), "rows of version 2, edges of version 3"
    del first, newest, found
    live.cluster.stats()  # the sessions' ends have come before it
    for number in live.served:
        daemon = getattr(live, f"daemon{number}")
        live.running.run(daemon.graph.versions._look())
        sources = {(name, kind): source for name, kind, source in daemon.graph.versions._live}
        assert sources == {("node", "x"): 2, ("node__to__node", "edges"): 3}, "version 1 is let go of"


def test_a_daemon_that_starts_again_has_the_newest_edges(live: Live, small_graph: SmallGraph) -> None:
    live.publish(added=live.write(np.arange(OLD, 3000)))
    found = sampled(live.cluster, small_graph, {})
    live.running.kill(live.addresses[1])
    live.start(1)
    assert sampled(live.cluster, small_graph, {"home": 0}) == found


def test_altered_edges_are_in_force_nowhere(
    live: Live, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sampled(live.cluster, small_graph, {})
    commit = "atta.kvstore.live.folder.check_file"
    from atta.errors import DataError
    from atta.partition.disk.files import check_file

    def altered(path: Path, record: Any, *, verify: bool) -> None:
        if "part-0002" in str(path) and path.name == "indices.npy":
            raise DataError(path, "altered")
        check_file(path, record, verify=verify)

    monkeypatch.setattr(commit, altered)
    with pytest.raises(AttaError, match=r"part-0002/edges/node__to__node/indices\.npy: altered"):
        live.publish(added=live.write(np.arange(OLD, 3000)))
    assert sampled(live.cluster, small_graph, {}) == before
    monkeypatch.undo()
    assert live.publish(added=live.write(np.arange(OLD, 3000))) == 1


@pytest.mark.parametrize(
    ("breaks", "cause"),
    [
        ({"src": np.array([10**6])}, "1000000 is not a vertex"),
        ({"dst": np.arange(2)}, "1 sources and 2 targets"),
        ({"src": np.array([0.5])}, r"src.npy is float64\[1\]"),
        ({"weight": np.zeros(1)}, r"weight.npy is <f8\[1\], must be <f4\[1\]"),
        ({"note": np.zeros((1, 2), np.float32)}, r"note.npy is <f4\[1, 2\], must be <f4\[1, 3\]"),
        ({"gone": np.array([OLD])}, f"edge {OLD} of node__to__node, to be removed, does not exist"),
        ({"gone": np.array([4, 4])}, "edge 4 is to be removed twice"),
        ({"replaces": True, "gone": np.array([4])}, "to replace all edges"),
    ],
)
def test_edges_that_do_not_fit_are_refused(live: Live, breaks: dict[str, Any], cause: str) -> None:
    folder = live.write(np.array([OLD]))
    what: dict[str, Any] = {"added": folder, "replaces": breaks.pop("replaces", False)}
    for name, array in breaks.items():
        if name == "gone":
            what["removed"] = live.folder / "gone.npy"
            np.save(live.folder / "gone.npy", array)
        else:
            np.save(folder / f"{name}.npy", array)
    with pytest.raises(ConfigError, match=cause):
        live.publish(**what)
    assert [*live.data.parent.glob("data.versions/0*")] == []
    with pytest.raises(UnknownNameError, match="edge type"):
        publish_edges(live.data, "node__likes__node", live.targets, added=folder)
    with pytest.raises(ConfigError, match="neither edges to add"):
        live.publish()


def test_the_command(live: Live, small_graph: SmallGraph) -> None:
    words = ["update", "edges", "--cluster", ",".join(live.addresses), "--data", str(live.data)]
    told = CliRunner().invoke(
        cli, [*words, "--from", str(live.write(np.arange(OLD, 3000))), "--json", str(live.folder / "told.json")]
    )
    assert told.exit_code == 0, told.output
    counts = {"added": 800, "gone": 0, "replaced": False, "removed": [], "untold": []}
    wanted = {"schema": 1, "version": 1, "edge_type": "node__to__node", **counts}
    assert json.loads((live.folder / "told.json").read_text()) == wanted
    with atta.local(small_graph.dataset(2, "metis"), threads=1) as anew:
        assert sampled(live.cluster, small_graph, {}) == sampled(anew, small_graph, {})
    told = CliRunner().invoke(cli, [*words, "--remove", str(live.folder / "none.npy")])
    assert "none.npy: the file is missing" in str(told.exception)
