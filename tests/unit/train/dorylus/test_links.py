"""Streams between trainers and workers: who does not belong to the job is sent away, and a lost worker's task is done."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection, answer_challenge
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from torch_geometric.nn import GCN

from atta.errors import AttaError, ConfigError, RemoteError, UnavailableError
from atta.train.dorylus import hand_out, links, workers
from atta.train.dorylus.gathering import forms_of
from atta.train.dorylus.hand_out import HandOut, PoolSize
from atta.train.dorylus.links import Listener, PeerLinks, Stream, join, packed, unpacked
from atta.train.dorylus.progress import Computed, Happening, PipelineStage, Work
from atta.train.dorylus.worker import computed, loss_of, loss_setting, work_for
from atta.train.dorylus.workers import WorkerPool
from tests.waiting import eventually

KEY = b"a key of thirty-two bytes, or so"
SETTING = loss_setting("classes", "mse", torch.tensor([1.0, 2.0, 0.5]))
FORMS = forms_of(GCN(5, 8, 2, 3).double())


ABOUT = {"part": "loss", "layer": asdict(FORMS[1]), "seed": 0, "epoch": 0, "divisor": 2}


class Desk:
    """The pool of a trainer without processes; what happens lies in a queue."""

    def __init__(self, **options: Any) -> None:
        self.happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self.listener = Listener("127.0.0.1", KEY, SETTING)
        self.hand_out = HandOut(**options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WorkerPool, "_fill", lambda pool: None)
            self.pool = WorkerPool(self.listener, self.hand_out, PoolSize(8, limit=2), KEY, self.happenings)

    def give(self, number: int, **changed: np.ndarray) -> Work:
        work = Work(0, 1, number)
        self.pool.give(work, ABOUT, arrays() | changed)
        return work

    def next(self) -> Happening:
        return self.happenings.get(timeout=20)

    def call(self, key: bytes = KEY, **hello: Any) -> Stream:
        return join(self.listener.address, key, {"role": "worker", "number": 0} | hello)[0]

    def close(self) -> None:
        self.pool.close()
        self.listener.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    found = Desk()
    yield found
    found.close()


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "sums": rng.normal(size=(4, 8)), "weights": rng.normal(size=FORMS[1].size), "keys": np.arange(4),
        "places": np.array([0, 3]), "targets": np.array([2, 1]),
    }  # fmt: skip


def worker(desk: Desk, number: int = 0) -> threading.Thread:
    def work() -> None:
        with contextlib.suppress(AttaError):
            work_for(desk.listener.address, KEY, number)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_workers_compute_what_this_process_computes(desk: Desk) -> None:
    threads = [worker(desk, number) for number in range(2)]
    works = [desk.give(number) for number in range(6)]
    found = [desk.next() for _ in works]
    wanted = computed("loss", FORMS[1], ABOUT, arrays(), loss_of(SETTING))
    bias, weights = np.split(arrays()["weights"], [3])  # as a GCNConv has them
    by_torch = torch.nn.functional.cross_entropy(
        torch.from_numpy(arrays()["sums"][[0, 3]] @ weights.reshape(3, 8).T + bias),
        torch.tensor([2, 1]), weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), reduction="sum",
    )  # fmt: skip
    np.testing.assert_allclose(wanted["loss"], [float(by_torch)])
    assert {one.work for one in found if isinstance(one, Computed)} == set(works)
    for one in found:
        assert one.arrays.keys() == wanted.keys() == {"loss", "weights", "sums"}
        assert all(one.arrays[name].tobytes() == array.tobytes() for name, array in wanted.items())
    desk.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_task_that_cannot_be_computed_ends_the_job(desk: Desk) -> None:
    worker(desk)
    desk.give(0, sums=np.full((4, 8), np.inf))
    found = desk.next()
    with pytest.raises(ConfigError, match="sums has an infinity or NaN"):
        raise found.error


def test_the_task_of_a_worker_that_goes_away_is_done_by_another(desk: Desk) -> None:
    first = desk.call(number=7)
    work = desk.give(0)
    about, _ = first.receive()
    assert about["work"] == list(work)
    assert desk.pool.connected == [7]
    first.close()
    worker(desk)
    found = desk.next()
    assert isinstance(found, Computed)
    assert (desk.hand_out.lost, desk.hand_out.relaunched) == (1, 1)


def test_a_slow_workers_task_is_done_by_another_and_its_own_result_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_out, "STUCK_S", 0.3)
    monkeypatch.setattr(WorkerPool, "_fill", lambda pool: None)
    desk = Desk(timeout_s=0.05)
    hung = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    desk.pool._processes[3] = hung
    slow = desk.call(number=3)
    work = desk.give(0)
    assert slow.receive()[0]["work"] == list(work)
    worker(desk)

    def looked() -> bool:
        desk.pool.tick(0)
        return desk.hand_out.relaunched > 0

    assert eventually(looked, 10)
    assert isinstance(desk.next(), Computed)
    assert eventually(lambda: looked() and hung.poll() is not None, 10), "it hangs, so it is killed"
    slow.send({"work": work})
    assert eventually(lambda: desk.hand_out.ignored == 1, 10)
    assert desk.happenings.empty()
    slow.close()
    desk.close()


def test_strangers_are_sent_away_and_the_job_goes_on(desk: Desk) -> None:
    with pytest.raises(RemoteError, match="does not know the key of this job"):
        desk.call(b"another key")
    with socket.create_connection(desk.listener.address.split(":")) as connected:  # type: ignore[arg-type]
        stranger = Stream(connected, "listener")
        with Connection(os.dup(connected.fileno())) as proving:
            answer_challenge(proving, KEY)  # but it cannot judge the other end
        with pytest.raises(RemoteError, match="does not know the key"):
            stranger.meet(b"another key", calls=False)
    with socket.create_connection(tuple(desk.listener.address.split(":"))) as rude:  # type: ignore[arg-type]
        rude.sendall(b"GET / HTTP/1.1\r\n" * 20)
    with pytest.raises(ConfigError, match="speaks protocol 2, not 1; trainers and workers must be of the same version"):
        desk.call(protocol=1)
    nonsense = desk.call()
    desk.give(0)
    nonsense.receive()
    nonsense.send({"work": [5, 5, 5]})
    with pytest.raises(RemoteError):
        nonsense.receive()
    worker(desk)
    assert isinstance(desk.next(), Computed)


def test_where_nobody_listens_or_answers_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("nowhere", ":5", *(f"127.0.0.1:{port}" for port in ("", "99999", "0", "x"))):
        with pytest.raises(ConfigError, match="is no address"):
            join(address, KEY, {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(links, "MEETING_S", 0.2)
        with pytest.raises(RemoteError):
            join(f"127.0.0.1:{port}", KEY, {})
    monkeypatch.undo()
    with pytest.raises(UnavailableError):
        join(f"127.0.0.1:{port}", KEY, {})


@pytest.fixture
def trainers(desk: Desk) -> Iterator[tuple[PeerLinks, PeerLinks, queue.SimpleQueue[Happening]]]:
    sent: queue.SimpleQueue[Happening] = queue.SimpleQueue()
    other = Listener("127.0.0.1", KEY, SETTING)
    reads, peers = PeerLinks(desk.listener, KEY, 1, desk.happenings), PeerLinks(other, KEY, 4, sent)
    peers.connect({1: desk.listener.address})
    yield reads, peers, sent
    other.close()


def test_rows_come_to_other_trainers_in_order(desk: Desk, trainers: Any) -> None:
    _, peers, sent = trainers
    for epoch in range(5):
        peers.send(1, PipelineStage("scatter", 0), 2, epoch, np.full((2, 3), epoch, np.float32))
    for epoch in range(5):
        found = desk.next()
        assert (found.stage, found.producer, found.epoch) == (PipelineStage("scatter", 0), (4, 2), epoch)
        np.testing.assert_array_equal(found.rows, np.full((2, 3), epoch))
    peers.close()
    found = desk.next()
    assert "trainer 4: sends no rows any more" in str(found.error)
    assert sent.empty()


def test_a_trainer_that_goes_away_is_missed_by_those_who_send_to_it(desk: Desk, trainers: Any) -> None:
    reads, peers, sent = trainers
    reads.close()
    desk.close()

    def lost() -> bool:
        peers.send(1, PipelineStage("scatter", 0), 2, 0, np.ones((2, 3), np.float32))
        return not sent.empty()

    assert eventually(lost, 20)
    found = sent.get()
    assert "trainer 1: reads no rows any more" in str(found.error)
    peers.close()


def test_workers_that_end_at_once_end_the_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(address: str, key: bytes, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])

    monkeypatch.setattr(workers, "start_worker", fails)
    pool = WorkerPool(desk.listener, desk.hand_out, PoolSize(8, limit=2), KEY, desk.happenings)
    until = time.monotonic() + 20
    while desk.happenings.empty() and time.monotonic() < until:
        pool.tick(0)
        time.sleep(0.01)
    found = desk.next()
    pool.close()
    assert "5 workers in a row ended before they connected, the last with code 3" in str(found.error)


MESSAGE = {"sums": np.arange(6.0).reshape(2, 3), "rows": np.ones((0, 4), np.float32), "keys": np.array([-1, 1 << 40])}


def test_messages_hold_what_was_packed_and_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    about, found = unpacked(packed(ABOUT, MESSAGE))
    assert about == unpacked(packed(about, {}))[0]
    assert about["part"] == "loss"
    assert found.keys() == MESSAGE.keys()
    for name, array in MESSAGE.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    monkeypatch.setattr(links, "MOST_BYTES", (1 << 20) + 8)
    with pytest.raises(ConfigError, match="too large for a message; take more intervals"):
        packed(ABOUT, MESSAGE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = Stream(socket.create_connection(listener.getsockname()), "mine")
        theirs = Stream(listener.accept()[0], "theirs")
    monkeypatch.setattr(links, "MOST_BYTES", 10)
    mine.send_packed(b"12345678901")
    with pytest.raises(ConfigError, match="a message of 11 bytes; at most 10 are possible"):
        theirs.receive()
    mine.close()
    theirs.close()


@settings(max_examples=200)
@given(st.data())
def test_damaged_messages_are_refused_or_read_as_arrays(data: st.DataObject) -> None:
    raw = bytearray(packed(ABOUT, MESSAGE))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ConfigError):  # any other error is a mistake
        about, found = unpacked(cut)
        assert isinstance(about, dict)
        assert sum(array.nbytes for array in found.values()) <= len(cut)


def test_descriptions_that_are_none_are_refused() -> None:
    for text in (b"[]", b"{", b"\xff", b"[" * 100_000):
        for raw in (save({"about": np.frombuffer(text, np.uint8)}), save({"more": np.ones(2)}), b"", text):
            with pytest.raises(ConfigError, match="cannot be read"):
                unpacked(raw)
