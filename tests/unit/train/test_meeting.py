"""Trainers that may start again: what they told each other stays, phases repeat, copies of weights outlive them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from atta.errors import AttaError
from atta.train.exchange import asynchronous
from atta.train.exchange.asynchronous import Copies
from atta.train.launching.nodes import MeetingPlace, Nodes
from atta.train.meeting import Meeting, Notes, StoreGroup
from tests.addresses import held_addresses

WORLD = 3


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def life(store: dist.Store, rank: int, number: int = 0) -> tuple[Meeting, StoreGroup]:
    meeting = Meeting(Notes(store).below("meeting"), run="r", rank=rank, world=WORLD, life=number, folder=None)
    group = StoreGroup(Notes(store).below("world"), rank, WORLD, meeting)
    meeting.groups.append(group)
    return meeting, group


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(actions)) as pool:
        return [future.result(60) for future in [pool.submit(action) for action in actions]]


def told(group: StoreGroup, rank: int, seed: int) -> list[np.ndarray]:
    """What a trainer hears in a few operations; ``seed``: of what it says itself."""
    rng = np.random.default_rng(seed)
    total, most = torch.from_numpy(rng.normal(size=5)), torch.from_numpy(rng.integers(0, 99, (2, 3)))
    word, room = torch.from_numpy(rng.random(4)), torch.empty(3, dtype=torch.int64)
    group.allreduce([total]).wait()
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([most], options).wait()
    root = dist.BroadcastOptions()
    root.rootRank = 1
    group.broadcast([word], root).wait()
    arrival = group.recv([room], (rank - 1) % WORLD)
    group.send([torch.full((3,), rank)], (rank + 1) % WORLD).wait()
    arrival.wait()
    group.barrier().wait()
    return [total.numpy(), most.numpy(), word.numpy(), room.numpy()]


def test_operations_give_what_numpy_gives_and_a_new_life_hears_the_same_alone() -> None:
    store = dist.HashStore()
    groups = [life(store, rank)[1] for rank in range(WORLD)]
    heard = at_once(*(lambda rank=rank: told(groups[rank], rank, rank) for rank in range(WORLD)))
    rngs = [np.random.default_rng(rank) for rank in range(WORLD)]
    normals, numbers = [rng.normal(size=5) for rng in rngs], [rng.integers(0, 99, (2, 3)) for rng in rngs]
    words = [rng.random(4) for rng in rngs]
    for rank, (total, most, word, room) in enumerate(heard):
        np.testing.assert_allclose(total, np.sum(normals, axis=0), rtol=1e-12)
        np.testing.assert_array_equal(most, np.max(numbers, axis=0))
        np.testing.assert_array_equal(word, words[1])
        np.testing.assert_array_equal(room, np.full(3, (rank - 1) % WORLD))
    # It says something else this time, as one with other random numbers would: the first life counts.
    again = told(life(store, 1, 1)[1], 1, seed=7)
    for first, second in zip(heard[1], again, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_phase_is_repeated_until_all_have_done_it_and_a_new_life_gets_its_result() -> None:
    store = dist.HashStore()
    dies, dead = threading.Event(), []

    def phase(rank: int, number: int) -> Callable[[], tuple[Any, bool]]:
        meeting, group = life(store, rank, number)

        def action() -> dict[str, float]:
            if rank == 1 and not dies.is_set():
                dies.set()
                raise SystemExit  # its connections end
            total = torch.tensor([rank + 1.0])
            group.allreduce([total]).wait()
            return {"total": float(total)}

        return lambda: meeting.together("phase", action)

    def started_again() -> tuple[Any, bool]:
        try:
            return phase(1, 0)()
        except SystemExit:
            dead.append(1)
        return phase(1, 1)()

    assert at_once(phase(0, 0), started_again, phase(2, 0)) == [({"total": 6.0}, True)] * WORLD
    assert dead == [1]
    assert phase(2, 1)() == ({"total": 6.0}, False), "nobody else is needed"


def test_an_error_in_a_phase_is_no_reason_to_repeat_it_and_what_a_former_life_has_done() -> None:
    store = dist.HashStore()

    def action() -> None:
        raise AttaError("no")

    with pytest.raises(AttaError, match=r"^no$"):
        Meeting(Notes(store), run="r", rank=0, world=1, life=0, folder=None).together("phase", action)
    meeting, _ = life(store, 0)
    assert not meeting.did("train")
    meeting.done("train")
    assert life(store, 0, 1)[0].did("train")
    assert not life(store, 1)[0].did("train")


def test_notes_stay_and_have_bounds(tmp_path: Path, rng: np.random.Generator) -> None:
    notes = Notes(dist.FileStore(str(tmp_path / "store"), 1), "a/")
    large = rng.bytes(9 << 20)  # more than torch's store takes at once
    notes.put("large", large)
    notes.put("large", b"other")
    assert notes.get("large", most=len(large)) == large
    with pytest.raises(AttaError, match="more than 100 bytes"):
        notes.get("large", most=100)
    with pytest.raises(AttaError, match=r"within 0\.01 s: a/missing is missing"):
        notes.get("missing", most=1, within_s=0.01)
    notes.below("b").put("empty", json.dumps(None).encode())
    assert notes.has("b/empty", "large")
    assert not notes.has("b/empty", "missing")


def alone(folder: Path | None) -> Meeting:
    return Meeting(None, run="r", rank=0, world=1, life=0, folder=folder)


def weights(version: int) -> np.ndarray:
    return np.full(3, version, np.float32)


def seen(copies: Copies) -> list[tuple[int, float]]:
    return [(copy.version, float(copy.values[0])) for copy in copies.made]


@pytest.mark.parametrize("on_disk", [True, False])
def test_there_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    monkeypatch.setattr(asynchronous, "MOST_SAVED", 12)
    copies = Copies(1e-9, alone(tmp_path if on_disk else None))
    for version in range(24):
        copies.keep(version, weights(version))
    copies.keep(10**6, weights(10**6), last=True)
    assert 6 <= len(copies.made) <= 12
    assert [version for version, _ in seen(copies)] == sorted(version for version, _ in seen(copies))
    assert seen(copies)[-1] == (10**6, 1e6)
    if on_disk:
        assert seen(Copies(1.0, alone(tmp_path))) == seen(copies)
    copies = Copies(3600.0, alone(None))  # a copy is made when it is time
    copies.keep(1, weights(1))
    assert not copies.made
    copies.keep(2, weights(2), last=True)
    assert seen(copies) == [(2, 2.0)]


def test_time_goes_on_whatever_the_clock_on_the_wall_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, wall = 1000.0, 5e9
    monkeypatch.setattr(time, "time", lambda: wall)
    first = Copies(1.0, alone(tmp_path), clock=lambda: now)
    now, wall = 1002.0, 1.0  # set back
    first.keep(1, weights(1))
    again = Copies(1.0, alone(tmp_path), clock=lambda: now)
    now, wall = 1004.5, 9e9  # set forward
    again.keep(2, weights(2))
    again.keep(2, weights(2), last=True)
    assert [copy.seconds for copy in again.made] == [2.0, 4.5], "a version is kept once"
    now = 10.0  # the machine was started anew
    last = Copies(1.0, alone(tmp_path), clock=lambda: now)
    now = 13.0
    last.keep(3, weights(3))
    assert seen(last) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [copy.seconds for copy in last.made] == [2.0, 4.5, 7.5]
    assert [copy.seconds for copy in Copies(1.0, alone(tmp_path), clock=lambda: now).made] == [2.0, 4.5, 7.5]


WAIT_S = 20.0


def test_machines_know_the_restarts_of_all_ranks_and_that_one_has_failed() -> None:
    (endpoint,) = held_addresses(1)
    first, second = at_once(*(partial(MeetingPlace, Nodes(2, rank, endpoint), WAIT_S) for rank in range(2)))
    assert first.run == second.run
    second.fail()
    with pytest.raises(AttaError, match=r"^node 0 of 2 at .*: node 1 has failed: the cause is reported there$"):
        first.look()
    second.look()
    ends = partial(first.all_ended, {0: 0, 1: 2}, WAIT_S), partial(second.all_ended, {2: 1, 3: 0}, WAIT_S)
    assert at_once(*ends) == [[0, 2, 1, 0]] * 2


def test_a_single_machine_is_reached_on_loopback_and_nobody_waits_for_ever_for_the_first_one() -> None:
    place = MeetingPlace(Nodes(), WAIT_S)
    assert place.address.startswith("127.0.0.1:")
    assert place.all_ended({1: 3, 0: 0}, WAIT_S) == [0, 3]
    assert place.run != MeetingPlace(Nodes(), WAIT_S).run
    (endpoint,) = held_addresses(1)
    with pytest.raises(AttaError, match=r"^node 1 of 2 at .*: the others did not come or went away"):
        MeetingPlace(Nodes(2, 1, endpoint), 1.0)
