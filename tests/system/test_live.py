"""New versions of tables on real daemons: what sessions see, what a killed daemon serves, and memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import atta
from atta.cli.main import cli
from atta.client.tables.versions import publish
from atta.errors import AttaError, UnknownNameError
from atta.kvstore.live import book
from atta.kvstore.live.folder import VersionFolder
from atta.kvstore.live.writing import NewRows, write_version
from atta.partition.dataset import Dataset
from tests.addresses import held_addresses
from tests.system.conftest import SmallGraph
from tests.system.running import Running


class Live:
    """Two daemons of one dataset, which can be killed and started again."""

    def __init__(self, graph: SmallGraph, folder: Path) -> None:
        self.graph, self.data, self.running = graph, folder / "data", Running()
        shutil.copytree(graph.dataset(2, "random"), self.data)
        self.peers = dict(enumerate(held_addresses(2)))
        for part in range(2):
            self.start(part)
        self.cluster = atta.connect([*self.peers.values()], deadline_s=20)
        self.order = np.argsort(graph.ids)
        self.ranks = np.argsort(self.order)

    def start(self, part: int) -> None:
        options: dict[str, Any] = {"cache_bytes": 1 << 20, "cache_fill": 0, "buffer_bytes": 64 << 20}
        setattr(self, f"daemon{part}", self.running.start(self.data, part, self.peers[part], self.peers, **options))

    def held(self, part: int) -> float:
        """Bytes of later versions that a daemon holds."""
        return float(getattr(self, f"daemon{part}")._stats()["tables_version_bytes"])

    def publish(self, x: np.ndarray, **more: Any) -> int:
        path = self.data.parent / "x.npy"
        np.save(path, x[self.order])
        return publish(self.data, "x", path, self.peers, **more).number

    def loader(self, **more: Any) -> atta.NeighborLoader:
        return atta.NeighborLoader(self.cluster, [4, 4], input_nodes="train", batch_size=20, job="live", **more)

    def rows(self, batch: Any, x: np.ndarray) -> bool:
        """Whether a batch has the rows of ``x``."""
        data = batch.to_pyg()
        at = self.order[np.searchsorted(self.graph.ids[self.order], data.n_id.numpy())]
        return bool(np.array_equal(data.x.numpy(), x[at])) and bool(np.array_equal(data.y.numpy(), self.graph.y[at]))

    def close(self) -> None:
        self.cluster.close()
        self.running.kill_all()


@pytest.fixture
def live(small_graph: SmallGraph, tmp_path: Path) -> Iterator[Live]:
    found = Live(small_graph, tmp_path)
    yield found
    found.close()


def test_a_session_reads_one_version_and_later_ones_the_next(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "IDLE_S", 0.0)
    old, first, second = live.graph.x, live.graph.x + 1, live.graph.x * 3
    reading = iter(live.loader(shuffle=True))
    assert live.rows(next(reading), old)
    assert live.publish(first) == 1
    between = iter(live.loader(shuffle=True))
    batch = next(between)
    assert (batch.version, live.rows(batch, first)) == (1, True)
    assert live.publish(second) == 2
    one = live.held(0)
    for loader, version, x in ((reading, 0, old), (between, 1, first), (iter(live.loader()), 2, second)):
        for batch in loader:
            assert batch.version == version
            assert live.rows(batch, x)
    live.cluster.stats()  # the sessions' ends have come before it
    live.running.run(live.daemon0.graph.versions._look())
    assert live.held(0) == one / 2, "the rows of version 1 are let go of"
    assert sum(s.get("remote_rows", 0) for s in live.cluster.stats()) > 0, "rows came from both daemons"


def test_a_cursor_names_its_version(live: Live) -> None:
    loader = live.loader()
    reading = iter(loader)
    next(reading)
    state = loader.state_dict()
    assert state["tables_version"] == 0
    live.publish(live.graph.x + 1)
    again = live.loader()
    again.load_state_dict(state)
    rest = [*again]
    assert len(rest) == len(loader) - 1
    assert all(batch.version == 0 and live.rows(batch, live.graph.x) for batch in rest)
    assert all(batch.version == 1 for batch in again), "the next epoch has the newest"
    gone = live.loader()
    gone.load_state_dict({**state, "tables_version": 7})
    with pytest.raises(UnknownNameError, match=r"unknown version of the dataset '7'; .*0"):
        iter(gone)


def test_a_daemon_killed_between_prepare_and_commit(live: Live) -> None:
    dataset = Dataset.open(live.data)
    folder, new = VersionFolder(live.data, dataset.dataset_id), live.graph.x - 4
    with folder.updating():
        version = write_version(folder, dataset, ("node", "x"), NewRows(new[live.order], None))
    for part in range(2):
        live.running.run(getattr(live, f"daemon{part}").graph.versions.prepare(version.number, version.id))
    live.running.kill(live.peers[1])
    live.start(1)
    assert all(batch.version == 0 and live.rows(batch, live.graph.x) for batch in live.loader())
    live.running.kill(live.peers[1])
    with pytest.raises(AttaError, match="part 1 at"):
        live.publish(new)
    assert folder.committed() == {}
    folder.commit(version.number)  # whoever publishes dies here: nobody is told
    live.start(1)
    live.running.run(live.daemon0.graph.versions._look())
    assert all(batch.version == 1 and live.rows(batch, new) for batch in live.loader())


def test_a_daemon_that_was_not_told_answers_its_peers(live: Live) -> None:
    dataset, new = Dataset.open(live.data), live.graph.x + 9
    folder = VersionFolder(live.data, dataset.dataset_id)
    with folder.updating():
        folder.commit(write_version(folder, dataset, ("node", "x"), NewRows(new[live.order], None)).number)
    live.running.run(live.daemon0.graph.versions._look())
    batches = [*live.loader(home=0)]
    assert all(batch.version == 1 and live.rows(batch, new) for batch in batches)


def test_unread_versions_leave_the_disk(live: Live) -> None:
    reading = iter(live.loader())
    live.publish(live.graph.x + 1)
    held = iter(live.loader())
    first = next(held)
    for step in range(2, 5):
        live.publish(live.graph.x + step, keep=1)
    assert sorted(p.name for p in (live.data.parent / "data.versions").iterdir() if p.is_dir()) == ["0001", "0004"]
    assert live.rows(first, live.graph.x + 1)
    assert all(batch.version == 1 and live.rows(batch, live.graph.x + 1) for batch in held)
    assert all(batch.version == 0 for batch in reading)


def test_the_command(live: Live, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", live.graph.x[live.order] + 1)
    words = ["update", "features", "--cluster", ",".join(live.peers.values()), "--data", str(live.data)]
    told = CliRunner().invoke(cli, [*words, "--table", "x", "--from", str(tmp_path / "x.npy"), "--json", "-"])
    assert told.exit_code == 0, told.output
    assert '"version": 1' in told.stdout
    assert all(batch.version == 1 for batch in live.loader())


class History(RuleBasedStateMachine):
    """Publish, open, read and close on real daemons against plain arrays."""

    live: Live

    @initialize()
    def begin(self) -> None:
        self.live.cluster.stats()
        newest = self.live.daemon0.graph.versions.book.newest
        self.truth = {newest: self.live.graph.x + newest}
        self.sessions: list[tuple[Any, int]] = []

    @rule()
    def publish(self) -> None:
        number = max(self.truth) + 1
        assert self.live.publish(self.live.graph.x + number) == number
        self.truth[number] = self.live.graph.x + number

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(home=st.integers(0, 1))
    def open(self, home: int) -> None:
        self.sessions.append((iter(self.live.loader(home=home, shuffle=True)), max(self.truth)))

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, 3), ends=st.booleans())
    def read(self, at: int, *, ends: bool) -> None:
        reading, version = self.sessions[at % len(self.sessions)]
        batch = next(reading, None)
        if batch is not None:
            assert batch.version == version
            assert self.live.rows(batch, self.truth[version])
        if ends or batch is None:
            reading.close()
            self.sessions.pop(at % len(self.sessions))

    def teardown(self) -> None:
        for reading, _ in getattr(self, "sessions", []):
            reading.close()


def test_histories(live: Live) -> None:
    machine = type("OfDaemons", (History,), {"live": live})
    run_state_machine_as_test(machine, settings=settings(max_examples=4, stateful_step_count=10, deadline=None))
    live.cluster.stats()
    assert live.daemon0.graph.versions.book.in_use() == []
