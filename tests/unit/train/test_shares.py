"""The share of each trainer of a server, and messages that carry it unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from atta.errors import RemoteError
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import ServerGraph, server_subgraph
from atta.samplers.operators.server import Closure
from atta.train.cooperative import Place
from atta.train.cooperative.shares import Handover, arrays_of, divide, header_of, room_for
from atta.train.cooperative.subgraphs import divide_targets
from atta.train.tasks import TASKS

VERTICES = 60


@pytest.fixture
def found(rng: np.random.Generator) -> ServerGraph:
    source, target = rng.integers(0, VERTICES, (2, 200))
    graph = LocalGraph.from_edges(source, target, VERTICES)
    extracted = server_subgraph(graph, np.arange(30), Closure(1))
    split = rng.integers(0, 3, extracted.num_nodes)
    return replace(
        extracted,
        tables={
            "x": rng.standard_normal((extracted.num_nodes, 3)),
            "y": rng.integers(0, 4, extracted.num_nodes).astype(np.int32),
        },
        splits={name: split == i for i, name in enumerate(("train", "val", "test"))},
    )


def test_every_inner_vertex_of_a_split_is_in_one_share(found: ServerGraph) -> None:
    shares = list(divide(found, 3))
    for name, mask in found.splits.items():
        owned = np.concatenate([share.global_ids[share.splits[name]] for share in shares])
        assert np.array_equal(np.sort(owned), np.sort(found.n_id[mask & found.inner]))
    assert all(np.array_equal(share.splits["train"], share.targets) for share in shares)
    assert {share.features.dtype for share in shares} == {np.dtype(np.float32)}


@pytest.mark.parametrize("task", ["classes", "labels", "regression"])
def test_messages_carry_shares_unchanged(found: ServerGraph, task: str) -> None:
    if TASKS[task].rows:
        rows = np.arange(2.0 * found.num_nodes).reshape(-1, 2)
        found = replace(found, tables={**found.tables, "y": rows})
    for share in divide(found, 2, task=TASKS[task]):
        if TASKS[task].rows:
            numbers = np.searchsorted(found.n_id, share.global_ids[: len(share.own)], sorter=np.argsort(found.n_id))
            own = np.argsort(found.n_id)[numbers]
            assert np.array_equal(share.labels, rows[own].astype(np.float32))
        sent = arrays_of(share)
        received = arrays_of(room_for(header_of(sent), "trainer 0"))
        assert received.keys() == sent.keys()
        for name, array in sent.items():  # the bytes that are sent, array by array
            received[name].reshape(-1).view(np.uint8)[:] = np.frombuffer(array.tobytes(), np.uint8)
            assert np.array_equal(array, received[name])
            assert array.dtype == received[name].dtype


def entries(found: ServerGraph) -> list[Any]:
    parsed: list[Any] = json.loads(header_of(arrays_of(next(divide(found, 2)))))
    return parsed


def test_headers_that_are_not_of_a_share_are_refused(found: ServerGraph) -> None:
    right = entries(found)
    places = {name: i for i, (name, _, _) in enumerate(right)}
    assert arrays_of(room_for(json.dumps(right).encode(), "trainer 0")).keys() == places.keys()
    changes: list[tuple[str, list[Any]]] = [
        ("own", ["own", "|O", [3]]),
        ("own", ["own", "<i4", [3]]),
        ("own", ["own", "nonsense", [3]]),
        ("own", ["own", "<i8", [-1]]),
        ("own", ["own", "<i8", [1.5]]),
        ("own", ["own", "<i8", [True]]),
        ("own", ["own", "<i8", [3, 3]]),
        ("own", ["own", "<i8"]),
        ("own", ["other", "<i8", [3]]),
        ("features", ["features", "<i8", [3, 3]]),
        ("labels", ["labels", "<f4", [3]]),
        ("labels", ["labels", "<f8", [3, 2]]),
        ("labels", ["labels", "<i8", [3, 2]]),
        ("split/val", ["val", "<i8", [3]]),
        ("split/val", ["split/train", "<i8", [3]]),
    ]
    wrong = [[*right[: places[name]], entry, *right[places[name] + 1 :]] for name, entry in changes]
    texts = [json.dumps(header).encode() for header in (*wrong, right[1:], {}, 7, None, [[]])]
    for text in (*texts, b"", b"\xff", json.dumps(right).encode()[:-1]):
        with pytest.raises(RemoteError, match="trainer 4: sent something that is no share"):
            room_for(text, "trainer 4")


@pytest.mark.parametrize("length", [0, -1, 1 << 40])
def test_headers_of_absurd_length_are_refused(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    def receive(into: torch.Tensor, source: int, group: object) -> None:
        assert (into.numel(), source, group) == (8, 2, None)  # a length with nothing after it
        into.copy_(torch.tensor([length]).view(torch.uint8))

    monkeypatch.setattr(torch.distributed, "recv", receive)
    groups: Any = SimpleNamespace(place=Place(3, 4, 2), handover=None)
    with pytest.raises(RemoteError, match="trainer 2: sent something that is no share"):
        Handover(groups).take()


def test_targets_are_divided_evenly_and_the_same_way_each_time() -> None:
    targets = np.arange(100, 203)
    groups = divide_targets(targets, 4, seed=3, epoch=5)
    assert [len(g) for g in groups] == [26, 26, 26, 25]
    assert np.array_equal(np.sort(np.concatenate(groups)), targets)
    assert all((np.diff(g) > 0).all() for g in groups)
    assert all(np.array_equal(a, b) for a, b in zip(groups, divide_targets(targets, 4, seed=3, epoch=5), strict=True))
    assert not np.array_equal(groups[0], divide_targets(targets, 4, seed=3, epoch=6)[0])
    assert not np.array_equal(groups[0], divide_targets(targets, 4, seed=4, epoch=5)[0])
