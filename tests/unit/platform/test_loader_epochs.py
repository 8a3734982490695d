"""Which epoch, and which batch of it, an iteration of a loader begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.tables.string_ids import StringIds
from atta.partition.schema import Schema, TableSpec
from atta.train.launching.epoch_batches import EpochBatches

E = "node__to__node"
SCHEMA = Schema(("node",), (E,), {"node": 16}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,))}})
BATCHES = 4


@dataclass
class Session(Iterator[Any]):
    """Numbers the batches of an epoch from ``first`` on."""

    epoch: int
    first: int
    batches, version, unlaunched, moving = BATCHES, 7, 1, False
    closed = False

    def __next__(self) -> Any:
        if self.first == BATCHES:
            raise StopIteration
        self.first += 1
        return SimpleNamespace(batch=self.epoch * BATCHES + self.first - 1, version=self.version, stats={}, arrays={})

    def close(self) -> None:
        self.closed = True


class Cluster:
    """Records where sessions begin; refuses them while it is ``full``."""

    schema, num_parts, dataset_id, ids, scratch = SCHEMA, 1, "d", StringIds(SCHEMA, []), None

    def __init__(self) -> None:
        self.full = False
        self.begun: list[tuple[int, int]] = []
        self.versions: list[int] = []
        self.sessions: list[Session] = []

    def stream(self, request: Any, *_: Any, **__: Any) -> Any:
        if self.full:
            raise atta.QuotaExceededError("no more sessions")
        self.begun.append((request.epoch, request.start_batch))
        self.versions.append(request.version)
        self.sessions.append(Session(*self.begun[-1]))
        return self.sessions[-1]


def loader(cluster: Any, **options: Any) -> atta.NeighborLoader:
    options = {"rank": 0, "world_size": 1, **options}
    return atta.NeighborLoader(cluster, [2], np.arange(2 * BATCHES * options["world_size"]), batch_size=2, **options)


@pytest.mark.parametrize("begin", [iter, lambda made: made.resume(5, 2)], ids=["iterated", "resumed"])
def test_an_iteration_that_cannot_be_opened_is_no_epoch(begin: Callable[[Any], Any]) -> None:
    cluster = Cluster()
    made = loader(cluster)
    cluster.full = True
    with pytest.raises(atta.QuotaExceededError):
        begin(made)
    cluster.full = False
    iter(made)
    iter(made)
    assert cluster.begun == [(0, 0), (1, 0)]


def test_the_length_of_an_iterator_is_what_it_yields() -> None:
    made = loader(Cluster())
    assert len(iter(made)) == BATCHES
    assert [len(made.resume(0, batch)) for batch in range(BATCHES + 1)] == [4, 3, 2, 1, 0]
    made.load_state_dict({**made.state_dict(), "epoch": 2, "batch": 3})
    assert len(iter(made)) == 1
    assert len(made) == BATCHES


def test_a_loaded_state_waits_until_an_iteration_can_be_opened() -> None:
    cluster = Cluster()
    made = loader(cluster)
    made.load_state_dict({**made.state_dict(), "epoch": 2, "batch": 3})
    cluster.full = True
    with pytest.raises(atta.QuotaExceededError):
        iter(made)
    assert (made.state_dict()["epoch"], made.state_dict()["batch"]) == (2, 3)
    cluster.full = False
    iter(made)
    iter(made)
    assert cluster.begun == [(2, 3), (3, 0)]


@dataclass
class Trainer:
    """Trains as Lightning does: asks for an iterator before it knows its epoch, and gives every rank rank 0's state."""

    epoch: int = 0
    trained: int = 0

    def batches(self, cluster: Any, **options: Any) -> EpochBatches:
        made = loader(cluster, transform=lambda batch: batch.batch_id, **options)
        return EpochBatches(made, lambda: (self.epoch, self.trained))

    def train(self, batches: Iterator[int], count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(next(batches))
            self.trained += 1
        return found


def test_batches_are_those_of_the_epoch_in_which_the_first_is_asked_for() -> None:
    cluster, trainer = Cluster(), Trainer()
    batches = trainer.batches(cluster)
    unused, early = iter(batches), iter(batches)
    trainer.epoch = 2  # what Lightning finds out after it has asked for iterators
    assert trainer.train(early, BATCHES) == [8, 9, 10, 11]
    del unused
    assert cluster.begun == [(2, 0)]


def test_an_epoch_that_ends_early_closes_its_session_and_counts_as_a_whole() -> None:
    cluster, trainer = Cluster(), Trainer()
    batches = trainer.batches(cluster)
    begun = iter(batches)
    trainer.train(begun, 2)
    del begun
    assert [session.closed for session in cluster.sessions] == [True]
    trainer.epoch, trainer.trained = 1, 0
    assert list(batches) == [4, 5, 6, 7]


@pytest.mark.parametrize("failed", [0, 1])
def test_every_rank_goes_on_after_the_last_batch_that_was_trained_on(failed: int) -> None:
    trainer = Trainer(epoch=1)
    batches = trainer.batches(Cluster(), rank=0, world_size=2)
    begun = iter(batches)
    assert trainer.train(begun, 2) == [4, 5]
    for _ in range(failed):
        next(begun)
    state = batches.state_dict()

    for rank in range(2):
        cluster, resumed = Cluster(), Trainer()
        again = resumed.batches(cluster, rank=rank, world_size=2)
        again.load_state_dict(state)
        early = iter(again)
        resumed.epoch, resumed.trained = 1, 2
        assert list(early) == [6, 7]
        resumed.epoch, resumed.trained = 2, 0
        assert list(again) == [8, 9, 10, 11]
        assert (cluster.begun, cluster.versions) == ([(1, 2), (2, 0)], [Session.version, 0])


def test_a_state_of_an_epoch_that_has_ended_skips_nothing() -> None:
    trainer = Trainer()
    batches = trainer.batches(Cluster())
    assert trainer.train(iter(batches), BATCHES) == [0, 1, 2, 3]
    ended = batches.state_dict()
    trainer.epoch, trainer.trained = 1, 0
    again = trainer.batches(Cluster())
    again.load_state_dict(ended)
    assert list(again) == [4, 5, 6, 7]
