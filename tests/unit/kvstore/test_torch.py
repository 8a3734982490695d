"""Optimisers and bfloat16 against torch itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atta import _native
from atta.client.tables.embedding import _distinct
from atta.kvstore import codecs
from atta.kvstore.mutable.table import MutableTable, apply_step, initial_state
from atta.kvstore.spec import MutableSpec, OptimiserSpec

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS, DIM, STEPS = 40, 12, 60


def optimisers() -> list[tuple[OptimiserSpec, Any]]:
    return [
        (OptimiserSpec.sgd(0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (OptimiserSpec.adagrad(), lambda p: torch.optim.Adagrad(p)),
        (
            OptimiserSpec.adagrad(0.1, lr_decay=0.02, eps=1e-6, initial_accumulator_value=0.3),
            lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.02, eps=1e-6, initial_accumulator_value=0.3),
        ),
        (OptimiserSpec.adam(), lambda p: torch.optim.SparseAdam(p)),
        (
            OptimiserSpec.adam(0.05, betas=(0.7, 0.9), eps=1e-5),
            lambda p: torch.optim.SparseAdam(p, lr=0.05, betas=(0.7, 0.9), eps=1e-5),
        ),
    ]


def table_of(spec: OptimiserSpec, rng: np.random.Generator, dim: int = DIM) -> tuple[MutableTable, np.ndarray]:
    table = MutableTable(MutableSpec("emb", ROWS, row_shape=(dim,), optimiser=spec))
    table.register(1)
    begin = rng.standard_normal((ROWS, dim)).astype(np.float32)
    table.push(np.arange(ROWS), begin, "write", client=1, sequence=0)
    return table, begin


@pytest.mark.parametrize("dim", [DIM, 1])
@pytest.mark.parametrize(("spec", "make"), optimisers(), ids=["sgd", "adagrad", "adagrad2", "adam", "adam2"])
def test_a_table_learns_as_sparse_embeddings(
    spec: OptimiserSpec, make: Any, dim: int, rng: np.random.Generator
) -> None:
    table, begin = table_of(spec, rng, dim)
    embedding = torch.nn.Embedding(ROWS, dim, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(begin))
    optimiser = make(list(embedding.parameters()))
    for step in range(STEPS):
        rows = rng.integers(0, ROWS, rng.integers(1, 80))
        weight = torch.from_numpy(rng.standard_normal((len(rows), dim)).astype(np.float32))
        optimiser.zero_grad()
        (embedding(torch.from_numpy(rows)) * weight).sum().backward()
        optimiser.step()
        table.push(rows, weight.numpy(), "step", client=1, sequence=1 + step)
    want = embedding.weight.detach().numpy()
    np.testing.assert_allclose(table.pull(np.arange(ROWS)).values, want, rtol=1e-6, atol=2e-6)


def test_row_adam_is_adam_of_each_row_alone(rng: np.random.Generator) -> None:
    how: dict[str, Any] = {"betas": (0.7, 0.9), "eps": 1e-5}
    table, begin = table_of(OptimiserSpec.row_adam(0.05, **how), rng)
    alone = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in begin]
    optimisers = [torch.optim.Adam([row], lr=0.05, **how) for row in alone]
    for step in range(STEPS):
        rows = rng.integers(0, ROWS, rng.integers(1, 20))
        grads = rng.standard_normal((len(rows), DIM)).astype(np.float32)
        for row in np.unique(rows).tolist():
            alone[row].grad = torch.from_numpy(grads[rows == row].sum(axis=0))
            optimisers[row].step()
        table.push(rows, grads, "step", client=1, sequence=1 + step)
    want = torch.stack([*alone]).detach().numpy()
    np.testing.assert_allclose(table.pull(np.arange(ROWS)).values, want, rtol=1e-6, atol=2e-6)


SPECS = [OptimiserSpec.sgd(0.1), OptimiserSpec.adagrad(0.1), OptimiserSpec.adam(0.01), OptimiserSpec.row_adam(0.01)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_the_same_request_gives_the_same_bits(spec: OptimiserSpec, rng: np.random.Generator) -> None:
    rows, grads = rng.integers(0, 9, 500), rng.standard_normal((500, 16)).astype(np.float32)
    results = []
    for _ in range(2):
        x = np.zeros((9, 16), np.float32)
        apply_step(spec, 1, x, initial_state(spec, x.shape), _native.RowLocks(), rows=rows, grads=grads)
        results.append(x)
    assert np.array_equal(*results)


@given(st.lists(st.integers(-3, 40), max_size=30), st.sampled_from([0, 10, 36, 10_000]))
def test_every_id_of_an_embedding_is_found_once(ids: list[int], rows: int) -> None:
    asked = np.array(ids, dtype=np.int64)
    distinct, inverse, uses = _distinct(asked, rows)
    wanted, times = np.unique(asked, return_counts=True)
    order = np.argsort(distinct, kind="stable")
    np.testing.assert_array_equal(distinct[order], wanted)
    np.testing.assert_array_equal(uses[order], times)
    np.testing.assert_array_equal(distinct if inverse is None else distinct[inverse], asked)
    if inverse is None:  # to mark ids is less work than to sort them
        assert rows < 10_000
        assert (times == 1).all()


def test_bfloat16_is_torch_s_bit_for_bit(rng: np.random.Generator) -> None:
    bits = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties, ties - 1, ties + 1, ties & 0xFFFF0000]).view(np.float32)[None]
    ours = codecs.encode("bf16", values).view(np.uint16)
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    nan = np.isnan(values)
    assert np.array_equal(ours[~nan], theirs.view(torch.uint16).numpy()[~nan])
    out = np.empty_like(values)
    codecs.decode("bf16", codecs.encode("bf16", values), out)
    assert np.isnan(out[nan]).all()
    assert np.array_equal(out[~nan], theirs.float().numpy()[~nan])
