"""Trainers that may start again: what they have told each other stays, and phases in which all are present repeat."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from atta.errors import AttaError
from atta.train.meeting import Meeting, Notes, StoreGroup

WORLD = 3


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def life(store: dist.Store, rank: int, number: int = 0) -> tuple[Meeting, StoreGroup]:
    """A trainer as it starts."""
    meeting = Meeting(Notes(store).below("meeting"), run="r", rank=rank, world=WORLD, life=number, folder=None)
    group = StoreGroup(Notes(store).below("world"), rank, WORLD, meeting)
    meeting.groups.append(group)
    return meeting, group


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """The results of actions that wait for each other."""
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


def test_an_error_in_a_phase_is_no_reason_to_repeat_it() -> None:
    store = dist.HashStore()
    meeting = Meeting(Notes(store), run="r", rank=0, world=1, life=0, folder=None)

    def action() -> None:
        raise AttaError("no")

    with pytest.raises(AttaError, match=r"^no$"):
        meeting.together("phase", action)


def test_what_a_former_life_has_done() -> None:
    store = dist.HashStore()
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
