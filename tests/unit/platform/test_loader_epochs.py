"""Which epoch, and which batch of it, an iteration of a loader begins with."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atta
from atta.client.tables.string_ids import StringIds
from atta.partition.schema import Schema, TableSpec

E = "node__to__node"
SCHEMA = Schema(("node",), (E,), {"node": 9}, {E: 9}, {"node": {"x": TableSpec("<f4", (2,))}})
BATCHES = 4


class Cluster:
    """Records where sessions begin; refuses them while it is ``full``."""

    schema, num_parts, dataset_id, ids, scratch = SCHEMA, 1, "d", StringIds(SCHEMA, []), None

    def __init__(self) -> None:
        self.full = False
        self.begun: list[tuple[int, int]] = []

    def stream(self, request: Any, *_: Any, **__: Any) -> Any:
        if self.full:
            raise atta.QuotaExceededError("no more sessions")
        self.begun.append((request.epoch, request.start_batch))
        return SimpleNamespace(batches=BATCHES, version=0)


def loader(cluster: Any) -> atta.NeighborLoader:
    return atta.NeighborLoader(cluster, [2], np.arange(2 * BATCHES), batch_size=2, rank=0, world_size=1)


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
