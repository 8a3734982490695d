"""New versions of edges and rows on real daemons: batches are those of the graph cut anew, what sessions see, memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import atta
from atta.cli.main import cli
from atta.client.tables.versions import EdgeUpdater, publish, publish_edges, publishing, taking_edges
from atta.daemon.daemon import Daemon
from atta.errors import AttaError, ConfigError, DataError, RemoteError, UnknownNameError
from atta.kvstore.live import book
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.live.writing import NewRows, write_version
from atta.partition import partition_graph
from atta.partition.dataset import Dataset
from atta.partition.disk.files import check_file
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
    {"aggregate": "mean"},
    {"aggregate": "sum", "edge_norm": "gcn", "unbiased": True},
]


def edge_tables(graph: SmallGraph, at: np.ndarray) -> dict[str, np.ndarray]:
    return {"weight": graph.edge_weight[at], "time": graph.edge_time[at], "note": graph.note[at]}


def cut(graph: SmallGraph, at: np.ndarray, to: Path, parts: int, method: str) -> Path:
    with GraphWriter(to / "graph") as writer:
        tables = {"x": graph.x, "y": graph.y}
        writer.add_nodes("node", len(graph.ids), ids=graph.ids, tables=tables, splits={"train": graph.train})
        writer.add_edges("node__to__node", graph.src[at], graph.dst[at], tables=edge_tables(graph, at))
    partition_graph(to / "graph", to / "data", parts=parts, method=method, seed=1)
    return to / "data"


class Live:
    """Daemons of the graph with its old edges: one of partition 0, one of partitions 1 and 2."""

    def __init__(self, graph: SmallGraph, data: Path) -> None:
        self.graph, self.data, self.folder, self.running = graph, data, data.parent, Running()
        self.served = {0: range(1), 1: range(1, 3)}
        self.addresses = held_addresses(len(self.served))
        self.peers = {part: self.addresses[n] for n, parts in self.served.items() for part in parts}
        self.targets = dict(enumerate(self.addresses))
        self.daemons: dict[int, Daemon] = {}
        for number in self.served:
            self.start(number)
        self.cluster = atta.connect(self.addresses, deadline_s=20)
        self.order = np.argsort(graph.ids)

    def start(self, number: int) -> None:
        options: dict[str, Any] = {"cache_bytes": 1 << 20, "cache_fill": 0, "buffer_bytes": 64 << 20}
        where = self.data, self.served[number], self.addresses[number], self.peers
        self.daemons[number] = self.running.start(*where, **options)

    def kill(self, number: int) -> None:
        self.running.kill(self.addresses[number])

    def look(self) -> None:
        self.cluster.stats()  # ends of sessions have come before it
        for daemon in self.daemons.values():
            self.running.run(daemon.graph.versions._look())

    def held(self) -> float:
        return sum(float(daemon._stats()["tables_version_bytes"]) for daemon in self.daemons.values())

    def rows(self, x: np.ndarray, **more: Any) -> int:
        np.save(self.folder / "x.npy", x[self.order])
        return publish(self.data, "x", self.folder / "x.npy", self.targets, **more).number

    def write(self, at: np.ndarray) -> Path:
        """A folder of edges as ``atta update edges`` takes it."""
        (self.folder / "new").mkdir(exist_ok=True)
        arrays = {"src": self.graph.src_ids[at], "dst": self.graph.dst_ids[at], **edge_tables(self.graph, at)}
        for table, array in arrays.items():
            np.save(self.folder / "new" / f"{table}.npy", array)
        return self.folder / "new"

    def publish(self, **what: Any) -> int:
        return publish_edges(self.data, None, self.targets, **what).number

    def remove(self, ids: np.ndarray) -> int:
        np.save(self.folder / "gone.npy", ids)
        return self.publish(removed=self.folder / "gone.npy")

    def loader(self, **more: Any) -> atta.NeighborLoader:
        return atta.NeighborLoader(self.cluster, [4, 4], input_nodes="train", batch_size=20, job="live", **more)

    def has(self, batch: atta.MiniBatch, x: np.ndarray) -> bool:
        at = self.graph.rows(batch.n_id())
        return np.array_equal(batch.table("x"), x[at]) and np.array_equal(batch.table("y"), self.graph.y[at])


@pytest.fixture(scope="module")
def old(small_graph: SmallGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(small_graph, np.arange(OLD), tmp_path_factory.mktemp("old"), 3, "random")


@pytest.fixture
def live(small_graph: SmallGraph, old: Path, tmp_path: Path) -> Iterator[Live]:
    found = Live(small_graph, shutil.copytree(old, tmp_path / "data"))
    yield found
    found.cluster.close()
    found.running.kill_all()


Found = list[tuple[Any, ...]]


def of_batch(batch: atta.MiniBatch, ids: np.ndarray | None = None) -> tuple[Any, ...]:
    n_id, e_id, (row, col) = batch.n_id(), batch.e_id(), batch.edge_index()
    assert e_id is not None
    named = e_id if ids is None else np.where(e_id < 0, e_id, ids[e_id])
    tables = {name: rows.tolist() for name, rows in batch.edge_tables().items()}
    if (weight := batch.edge_weight()) is not None:
        tables["weight of norm"] = weight.tolist()
    tables |= {"sums": [rows["x"].tolist() for rows in batch.aggregates.values()]}
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
    words = ["update", "edges", "--cluster", ",".join(live.addresses), "--data", str(live.data)]
    more = ["--from", str(live.write(np.arange(2600, 3000))), "--json", str(live.folder / "told.json")]
    told = CliRunner().invoke(cli, [*words, *more])
    assert told.exit_code == 0, told.output
    counts = {"added": 400, "gone": 0, "replaced": False, "removed": [], "untold": []}
    wanted = {"schema": 1, "version": 2, "edge_type": "node__to__node", **counts}
    assert json.loads((live.folder / "told.json").read_text()) == wanted
    told = CliRunner().invoke(cli, [*words, "--remove", str(live.folder / "none.npy")])
    assert "none.npy: the file is missing" in str(told.exception)
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
    wanted = sampled(live.cluster, graph, {})
    live.kill(1)
    live.start(1)  # with the newest edges
    for home in (0, 1):
        assert sampled(live.cluster, graph, {"home": home}) == wanted


@pytest.mark.filterwarnings("ignore:edge_tables")
def test_removed_and_replaced_edges(live: Live, small_graph: SmallGraph, tmp_path: Path) -> None:
    graph = small_graph
    gone = np.random.default_rng(4).permutation(OLD)[:500]
    left = np.setdiff1d(np.arange(OLD), gone)
    assert live.remove(gone) == 1
    data = cut(graph, left, tmp_path / "left", 2, "metis")
    with atta.local(data, threads=1) as anew:  # it has numbered its edges anew
        for kind in KINDS[::3]:  # added edges are drawn in all ways
            assert sampled(live.cluster, graph, kind) == sampled(anew, graph, kind, left), kind
    live.publish(added=live.write(np.arange(OLD, 2300)))
    ids = np.concatenate([left, np.arange(OLD, 2300)])
    with atta.local(cut(graph, ids, tmp_path / "more", 2, "metis"), threads=1) as anew:
        assert sampled(live.cluster, graph, {}) == sampled(anew, graph, {}, ids)
    live.publish(added=live.write(gone), replaces=True)
    with atta.local(cut(graph, gone, tmp_path / "other", 2, "metis"), threads=1) as anew:
        assert sampled(live.cluster, graph, KINDS[2]) == sampled(anew, graph, KINDS[2])


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
    assert live.rows(small_graph.x + 1) == 2
    live.remove(np.arange(700))
    newest = [*loader()]
    both, old = live.held(), [first, *reading]
    assert [of_batch(batch) for batch in old] == whole
    found += between
    for batches, version in ((old, 0), (found, 1)):
        assert all(batch.version == version and live.has(batch, small_graph.x) for batch in batches)
    with atta.local(cut(small_graph, np.arange(2600), live.folder / "then", 2, "metis"), threads=1) as anew:
        assert [of_batch(batch) for batch in found] == sampled(anew, small_graph, {})
    assert {batch.version for batch in newest} == {3}
    assert live.has(newest[0], small_graph.x + 1), "rows of version 2, edges of version 3"
    del first, newest, found, old, batches
    live.look()
    assert small_graph.x.nbytes < live.held() < both
    for daemon in live.daemons.values():
        sources = {(name, kind): source for name, kind, source in daemon.graph.versions._live}
        assert sources == {("node", "x"): 2, ("node__to__node", "edges"): 3}, "version 1 is let go of"


def test_altered_edges_are_in_force_nowhere(
    live: Live, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sampled(live.cluster, small_graph, {})

    def altered(path: Path, record: Any, *, verify: bool) -> None:
        if "part-0002" in str(path) and path.name == "indices.npy":
            raise DataError(path, "altered")
        check_file(path, record, verify=verify)

    monkeypatch.setattr("atta.kvstore.live.folder.check_file", altered)
    with pytest.raises(AttaError, match=r"part-0002/edges/node__to__node/indices\.npy: altered"):
        live.publish(added=live.write(np.arange(OLD, 3000)))
    assert sampled(live.cluster, small_graph, {}) == before
    monkeypatch.undo()
    assert live.publish(added=live.write(np.arange(OLD, 3000))) == 1


def test_edges_that_do_not_fit_are_refused(live: Live) -> None:
    for breaks, cause in (
        ({"src": np.array([10**6])}, "1000000 is not a vertex"),
        ({"dst": np.arange(2)}, "1 sources and 2 targets"),
        ({"src": np.array([0.5])}, r"src.npy is float64\[1\]"),
        ({"weight": np.zeros(1)}, r"weight.npy is <f8\[1\], must be <f4\[1\]"),
        ({"note": np.zeros((1, 2), np.float32)}, r"note.npy is <f4\[1, 2\], must be <f4\[1, 3\]"),
        ({"gone": np.array([OLD])}, f"edge {OLD} of node__to__node, to be removed, does not exist"),
        ({"gone": np.array([4, 4])}, "edge 4 is to be removed twice"),
        ({"replaces": True, "gone": np.array([4])}, "to replace all edges"),
    ):
        what: dict[str, Any] = {"added": live.write(np.array([OLD])), "replaces": breaks.pop("replaces", False)}
        for name, array in breaks.items():
            path = live.folder / "gone.npy" if name == "gone" else what["added"] / f"{name}.npy"
            np.save(path, array)
            what |= {"removed": path} if name == "gone" else {}
        with pytest.raises(ConfigError, match=cause):
            live.publish(**what)
        assert [*live.data.parent.glob("data.versions/0*")] == []
    with pytest.raises(UnknownNameError, match="edge type"):
        publish_edges(live.data, "node__likes__node", live.targets, added=what["added"])
    with pytest.raises(ConfigError, match="neither edges to add"):
        live.publish()


# -- updates that are put into a folder -----------------------------------------------------------------------------------


def put(live: Live, name: str, at: np.ndarray, **other: np.ndarray) -> None:
    """An update of some edges, with other arrays in place of some of theirs."""
    folder = live.write(at)
    for table, array in other.items():
        np.save(folder / f"{table}.npy", array)
    (live.folder / "arriving").mkdir(exist_ok=True)
    folder.rename(live.folder / "arriving" / name)


@contextlib.contextmanager
def updater(live: Live) -> Iterator[EdgeUpdater]:
    with (
        publishing(live.data, live.targets, None, 2) as publisher,
        taking_edges(publisher, live.folder / "arriving") as found,
    ):
        yield found


def test_updates_that_have_arrived_are_one_version(live: Live, small_graph: SmallGraph) -> None:
    with updater(live) as taking:
        assert taking.catch_up() is None
        with pytest.raises(ConfigError, match="another process takes updates from it"), updater(live):
            pass
        put(live, "b", np.arange(2300, 2301), src=small_graph.src_ids[2300:2301].astype(np.uint64))
        put(live, "c", np.arange(3), src=np.array([10**6, 1, 2]))
        put(live, "d", np.arange(3), weight=np.zeros(3))
        (live.folder / "arriving/e").write_text("no folder")
        put(live, ".f", np.arange(3))  # it is still being written
        put(live, "a", np.arange(OLD, 2300))
        done = taking.catch_up()
        assert done is not None
        assert (done.number, done.updates, done.rows, done.untold) == (1, ["a", "b"], 101, [])
        assert [*done.refused] == ["c", "d", "e"]
        for name, cause in (("c", "1000000 is not a vertex"), ("d", "must be <f4"), ("e", "holds no src.npy")):
            assert cause in done.refused[name]
            assert cause in (live.folder / f"arriving/refused/{name}.txt").read_text()
            assert (live.folder / "arriving/refused" / name).exists()
        assert sorted(os.listdir(taking.folder)) == [".f", "refused"]
        put(live, "c", np.arange(3), dst=np.zeros((3, 2)))
        refused = taking.catch_up()
        assert refused is not None
        assert (refused.number, refused.updates, [*refused.refused]) == (0, [], ["c"])
        for number in range(2, 5):  # names that were used may come again
            put(live, "a", np.arange(2299 + number, 2300 + number))
            done = taking.catch_up()
            assert done is not None
            assert (done.number, done.updates, done.rows) == (number, ["a"], 1)
    with atta.local(cut(small_graph, np.arange(2304), live.folder / "anew", 2, "metis"), threads=1) as anew:
        assert sampled(live.cluster, small_graph, {}) == sampled(anew, small_graph, {})
    words = ["update", "edges", "--cluster", "localhost:1", "--data", str(live.data), "--watch", "w", "--replace"]
    told = CliRunner().invoke(cli, words)
    assert "--replace: goes without --watch" in told.output


class Ended(BaseException):
    """Of a process that is no more."""


def test_an_updater_that_ends_anywhere_takes_each_update_once(
    live: Live, small_graph: SmallGraph, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Before any change of the disk that it makes."""
    left, ends, main = [0], 0, threading.get_ident()

    def ending(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **more: Any) -> Any:
            if threading.get_ident() == main and (left := counted()) < 0:
                raise Ended(left)
            return change(*args, **more)

        return changed

    def counted() -> int:
        left[0] -= 1
        return left[0]

    changes, first, taken = int(rng.integers(0, 12)), OLD, dict[str, int]()
    while True:
        for _ in range(2):
            put(live, f"{first:05}", np.arange(first, first + 1))
            first += 1
        with monkeypatch.context() as patch, contextlib.suppress(Ended), updater(live) as taking:
            left[0] = changes
            for name in ("rename", "unlink", "rmdir", "mkdir", "fsync"):
                patch.setattr(os, name, ending(getattr(os, name)))
            done = taking.catch_up()
            assert done is not None
            break
        ends, changes = ends + 1, changes + 12
        with updater(live) as taking:
            while (done := taking.catch_up()) is not None:
                taken |= dict.fromkeys(done.updates, done.number)
    taken |= dict.fromkeys(done.updates, done.number)
    assert ends > 2
    assert [*taken.values()] == sorted(taken.values())
    dataset = Dataset.open(live.data)
    newest = max(VersionFolder(live.data, dataset.dataset_id).committed().values(), key=lambda version: version.number)
    assert newest.edge_ids == {"node__to__node": first}
    assert max(taken.values()) == newest.number
    ends = np.empty((2, first), np.int64)
    for part in range(dataset.num_parts):
        csc = VersionFolder(live.data, dataset.dataset_id).edges(dataset, part, newest.number).csc("node__to__node")
        low, high = dataset.book.range("node", part)
        ids = dataset.ids("node")
        ends[:, csc.edge_ids] = ids[csc.indices], np.repeat(ids[low:high], np.diff(csc.indptr))
    assert ends.tolist() == [small_graph.src_ids[:first].tolist(), small_graph.dst_ids[:first].tolist()]


def test_an_updater_waits_for_daemons(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    put(live, "a", np.arange(OLD, 2300))
    with updater(live) as taking:
        live.kill(1)
        with pytest.raises(RemoteError, match="1 of 2 daemons failed: part 1 at"):
            taking.catch_up()
        threading.Timer(0.5, live.start, [1]).start()
        monkeypatch.setattr("atta.client.tables.versions.PAUSE_S", 0.1)
        done = next(taking.follow())
        assert (done.number, done.updates, done.rows) == (1, ["a"], 100)


# -- new rows -----------------------------------------------------------------------------------------------------------


def test_sums_of_new_rows_are_those_of_the_rows(live: Live) -> None:
    """Their numbers may be larger than the ones that units were chosen by."""
    for number, factor in enumerate((1.0, 1000.0), 1):
        live.rows(live.graph.x * np.float32(factor))
        for batch, whole in zip(live.loader(aggregate="mean"), live.loader(), strict=True):
            row, col = whole.edge_index()
            known, mean = len(batch.table("x")), np.zeros((whole.num_nodes, live.graph.x.shape[1]))
            np.add.at(mean, col, whole.table("x")[row])
            mean /= np.maximum(1, np.bincount(col, minlength=whole.num_nodes))[:, None]
            assert batch.version == number
            np.testing.assert_allclose(batch.aggregated(), mean[:known], rtol=1e-5, atol=1e-6 * factor)


def test_a_cursor_names_its_version(live: Live) -> None:
    loader = live.loader()
    reading = iter(loader)
    next(reading)
    state = loader.state_dict()
    assert state["tables_version"] == 0
    live.rows(live.graph.x + 1)
    again = live.loader()
    again.load_state_dict(state)
    rest = [*again]
    assert len(rest) == len(loader) - 1
    assert all(batch.version == 0 and live.has(batch, live.graph.x) for batch in rest)
    assert all(batch.version == 1 for batch in again), "the next epoch has the newest"
    gone = live.loader()
    gone.load_state_dict({**state, "tables_version": 7})
    with pytest.raises(UnknownNameError, match=r"unknown version of the dataset '7'; .*0"):
        iter(gone)


def test_a_daemon_killed_between_prepare_and_commit(live: Live) -> None:
    dataset = Dataset.open(live.data)
    folder, new = VersionFolder(live.data, dataset.dataset_id), live.graph.x - 4
    with folder.updating():
        version = write_version(folder, dataset, {("node", "x"): NewRows(new[live.order], None)})
    for daemon in live.daemons.values():
        live.running.run(daemon.graph.versions.prepare(version.number, version.id))
    live.kill(1)
    live.start(1)
    assert all(batch.version == 0 and live.has(batch, live.graph.x) for batch in live.loader())
    live.kill(1)
    with pytest.raises(AttaError, match="part 1 at"):
        live.rows(new)
    assert folder.committed() == {}
    folder.commit(version.number)  # whoever publishes dies here: nobody is told
    live.start(1)
    live.look()
    assert all(batch.version == 1 and live.has(batch, new) for batch in live.loader())


def test_a_daemon_that_was_not_told_answers_its_peers(live: Live) -> None:
    dataset, new = Dataset.open(live.data), live.graph.x + 9
    folder = VersionFolder(live.data, dataset.dataset_id)
    with folder.updating():
        folder.commit(write_version(folder, dataset, {("node", "x"): NewRows(new[live.order], None)}).number)
    live.running.run(live.daemons[0].graph.versions._look())
    batches = [*live.loader(home=0)]
    assert all(batch.version == 1 and live.has(batch, new) for batch in batches)


def test_unread_versions_leave_the_disk(live: Live) -> None:
    reading = iter(live.loader())
    live.rows(live.graph.x + 1)
    held = iter(live.loader())
    first = next(held)
    for step in range(2, 5):
        live.rows(live.graph.x + step, keep=1)
    versions = live.data.parent / "data.versions"
    assert sorted(path.parts[-5] for path in versions.rglob("x.npy") if "part-0000" in path.parts) == ["0001", "0004"]
    assert live.has(first, live.graph.x + 1)
    assert all(batch.version == 1 and live.has(batch, live.graph.x + 1) for batch in held)
    assert all(batch.version == 0 for batch in reading)


def test_sums_are_counted_by_the_rows_of_their_version(live: Live) -> None:
    """Rows a billion times as large, or as small, are summed as well as those that the daemons began with."""
    for sizes in (1e9, 1e-9, np.geomspace(1e-9, 1e9, 16)):
        live.rows((live.graph.x * sizes).astype(np.float32))
        live.look()
        sums, whole = (next(iter(live.loader(seed=3, aggregate=how))) for how in ("sum", None))
        expected = np.zeros((whole.num_nodes, 16))
        row, col = whole.edge_index()
        np.add.at(expected, col, whole.table("x")[row].astype(np.float64))
        assert np.all(np.abs(sums.aggregated() - expected[: len(sums.aggregated())]) <= 3e-6 * 3 * sizes)
    live.rows(np.where(live.graph.x == live.graph.x[3], np.nan, live.graph.x).astype(np.float32))
    live.look()
    with pytest.raises(ConfigError, match="aggregate: table 'x' has numbers that are not finite"):
        next(iter(live.loader(aggregate="sum")))
