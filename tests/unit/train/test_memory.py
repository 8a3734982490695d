"""The arithmetic of how many co-batches fit into memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta.errors import ConfigError
from atta.train import TrainConfig
from atta.train.cooperative import CooperativeModel, TrainerBatch
from atta.train.cooperative.memory import Size, estimate, fewest_batches
from atta.train.models import whole_model
from tests.unit.train.graphs import batch_of, training_graph


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"data": "x", "strategy": "full", "layers": 3, "hidden": 10, "device": "cpu", **settings})


def test_the_documented_formula() -> None:
    size = Size(own=100, remote=20, edges=1000)
    # sage: 5 rows of 10 per own vertex and layer, each remote row once. The first layer reads 6 more channels twice.
    numbers = 100 * 16 + 3 * (100 * 5 + 20) * 10 + (100 + 20) * 6
    assert estimate(config(), size, 16, 50) == int(1.3 * (4 * numbers + 16 * 50 + 64 * 1000))
    on_gpu = numbers + 2 * 1000 * 16  # there the widest layer makes a row per edge
    assert estimate(config(device="cuda"), size, 16, 50) == int(1.3 * (4 * on_gpu + 16 * 50 + 64 * 1000))


def test_recomputed_layers_keep_their_input_only() -> None:
    size = Size(own=1000, remote=100, edges=20_000)
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


@given(
    st.sampled_from(["sage", "gcn", "gat", "resgcn+", "deepergcn"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**8),
)
def test_more_of_anything_needs_more(model: str, own: int, remote: int, edges: int) -> None:
    settings = config(model=model, hidden=12)
    base = estimate(settings, Size(own, remote, edges), 16, 50)
    assert estimate(settings, Size(own + 1, remote, edges), 16, 50) > base
    assert estimate(settings, Size(own, remote + 1, edges), 16, 50) > base
    assert estimate(settings, Size(own, remote, edges + 1), 16, 50) > base
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


def test_what_would_do_is_named() -> None:
    with pytest.raises(ConfigError, match=r"memory=1,024 KiB: with 8 co-batches, .* needs 31 MiB; take .*eas"):
        fewest_batches(lambda _: (30 << 20) + 1, 1 << 20, 8)
