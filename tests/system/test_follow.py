"""A follower of real daemons: after each version its tables are those of a full pass, also when it was killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv, SAGEConv, SGConv

import atta
from atta.client.inference.followed import FollowedTables, edges_from
from atta.client.tables.remote import RemoteTable
from atta.client.tables.versions import publish, publish_edges
from atta.errors import AttaError, ConfigError, RemoteError, StaleRowError, UnknownNameError
from atta.partition import partition_graph
from atta.partition.graph import GraphWriter
from atta.wire.clusterfile import write_cluster
from tests.addresses import held_addresses
from tests.system.running import Running, daemons
from tests.system.test_inference import checkpoint

VERTICES, EDGES, CHANNELS = 500, 1500, 8
KILLS = int(os.environ.get("ATTA_KILLS", "12"))
"""Of daemons, the updater and the follower, in one test."""


class Live:
    """Two daemons of a sparse graph, and the edges and rows that its newest version has."""

    def __init__(self, folder: Path, seed: int, running: Running | Processes | None = None) -> None:
        """``running``: starts daemons that keep their tables; None: they are those of ``atta.local``."""
        self.rng, self.folder, self.data = np.random.default_rng(seed), folder, folder / "data"
        self.ids = self.rng.permutation(10 * VERTICES)[:VERTICES].astype(np.int64)
        self.x = self.rng.standard_normal((VERTICES, CHANNELS)).astype(np.float32)
        self.ends = self.rng.integers(0, VERTICES, (2, EDGES))
        self.edge_ids = np.arange(EDGES)
        self.count = EDGES
        with GraphWriter(folder / "graph") as writer:
            writer.add_nodes("node", VERTICES, ids=self.ids, tables={"x": self.x}, splits={})
            writer.add_edges("node__to__node", *self.ends)
        partition_graph(folder / "graph", self.data, parts=2, method="random")
        self.running = running
        self.cluster = self.connected()
        self.addresses = dict(enumerate(self.cluster.addresses))

    def connected(self) -> atta.Cluster:
        if self.running is None:
            return atta.local(self.data, threads=1)
        self.places = dict(enumerate(held_addresses(2)))
        for part in self.places:
            self.start(part)
        return atta.connect(",".join(self.places.values()), deadline_s=5, wait=True)

    def start(self, part: int) -> None:
        kept = {"durability": "process", "tables_dir": str(self.folder / f"tables-{part}")}
        assert self.running is not None
        self.running.start(self.data, part, self.places[part], self.places, **kept)

    def features(self, count: int) -> int:
        at = self.rng.choice(VERTICES, count, replace=False)
        self.x[at] = self.rng.standard_normal((count, CHANNELS))
        (self.folder / "rows").mkdir(exist_ok=True)
        np.save(self.folder / "rows/ids.npy", self.ids[at])
        np.save(self.folder / "rows/x.npy", self.x[at])
        return publish(self.data, "x", self.folder / "rows", self.addresses).number

    def edges(self, added: int, removed: int) -> int:
        new, where = self.rng.integers(0, VERTICES, (2, added)), self.folder / "edges"
        where.mkdir(exist_ok=True)
        np.save(where / "src.npy", self.ids[new[0]])
        np.save(where / "dst.npy", self.ids[new[1]])
        gone = self.rng.choice(len(self.edge_ids), removed, replace=False)
        np.save(self.folder / "gone.npy", self.edge_ids[gone])
        told = publish_edges(
            self.data, None, self.addresses, added=where if added else None,
            removed=self.folder / "gone.npy" if removed else None,
        )  # fmt: skip
        self.ends = np.concatenate([np.delete(self.ends, gone, axis=1), new], axis=1)
        self.edge_ids = np.concatenate([np.delete(self.edge_ids, gone), self.count + np.arange(added)])
        self.count += added
        return told.number

    def random_update(self) -> int:
        if self.rng.random() < 0.4:
            return self.features(int(self.rng.integers(1, 5)))
        return self.edges(*map(int, self.rng.integers(1, 5, 2)))

    def check(self, follower: atta.InferenceFollower, model: Any, what: str, *, tolerance: float = 0.0) -> None:
        wanted = atta.predict(self.cluster, model, what=what)
        found, version = follower.tables.read(wanted.ids)
        assert version == follower.version
        off = np.abs(found.astype(np.float64) - wanted.values).reshape(len(found), -1).max(axis=1)
        size = np.abs(wanted.values).reshape(len(found), -1).max(axis=1)
        assert (off <= (tolerance or 1e-5) * np.maximum(size, 1e-3)).all(), off.max()


@pytest.fixture
def live(tmp_path: Path, seed: int) -> Iterator[Live]:
    found = Live(tmp_path, seed)
    yield found
    found.cluster.close()


@pytest.mark.parametrize(("model", "what"), [
    pytest.param("sage", "embeddings", marks=pytest.mark.slow), ("gcn", "classes"),
    pytest.param("gat", "scores", marks=pytest.mark.slow),
])  # fmt: skip
def test_tables_equal_a_full_pass_after_random_updates(live: Live, tmp_path: Path, model: str, what: str) -> None:
    folder, _ = checkpoint(tmp_path / "run", model, channels=CHANNELS)
    follower = atta.InferenceFollower(live.cluster, folder, table="rows", what=what)
    assert follower.version is None
    with pytest.raises(StaleRowError, match="first pass"):
        follower.tables.read(live.ids[:3])
    first = follower.catch_up()
    assert first is not None
    assert (first.version, first.since, follower.catch_up()) == (0, None, None)
    live.check(follower, folder, what)
    for number in range(5):
        before, old = follower.tables.read(live.ids)
        for _ in range(1 + number % 2):  # two versions are followed at once
            newest = live.random_update()
        done = follower.catch_up()
        assert done is not None
        assert (done.version, done.since) == (newest, old)
        assert (what != "classes") <= done.changed <= done.computed < first.computed
        live.check(follower, folder, what)
        again, version = follower.tables.read(live.ids, old)
        assert version == old
        np.testing.assert_array_equal(again, before)
    assert done.computed < first.computed / 2
    with pytest.raises(StaleRowError, match="not 0"):
        follower.tables.read(live.ids, 0)
    with pytest.raises(ConfigError, match="another model"):
        atta.InferenceFollower(live.cluster, folder, table="rows", what="embeddings" if what == "scores" else "scores")


def test_layers_of_several_hops_and_rows_within_tolerance(live: Live) -> None:
    torch.manual_seed(3)
    layers = [SGConv(CHANNELS, 6, K=2), torch.nn.ReLU(), GCNConv(6, 5), SAGEConv(5, 4)]
    exact = atta.InferenceFollower(live.cluster, layers, table="exact")
    near = atta.InferenceFollower(live.cluster, layers, table="near", tolerance=0.05)
    for follower in (exact, near):
        follower.catch_up()
    computed = []
    for _ in range(2):
        live.edges(2, 2)
        live.features(2)
        computed.append([follower.catch_up().computed for follower in (exact, near)])
        live.check(exact, layers, "embeddings")
        live.check(near, layers, "embeddings", tolerance=0.5)
    assert np.sum(computed, axis=0)[1] < np.sum(computed, axis=0)[0]
    with pytest.raises(AssertionError):
        live.check(near, layers, "embeddings")
    sources = live.rng.random(VERTICES) < 0.002
    ids, rank = exact._user_ids("node"), np.argsort(live.ids)
    row = np.empty(VERTICES, np.int64)
    row[rank[np.searchsorted(live.ids[rank], ids)]] = np.arange(VERTICES)  # of a table, by vertex
    wanted = np.zeros(VERTICES, bool)
    wanted[row[live.ends[1][sources[row[live.ends[0]]]]]] = True
    found = np.zeros(VERTICES, bool)
    for ends in edges_from(live.cluster, "node__to__node", sources, exact.version or 0, range(VERTICES), most=8):
        found[ends[1]] = True
        assert sources[ends[0]].all()
    np.testing.assert_array_equal(found, wanted)


def started(live: Live, model: Path, *options: str) -> subprocess.Popen[str]:
    words = ["predict", "--cluster", ",".join(live.cluster.addresses), "--checkpoint", str(model), "--table", "rows"]
    command = [sys.executable, "-m", "atta.cli.main", *words, "--what", "scores", "--follow", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def ended(process: subprocess.Popen[str], sent: int) -> str:
    process.send_signal(sent)
    said, _ = process.communicate(timeout=60)
    return said


def reached(live: Live, version: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(StaleRowError, UnknownNameError):
            if FollowedTables(live.cluster, "rows").read(live.ids[:1])[1] == version:
                return
        time.sleep(0.1)
    raise AssertionError(f"the follower has not come to version {version}")


@pytest.mark.slow
def test_the_command_is_killed_and_goes_on(live: Live, tmp_path: Path) -> None:
    """At random moments. Meanwhile readers get rows of one version."""
    model, _ = checkpoint(tmp_path / "run", "gcn", channels=CHANNELS)
    process = started(live, model)
    reached(live, 0)
    wanted = {0: scores(live, model)}
    for _ in range(2):
        version = live.random_update()
        wanted[version] = scores(live, model)
        time.sleep(float(live.rng.random()) / 2)
        ended(process, signal.SIGKILL)
        found, of = FollowedTables(live.cluster, "rows").read(live.ids)
        np.testing.assert_allclose(found, wanted[of], rtol=1e-4, atol=1e-5)
        process = started(live, model)
        reached(live, version)
    last = live.edges(3, 3)
    reached(live, last)
    assert f"version {last}: from version {version}, " in ended(process, signal.SIGINT)
    found, _ = FollowedTables(live.cluster, "rows").read(live.ids)
    np.testing.assert_allclose(found, scores(live, model), rtol=1e-4, atol=1e-5)


class Processes:
    """Daemons that are processes of their own. They start and die as those of ``Running``."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, data: Path, part: int, address: str, peers: Mapping[int, str], **options: str) -> None:
        write_cluster(peers_file := data.with_name("cluster.toml"), [*peers.values()])
        words = ["serve", "--data", data, "--part", part, "--listen", address, "--peers", peers_file, "--threads", 1]
        words += ["--no-verify", "--buffer", "64MiB"]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", value]
        with data.with_name(f"daemon-{part}.log").open("ab") as log:
            command = [sys.executable, "-m", "atta.cli.main", *map(str, words)]
            self._running[address] = subprocess.Popen(command, stderr=log)

    def kill(self, address: str) -> None:
        self._running[address].kill()
        self._running[address].wait()


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    for address in found._running:
        found.kill(address)


class Reader(threading.Thread):
    """Reads the rows of all vertices again and again, and compares them with those of the version that they are of."""

    def __init__(self, live: Live, model: torch.nn.Module, new: np.ndarray) -> None:
        super().__init__(daemon=True)
        self._live, self._model, self._ends = live, model, np.concatenate([live.ends, new], axis=1)
        self._stopping, self.reads, self.seen, self.wrong = threading.Event(), 0, set[int](), list[tuple[int, int]]()

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            with contextlib.suppress(RemoteError, StaleRowError, UnknownNameError):
                self.read()

    def read(self) -> int:
        found, version = FollowedTables(self._live.cluster, "rows").read(self._live.ids)
        x, ends = torch.from_numpy(self._live.x), torch.from_numpy(self._ends[:, : self.edges(version)])
        with torch.no_grad():
            wrong = ~np.isclose(found, self._model(x, ends).numpy(), rtol=1e-4, atol=1e-5).all(axis=1)
        self.wrong += [(version, vertex) for vertex in np.flatnonzero(wrong).tolist()]
        self.reads, self.seen = self.reads + 1, self.seen | {version}
        return version

    def edges(self, version: int) -> int:
        """How many a version has: the first ones."""
        path = self._live.folder / f"data.versions/{version:04}/version.json"
        return int(json.loads(path.read_text())["edge_ids"]["node__to__node"]) if version else EDGES

    def stop(self) -> None:
        self._stopping.set()
        self.join()


@pytest.mark.slow
@pytest.mark.timeout(180 + 20 * KILLS)
def test_updates_are_taken_once_and_followed_though_all_are_killed(
    tmp_path: Path, seed: int, processes: Processes
) -> None:
    """At random moments, as often as ``ATTA_KILLS`` says. Meanwhile whoever reads gets rows of one version."""
    live = Live(tmp_path, seed, processes)
    model, module = checkpoint(tmp_path / "run", "gcn", channels=CHANNELS)
    arriving, lines, new = tmp_path / "arriving", tmp_path / "lines", live.rng.integers(0, VERTICES, (2, 60 * KILLS))
    words = ["update", "edges", "--cluster", ",".join(live.cluster.addresses), "--data", str(live.data)]
    command = [sys.executable, "-m", "atta.cli.main", *words, "--watch", str(arriving), "--json", str(lines), "--quiet"]
    reader, killed, followed = Reader(live, module, new), Counter[str](), Counter[int]()
    arriving.mkdir()

    def put() -> None:
        for number, pair in enumerate(new.T):
            (folder := arriving / f".{number}").mkdir()
            for name, vertex in zip(("src", "dst"), pair, strict=True):
                np.save(folder / f"{name}.npy", live.ids[[vertex]])
            folder.rename(arriving / f"{number:06}")
            time.sleep(0.05)

    def begin(which: str) -> None:
        running[which] = subprocess.Popen(command, text=True) if which == "updater" else started(live, model)

    def end(which: str, sent: int = signal.SIGKILL) -> None:
        said = ended(running[which], sent) or ""
        followed.update(int(of) for of in re.findall(r"^version (\d+):", said, re.MULTILINE))

    def start_ended() -> None:
        """Who starts while a daemon is away ends."""
        for which in [name for name, process in running.items() if process.poll() is not None]:
            killed[f"{which} that found no daemon"] += 1
            end(which)
            begin(which)

    with ThreadPoolExecutor(1) as pool:
        putting, running = pool.submit(put), dict[str, subprocess.Popen[str]]()
        for which in ("updater", "follower"):
            begin(which)
        reader.start()
        for _ in range(KILLS):
            time.sleep(1 + 4 * float(live.rng.random()))
            killed[which := str(live.rng.choice(["updater", "follower", "daemon"]))] += 1
            if which == "daemon":
                processes.kill(live.places[part := int(live.rng.integers(2))])
                live.start(part)
            else:
                end(which)
                begin(which)
            start_ended()
        putting.result(600)
    until = time.monotonic() + 120
    while (os.listdir(arriving), reader.seen and reader.edges(max(reader.seen))) != (["refused"], EDGES + new.shape[1]):
        assert time.monotonic() < until
        time.sleep(0.1)
        start_ended()
    reader.stop()
    told = [name for line in lines.read_text().splitlines() for name in json.loads(line)["updates"]]
    print(
        f"killed: {dict(killed)}; {len(told):,} of {new.shape[1]:,} updates told in {max(reader.seen):,} versions, "
        f"{len(followed):,} followed, {len(reader.seen):,} seen in {reader.reads:,} reads; wrong: {reader.wrong}"
    )
    assert not reader.wrong
    assert len(told) == len(set(told)) > new.shape[1] / 2  # whoever is killed when a version counts says no more of it
    for which in running:
        end(which, signal.SIGINT)
    assert running["updater"].returncode in (130, -signal.SIGINT)  # the latter while it still starts
    live.cluster.close()


class Ended(Exception):
    """A follower that is no more."""


@pytest.mark.slow
def test_a_follower_that_ends_between_any_two_writes_goes_on(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = checkpoint(live.folder / "run", "gcn", layers=2, channels=CHANNELS)
    atta.InferenceFollower(live.cluster, model, table="rows", what="scores").catch_up()
    push, left, ends = RemoteTable.push, [0], 0

    def pushed(self: RemoteTable, *rows: Any, **more: Any) -> Any:
        if not left[0]:
            raise Ended
        left[0] -= 1
        return push(self, *rows, **more)

    for writes in range(1, 100):  # the first one is that of the new follower
        version, before = live.edges(2, 1), FollowedTables(live.cluster, "rows").read(live.ids)
        with monkeypatch.context() as patch:
            patch.setattr(RemoteTable, "push", pushed)
            left[0] = writes
            follower = atta.InferenceFollower(live.cluster, model, table="rows", what="scores")
            with contextlib.suppress(Ended):
                follower.catch_up()
        found, of = FollowedTables(live.cluster, "rows").read(live.ids)
        if of == version:
            break
        ends += 1
        assert of == before[1]
        np.testing.assert_array_equal(found, before[0])
        if writes % 2:
            live.features(1)
        second = atta.InferenceFollower(live.cluster, model, table="rows", what="scores")
        assert second.catch_up().since == of
        live.check(second, model, "scores")
        with pytest.raises(AttaError, match="another follower"):
            follower.tables.begin()
    assert (
        ends == 11
    )  # it begins; in-degrees, two layers, what was there before and the totals of each; the version counts


def test_daemons_are_killed_while_rows_follow(tmp_path: Path, seed: int) -> None:
    layers = [SAGEConv(CHANNELS, 6), torch.nn.ReLU(), GCNConv(6, 4)]
    with daemons() as running, ThreadPoolExecutor(1) as pool:
        live = Live(tmp_path, seed, running)
        follower = atta.InferenceFollower(live.cluster, layers, table="rows", batch_size=16)
        follower.catch_up()

        def reach(version: int) -> None:
            until = time.monotonic() + 60
            while follower.version != version:
                assert time.monotonic() < until
                with contextlib.suppress(RemoteError):
                    follower.catch_up()

        for number in range(2):
            version = live.edges(20, 20)
            reaching = pool.submit(reach, version)
            time.sleep(0.15 * float(live.rng.random()))
            running.kill(live.places[number % 2])
            live.start(number % 2)
            reaching.result(60)
            live.check(follower, layers, "embeddings")
        live.cluster.close()


def scores(live: Live, model: Path) -> np.ndarray:
    found = atta.predict(live.cluster, model, what="scores")
    return found.values[np.argsort(found.ids)][np.argsort(np.argsort(live.ids))]


def test_versions_whose_files_have_gone_are_followed_by_a_full_pass(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What versions have changed stays after them, for a while."""
    layers = [SAGEConv(CHANNELS, 4)]
    follower = atta.InferenceFollower(live.cluster, layers, table="rows")
    follower.catch_up()
    for kept, since in ((1000, 0), (0, None)):
        monkeypatch.setattr("atta.kvstore.live.folder.KEPT_CHANGES", kept)
        for _ in range(5):
            version = live.random_update()
        done = follower.catch_up()
        assert (done.version, done.since) == (version, since)
        live.check(follower, layers, "embeddings")
