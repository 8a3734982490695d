"""Sockets between trainers and workers: who does not belong to the job is sent away, and a lost worker's task is done."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCN

from atta.errors import AttaError, ConfigError, DeadlineError, RemoteError, UnavailableError
from atta.train.steps.pipeline.decisions import hand_out
from atta.train.steps.pipeline.decisions.hand_out import HandOut
from atta.train.steps.pipeline.decisions.pool import PoolSize
from atta.train.steps.pipeline.decisions.stages import PipelineStage, Work
from atta.train.steps.pipeline.engine import Arrived, Broken, Computed, Happening
from atta.train.steps.pipeline.layers import computed
from atta.train.steps.pipeline.links import sockets
from atta.train.steps.pipeline.links.desk import TaskDesk
from atta.train.steps.pipeline.links.peers import PeerLinks
from atta.train.steps.pipeline.links.pool import ProcessPool
from atta.train.steps.pipeline.links.sockets import FrameSocket, call
from atta.train.steps.pipeline.links.worker import loss_of, loss_setting, work_for
from atta.train.steps.pipeline.split import forms_of
from tests.waiting import eventually

KEY = b"a key of thirty-two bytes, or so"
SETTING = loss_setting("classes", "mse", torch.tensor([1.0, 2.0, 0.5]))
FORMS = forms_of(GCN(5, 8, 2, 3).double())


class Desk:
    """A desk whose happenings lie in a queue."""

    def __init__(self, **options: Any) -> None:
        self.happenings: queue.SimpleQueue[Happening] = queue.SimpleQueue()
        self.hand_out = HandOut(**options)
        self.desk = TaskDesk("127.0.0.1", KEY, self.hand_out, self.happenings, setting=SETTING)

    def give(self, number: int) -> Work:
        work = Work(0, 1, number)
        self.desk.give(
            work, {"part": "loss", "layer": FORMS[1].to_dict(), "seed": 0, "epoch": 0, "divisor": 2}, arrays()
        )
        return work

    def next(self) -> Happening:
        return self.happenings.get(timeout=20)


@pytest.fixture
def desk() -> Iterator[Desk]:
    found = Desk()
    yield found
    found.desk.close()


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "sums": rng.normal(size=(4, 8)), "weights": rng.normal(size=FORMS[1].size), "keys": np.arange(4),
        "places": np.array([0, 3]), "targets": np.array([2, 1]),
    }  # fmt: skip


def worker(desk: Desk, number: int = 0) -> threading.Thread:
    def work() -> None:
        with suppress(AttaError):
            work_for(desk.desk.address, KEY, number)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_workers_compute_what_this_process_computes(desk: Desk) -> None:
    threads = [worker(desk, number) for number in range(2)]
    works = [desk.give(number) for number in range(6)]
    found = [desk.next() for _ in works]
    about = {"seed": 0, "epoch": 0, "divisor": 2}
    wanted = computed("loss", FORMS[1], about, arrays(), loss_of(SETTING))
    by_torch = torch.nn.functional.cross_entropy(
        torch.from_numpy(arrays()["sums"][[0, 3]]) @ FORMS[1].named(torch.from_numpy(arrays()["weights"]))["lin.weight"].T
        + FORMS[1].named(torch.from_numpy(arrays()["weights"]))["bias"],
        torch.tensor([2, 1]), weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64), reduction="sum",
    )  # fmt: skip
    np.testing.assert_allclose(wanted["loss"], [float(by_torch)])
    assert {one.work for one in found if isinstance(one, Computed)} == set(works)
    for one in found:
        assert isinstance(one, Computed)
        assert one.arrays.keys() == wanted.keys() == {"loss", "weights", "sums"}
        assert all(one.arrays[name].tobytes() == array.tobytes() for name, array in wanted.items())
    desk.desk.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_task_that_cannot_be_computed_ends_the_job(desk: Desk) -> None:
    worker(desk)
    about = {"part": "loss", "layer": FORMS[1].to_dict(), "seed": 0, "epoch": 0, "divisor": 2}
    desk.desk.give(Work(0, 1, 0), about, arrays() | {"sums": np.full((4, 8), np.inf)})
    found = desk.next()
    assert isinstance(found, Broken)
    with pytest.raises(ConfigError, match="sums has an infinity or NaN"):
        raise found.error


def test_the_task_of_a_worker_that_goes_away_is_done_by_another(desk: Desk) -> None:
    first = call(desk.desk.address, KEY, {"role": "worker", "number": 7})
    work = desk.give(0)
    about, _ = first.receive(10)
    assert about["work"] == list(work)
    assert desk.desk.connected == [7]
    first.close()
    worker(desk)
    found = desk.next()
    assert isinstance(found, Computed)
    assert (desk.hand_out.lost, desk.hand_out.relaunched) == (1, 1)


def test_a_slow_workers_task_is_done_by_another_and_its_own_result_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_out, "STUCK_S", 0.3)
    desk = Desk(timeout_s=0.05)
    slow = call(desk.desk.address, KEY, {"role": "worker", "number": 3})
    work = desk.give(0)
    slow.receive(10)
    worker(desk)
    assert eventually(lambda: not desk.desk.look() and desk.hand_out.relaunched > 0, 10)
    assert isinstance(desk.next(), Computed)
    assert eventually(lambda: desk.desk.look() == [3], 10), "it hangs"
    slow.send({"work": work})
    assert eventually(lambda: desk.hand_out.ignored == 1, 10)
    assert desk.happenings.empty()
    slow.close()
    desk.desk.close()


def test_strangers_are_sent_away_and_the_job_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteError):
        call(desk.desk.address, b"another key", {"role": "worker", "number": 0})
    with socket.create_connection(tuple(desk.desk.address.split(":"))) as rude:  # type: ignore[arg-type]
        rude.sendall(b"GET / HTTP/1.1\r\n" * 20)
    with monkeypatch.context() as patch:
        patch.setattr(sockets, "PROTOCOL", 0)
        with pytest.raises(
            ConfigError, match="speaks protocol 1, not 0; trainers and workers must be of the same version"
        ):
            call(desk.desk.address, KEY, {"role": "worker", "number": 0})
    nonsense = call(desk.desk.address, KEY, {"role": "worker", "number": 0})
    desk.give(0)
    nonsense.receive(10)
    nonsense.send({"work": [5, 5, 5]})
    with pytest.raises(RemoteError):
        nonsense.receive(10)
    worker(desk)
    assert isinstance(desk.next(), Computed)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", ":5", "127.0.0.1:99999", "127.0.0.1:0", "127.0.0.1:x"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        call(address, KEY, {})


def test_where_nobody_listens_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError):
        call(f"127.0.0.1:{port}", KEY, {})


def test_messages_have_deadlines_and_a_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ends = [FrameSocket(mine, "mine"), FrameSocket(theirs, "theirs")]
    with pytest.raises(DeadlineError, match=r"theirs: sent nothing for 0\.05 s"):
        ends[1].receive(0.05)
    mine.sendall((1 << 40).to_bytes(8, "little"))
    with pytest.raises(ConfigError, match="at most"):
        ends[1].receive(5)
    ends[0].close()
    with pytest.raises(RemoteError, match="closed the connection"):
        ends[1].receive(5)
    ends[1].close()


def test_rows_come_to_other_trainers_in_order(desk: Desk) -> None:
    sent: queue.SimpleQueue[Happening] = queue.SimpleQueue()
    links = PeerLinks({1: desk.desk.address}, KEY, 4, sent)
    for epoch in range(5):
        links.send(1, PipelineStage("scatter", 0), 2, epoch, np.full((2, 3), epoch, np.float32))
    for epoch in range(5):
        found = desk.next()
        assert isinstance(found, Arrived)
        assert (found.stage, found.producer, found.epoch) == (PipelineStage("scatter", 0), (4, 2), epoch)
        np.testing.assert_array_equal(found.rows, np.full((2, 3), epoch))
    links.close()
    found = desk.next()
    assert isinstance(found, Broken)
    assert "trainer 4: sends no rows any more" in str(found.error)
    assert sent.empty()


def test_workers_that_end_at_once_end_the_job(desk: Desk) -> None:
    def fails(address: str, key: bytes, number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])

    pool = ProcessPool(desk.desk, PoolSize(8, limit=2), KEY, desk.happenings, start=fails)
    until = time.monotonic() + 20
    while desk.happenings.empty() and time.monotonic() < until:
        pool.tick(0)
        time.sleep(0.01)
    found = desk.next()
    pool.close()
    assert isinstance(found, Broken)
    assert "5 workers in a row ended before they connected, the last with code 3" in str(found.error)
