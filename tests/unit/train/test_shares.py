"""The share of each trainer of a server and messages that carry it; memory and co-batches; subgraphs one ahead."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError, RemoteError
from atta.samplers.local.graph import LocalGraph
from atta.samplers.local.server import ServerGraph, server_subgraph
from atta.samplers.operators.server import Closure
from atta.train import TrainConfig
from atta.train.cooperative import CooperativeModel, Place, TrainerBatch
from atta.train.cooperative.memory import Size, estimate, fewest_batches
from atta.train.cooperative.shares import Handover, arrays_of, divide, header_of, room_for
from atta.train.cooperative.subgraphs import divide_targets, one_ahead
from atta.train.models import whole_model
from atta.train.tasks import TASKS
from tests.unit.train.graphs import batch_of, training_graph

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


def test_headers_that_are_not_of_a_share_are_refused(found: ServerGraph) -> None:
    right: list[Any] = json.loads(header_of(arrays_of(next(divide(found, 2)))))
    places = {name: i for i, (name, _, _) in enumerate(right)}
    assert arrays_of(room_for(json.dumps(right).encode(), "trainer 0")).keys() == places.keys()
    changes: list[tuple[str, list[Any]]] = [
        *(("own", ["own", dtype, [3]]) for dtype in ("|O", "<i4", "nonsense")),
        *(("own", ["own", "<i8", shape]) for shape in ([-1], [1.5], [True], [3, 3])),
        ("own", ["own", "<i8"]),
        ("own", ["other", "<i8", [3]]),
        ("features", ["features", "<i8", [3, 3]]),
        *(("labels", ["labels", dtype, shape]) for dtype, shape in (("<f4", [3]), ("<f8", [3, 2]), ("<i8", [3, 2]))),
        *(("split/val", [name, "<i8", [3]]) for name in ("val", "split/train")),
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


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(
        **{"data": "x", "strategy": "full", "model": "sage", "layers": 3, "hidden": 10, "device": "cpu", **settings}
    )


def test_the_documented_formula() -> None:
    size = Size(own=100, remote=20, edges=1000)
    # sage: 5 rows of 10 per own vertex and layer, each remote row once. The first layer reads 6 more channels twice.
    numbers = 100 * 16 + 3 * (100 * 5 + 20) * 10 + (100 + 20) * 6
    assert estimate(config(), size, 16, 50) == int(1.3 * (4 * numbers + 16 * 50 + 64 * 1000))
    on_gpu = numbers + 2 * 1000 * 16  # there the widest layer makes a row per edge
    assert estimate(config(device="cuda"), size, 16, 50) == int(1.3 * (4 * on_gpu + 16 * 50 + 64 * 1000))

    with pytest.raises(ConfigError, match=r"memory=1,024 KiB: with 8 co-batches, .* needs 31 MiB; take .*eas"):
        fewest_batches(lambda _: (30 << 20) + 1, 1 << 20, 8)
    size = Size(own=1000, remote=100, edges=20_000)  # recomputed layers keep their input only
    deep = config(model="resgcn+", layers=112)
    kept = estimate(deep, size, 10, 0)
    recomputed = estimate(config(model="resgcn+", layers=112, checkpoint_layers=True), size, 10, 0)
    assert recomputed < kept / 20
    per_layer = (estimate(deep, size, 10, 0) - estimate(config(model="resgcn+", layers=111), size, 10, 0)) / 1.3
    assert per_layer == pytest.approx(4 * ((1000 * 12 + 100) * 10 + 20_000 * 20), abs=2)


def kept_for_backward(settings: TrainConfig, batch: TrainerBatch) -> int:
    """Bytes that autograd keeps after forward, without weights."""
    torch.manual_seed(0)
    model = CooperativeModel(whole_model(settings, batch.x.shape[1], 4)).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        parts = [tensor] if tensor.layout is torch.strided else [tensor.values()]
        for part in parts:
            storage = part.untyped_storage()
            if storage.data_ptr() not in weights:
                held[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # otherwise another tensor could get its address
        return tensor

    alive: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        scores = model(batch.x, batch.graph)
    assert scores.requires_grad
    return sum(held.values())


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "resgcn+", "deepergcn"])
def test_the_estimate_is_of_the_size_of_what_autograd_keeps(model: str) -> None:
    n, edges = 400, np.random.default_rng(3).integers(0, 400, (2, 4000))
    rng = np.random.default_rng(4)
    features = rng.standard_normal((n, 40)).astype(np.float32)
    batch = batch_of(training_graph(edges, n, rng, features=features))
    settings = config(model=model, layers=6, hidden=32, heads=4)
    kept = kept_for_backward(settings, batch)
    assert kept <= estimate(settings, Size.of(batch.graph.view), 40, 0) <= 4 * kept


MODELS = ["sage", "gcn", "gat", "resgcn+", "deepergcn"]


@given(st.sampled_from(MODELS), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**8))
def test_more_of_anything_needs_more(model: str, own: int, remote: int, edges: int) -> None:
    settings = config(model=model, hidden=12)
    base = estimate(settings, Size(own, remote, edges), 16, 50)
    for more in (Size(own + 1, remote, edges), Size(own, remote + 1, edges), Size(own, remote, edges + 1)):
        assert estimate(settings, more, 16, 50) > base
    assert estimate(settings, Size(own, remote, edges), 17, 50) >= base


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 5000))
def test_the_fewest_that_fit_or_nearly(work: int, memory: int, most: int) -> None:
    def need(batches: int) -> int:
        return 1000 + -(-work // batches)

    if need(most) > memory:
        with pytest.raises(ConfigError, match=f"with {most} co-batches, the most there can be"):
            fewest_batches(need, memory, most)
        return
    found = fewest_batches(need, memory, most)
    fewest = next(r for r in range(1, most + 1) if need(r) <= memory)
    assert fewest <= found <= fewest * 1.125 + 1
    assert need(found) <= memory


def test_the_next_item_is_made_while_one_is_in_use_and_no_other() -> None:
    begun = [threading.Event() for _ in range(6)]
    threads = set()

    def items() -> Iterator[int]:
        for i, event in enumerate(begun):
            threads.add(threading.current_thread())
            event.set()
            yield i

    series = one_ahead(items())
    assert not begun[0].is_set()
    for i in series:
        if i + 1 < len(begun):
            assert begun[i + 1].wait(10)
        assert not any(event.is_set() for event in begun[i + 2 :])
    assert threading.main_thread() not in threads
    assert all(thread.daemon for thread in threads)
    for some in ([*range(20)], [], [None, None]):
        assert list(one_ahead(some)) == some


def test_an_error_comes_where_the_item_would_have() -> None:
    wrong = ConfigError("the third one")

    def items() -> Iterator[int]:
        yield from (0, 1)
        raise wrong

    series = one_ahead(items())
    assert [next(series), next(series)] == [0, 1]
    with pytest.raises(ConfigError) as caught:
        next(series)
    assert caught.value is wrong


def test_stopping_early_does_not_wait() -> None:
    go = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        go.wait(60)
        yield 1

    series = one_ahead(items())
    assert next(series) == 0
    series.close()  # type: ignore[attr-defined]
    running = [thread for thread in threading.enumerate() if thread.name == "atta-ahead"]
    assert [thread.daemon for thread in running] == [True]
    go.set()
    running[0].join(10)
    assert not running[0].is_alive()
